package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Stages that the client itself reports, before those of the server.
const (
	// StageUploading repeats with a percentage while the bundle is sent.
	StageUploading = "uploading"
	// StageUploaded comes when the server has taken the whole bundle. From
	// then on a deploy may come to be although the caller gives up.
	StageUploaded = "uploaded"
)

// Progress is one step of a deploy, update, rollback, start or restart.
type Progress struct {
	Stage   string `json:"stage"`
	Message string `json:"message"`
	// Percent is 0 to 100, nil when the step has no measure.
	Percent *float64 `json:"progress,omitempty"`
	// Attempt of MaxAttempts, both 0 outside the stage health_check.
	Attempt     int `json:"attempt,omitempty"`
	MaxAttempts int `json:"max_attempts,omitempty"`
}

// Launched is a formation that runs after a deploy, update, rollback, start or
// restart.
type Launched struct {
	FormationID string `json:"formation_id"`
	Port        int    `json:"port"`
	Status      string `json:"status"`
	URL         string `json:"url,omitempty"`
	HealthURL   string `json:"health_url,omitempty"`
	PID         int    `json:"pid,omitempty"`
	// Version and PreviousVersion are the versions that the author gave, "" when
	// the server does not say: a deploy has no previous one.
	Version         string `json:"version,omitempty"`
	PreviousVersion string `json:"previous_version,omitempty"`
	RestartCount    int    `json:"restart_count,omitempty"`
	Message         string `json:"message,omitempty"`
}

// DeployRequest is a formation to deploy or to update.
type DeployRequest struct {
	ID string
	// Version may be "": then the manifest's counts.
	Version string
	// Bundle is the gzipped tar file. It is read twice, for the signature and
	// for the upload, and may still be read for a moment after the call returned.
	Bundle io.ReadSeeker
	// Plain asks for one JSON reply instead of a stream of events: only the
	// upload reports progress then.
	Plain bool
}

// Deploy uploads a bundle and waits until the formation runs or is refused.
// progress (may be nil) is called by one goroutine at a time, never after
// Deploy returned.
func (s *Server) Deploy(ctx context.Context, req DeployRequest, progress func(Progress)) (*Launched, error) {
	c := newCall(http.MethodPost, "rpc", "formations")
	c.header.Set("X-Formation-ID", req.ID)
	return s.send(ctx, c, req, progress)
}

// Update uploads the bundle of a new version and waits until it has taken over
// from the running one, or was refused: then the old one serves on. progress
// (may be nil) is called as for Deploy.
func (s *Server) Update(ctx context.Context, req DeployRequest, progress func(Progress)) (*Launched, error) {
	return s.send(ctx, newCall(http.MethodPut, "rpc", "formations", req.ID), req, progress)
}

// send is an upload of a bundle.
func (s *Server) send(ctx context.Context, c *call, req DeployRequest, progress func(Progress)) (*Launched, error) {
	hash, size, err := hashStream(req.Bundle)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	if size == 0 {
		return nil, errors.New("read bundle: it is empty")
	}
	report := &reporter{fn: progress}
	defer report.close()
	c.hash, c.size, c.stream = hash, size, &upload{r: req.Bundle, size: size, report: report}
	c.header.Set("Content-Type", "application/gzip")
	if req.Version != "" {
		c.header.Set("X-Formation-Version", req.Version)
	}
	// A server that refuses does so before a large body is on its way.
	c.header.Set("Expect", "100-continue")
	if !req.Plain {
		c.wantEvents()
	}
	return s.launch(ctx, c, report)
}

// Start starts a stopped or crashed formation and waits until it runs.
// progress (may be nil) is called as for Deploy.
func (s *Server) Start(ctx context.Context, id string, progress func(Progress)) (*Launched, error) {
	return s.relaunch(ctx, id, "start", progress)
}

// Restart stops a formation, starts it again and waits until it runs.
// progress (may be nil) is called as for Deploy.
func (s *Server) Restart(ctx context.Context, id string, progress func(Progress)) (*Launched, error) {
	return s.relaunch(ctx, id, "restart", progress)
}

func (s *Server) relaunch(ctx context.Context, id, verb string, progress func(Progress)) (*Launched, error) {
	report := &reporter{fn: progress}
	defer report.close()
	return s.launch(ctx, newCall(http.MethodPost, "rpc", "formations", id, verb).wantEvents(), report)
}

// Rollback lets a kept version take over again and waits until it has: version
// is the author's, the SHA-256 of its bundle, or "" for the version before.
// progress (may be nil) is called as for Deploy.
func (s *Server) Rollback(ctx context.Context, id, version string, progress func(Progress)) (*Launched, error) {
	report := &reporter{fn: progress}
	defer report.close()
	c := newCall(http.MethodPost, "rpc", "formations", id, "rollback")
	if version != "" {
		var err error
		if c, err = c.withJSON(map[string]string{"version": version}); err != nil {
			return nil, err
		}
	}
	return s.launch(ctx, c.wantEvents(), report)
}

// Cancelled is what became of an update that was cancelled.
type Cancelled struct {
	FormationID string `json:"formation_id"`
	Message     string `json:"message"`
	Status      string `json:"status"` // of the version that serves on
	CurrentPort int    `json:"current_port"`
}

// CancelUpdate ends the update that runs; the old version serves on.
func (s *Server) CancelUpdate(ctx context.Context, id string) (*Cancelled, error) {
	c := newCall(http.MethodPost, "rpc", "formations", id, "cancel-update")
	c.timeout = DeployTimeout // the new child is stopped before the answer
	var out Cancelled
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// launch follows the events of a call up to complete or error. A server that
// answers at once with JSON is understood too.
func (s *Server) launch(ctx context.Context, c *call, report *reporter) (*Launched, error) {
	c.timeout = DeployTimeout
	var out *Launched
	err := s.caller.events(ctx, streaming{
		call: c,
		onEvent: func(ev Event) (done bool, err error) {
			switch ev.Name {
			case "error":
				return true, eventError(ev.Data)
			case "complete":
				out, err = decodeLaunched(ev.Data)
				return true, err
			case "progress":
				return false, report.event(ev.Data)
			}
			return false, nil
		},
		onReply: func(body []byte) (err error) {
			var reply struct {
				Data json.RawMessage `json:"data"`
			}
			if err := json.Unmarshal(body, &reply); err != nil {
				return badReply(http.StatusOK, "a body that is no JSON")
			}
			out, err = decodeLaunched(reply.Data)
			return err
		},
	})
	return out, err
}

func decodeLaunched(data []byte) (*Launched, error) {
	var l struct {
		Launched
		// Other names of the fields: an id in plain replies, the version in the
		// events of an update and in the reply to a rollback.
		ID             string `json:"id"`
		NewVersion     string `json:"new_version"`
		CurrentVersion string `json:"current_version"`
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, badReply(http.StatusOK, "a result that is no JSON object")
	}
	if l.FormationID == "" {
		l.FormationID = l.ID
	}
	l.Version = cmp.Or(l.Version, l.NewVersion, l.CurrentVersion)
	return &l.Launched, nil
}

// reporter serialises progress calls and silences them at the end: the HTTP
// transport reads an upload in a goroutine that can outlive the call.
type reporter struct {
	mu sync.Mutex // guards fn
	fn func(Progress)
}

func (r *reporter) report(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fn != nil {
		r.fn(p)
	}
}

func (r *reporter) event(data []byte) error {
	var p Progress
	if err := json.Unmarshal(data, &p); err != nil {
		return badReply(http.StatusOK, "a progress event that is no JSON object")
	}
	r.report(p)
	return nil
}

func (r *reporter) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fn = nil
}

// upload reports how much of a bundle was read, once per percent.
type upload struct {
	r       io.ReadSeeker
	size    int64
	sent    int64
	percent int64
	report  *reporter
}

// Read reads from the bundle.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	before := u.sent
	u.sent += int64(n)
	if percent := 100 * u.sent / u.size; percent > u.percent || before == 0 {
		u.percent = percent
		share := float64(percent)
		u.report.report(Progress{Stage: StageUploading, Message: "sending the bundle", Percent: &share})
	}
	if before < u.size && u.sent >= u.size {
		u.report.report(Progress{Stage: StageUploaded, Message: "the bundle is sent"})
	}
	return n, err
}

// Seek moves within the bundle.
func (u *upload) Seek(offset int64, whence int) (int64, error) { return u.r.Seek(offset, whence) }

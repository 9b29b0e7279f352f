package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// stages collects the stages that were reported, repeats once.
type stages []string

func (s *stages) add(p client.Progress) {
	if len(*s) == 0 || (*s)[len(*s)-1] != p.Stage {
		*s = append(*s, p.Stage)
	}
}

func TestDeploy_SendsTheBundleAndFollowsTheEvents(t *testing.T) {
	t.Parallel()
	bundle := bytes.Repeat([]byte("bundle "), 100_000)
	var got seen
	var sum string
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		got = seen{Path: r.URL.Path, Header: r.Header}
		body := sha256.New()
		if n, err := io.Copy(body, r.Body); err != nil || n != r.ContentLength {
			t.Errorf("read %d of %d bytes: %v", n, r.ContentLength, err)
		}
		sum = hex.EncodeToString(body.Sum(nil))
		events(w, ": keepalive",
			"event: progress\ndata: {\"stage\":\"extracting\",\"message\":\"unpack\"}",
			"event: progress\ndata: {\"stage\":\"health_check\",\"message\":\"wait\",\"attempt\":2,\"max_attempts\":30,\"progress\":80.5}",
			"event: complete\ndata: {\"formation_id\":\"hello\",\"port\":8000,\"status\":\"running\",\"url\":\"http://s/api/hello\",\"health_url\":\"http://h\",\"pid\":7}",
			"event: late\ndata: {}")
	})
	var seenStages stages
	var last client.Progress
	launched, err := s.Deploy(t.Context(), client.DeployRequest{ID: "hello", Version: "1.2.0", Bundle: bytes.NewReader(bundle)},
		func(p client.Progress) { seenStages.add(p); last = p })
	if err != nil {
		t.Fatal(err)
	}
	want := client.Launched{
		FormationID: "hello", Port: 8000, Status: "running", URL: "http://s/api/hello", HealthURL: "http://h", PID: 7,
	}
	if diff := cmp.Diff(&want, launched); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(stages{"uploading", "uploaded", "extracting", "health_check"}, seenStages); diff != "" {
		t.Error(diff)
	}
	if last.Attempt != 2 || last.MaxAttempts != 30 || last.Percent == nil || *last.Percent != 80.5 {
		t.Errorf("last progress %+v", last)
	}
	mine := sha256.Sum256(bundle)
	if sum != hex.EncodeToString(mine[:]) || got.Path != "/rpc/formations" {
		t.Errorf("got %s at %s", sum, got.Path)
	}
	for header, value := range map[string]string{
		"X-Formation-ID": "hello", "X-Formation-Version": "1.2.0", "Content-Type": "application/gzip",
		"Accept": "text/event-stream", "Expect": "100-continue",
	} {
		if got.Header.Get(header) != value {
			t.Errorf("%s: %q, want %q", header, got.Header.Get(header), value)
		}
	}
}

// A refused deploy must not cost the upload.
func TestDeploy_SendsNothingToAServerThatRefuses(t *testing.T) {
	t.Parallel()
	// Here the clock stands still while the server's word is on its way: an upload
	// that has waited two seconds for it begins.
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 409, `{"success":false,"error":"ValidationError","message":"formation hello already exists","code":409}`)
		})
		bundle := bytes.NewReader(make([]byte, 10<<20))
		var seenStages stages
		_, err := s.Deploy(t.Context(), client.DeployRequest{ID: "hello", Bundle: bundle}, seenStages.add)
		wantError(t, err, 409, "ValidationError")
		if len(seenStages) > 0 {
			t.Errorf("stages %v, want none", seenStages)
		}
	})
}

func TestDeploy_RefusesAnEmptyOrUnreadableBundle(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") })
	for _, bundle := range []io.ReadSeeker{strings.NewReader(""), broken{}} {
		if _, err := s.Deploy(t.Context(), client.DeployRequest{ID: "x", Bundle: bundle}, nil); err == nil {
			t.Errorf("%T was sent", bundle)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error)       { return 0, errors.New("disk on fire") }
func (broken) Seek(int64, int) (int64, error) { return 0, nil }

func TestLaunch_EndsWithTheErrorEvent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		event string
		want  client.Error
	}{
		"by name": {
			`{"error":"FormationNotFound","message":"no formation x","stage":"validating"}`,
			client.Error{Status: 404, Name: "FormationNotFound", Message: "no formation x", Stage: "validating"},
		},
		"by code": {
			`{"error":"Odd","message":"m","stage":"spawning","code":409,"details":"line 1","rollback_status":"success"}`,
			client.Error{Status: 409, Name: "Odd", Message: "m", Stage: "spawning", Details: "line 1", RollbackStatus: "success"},
		},
		"unknown name": {
			`{"error":"SpawnError","message":"m","details":{"a":1}}`,
			client.Error{Status: 500, Name: "SpawnError", Message: "m", Details: `{"a":1}`},
		},
		"already": {`{"error":"AlreadyRunning","message":"m"}`, client.Error{Status: 409, Name: "AlreadyRunning", Message: "m"}},
		"parse":   {`{"error":"ParseError","message":"m"}`, client.Error{Status: 400, Name: "ParseError", Message: "m"}},
		"no JSON": {`oops`, client.Error{
			Status: 200, Name: client.NameBadReply,
			Message: "this is no answer of the service: an error event that is no JSON object",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != "POST" || r.URL.Path != "/rpc/formations/x/start" || r.ContentLength != 0 {
					t.Errorf("%s %s with %d bytes", r.Method, r.URL.Path, r.ContentLength)
				}
				events(w, "event: error\ndata: "+tc.event)
			})
			_, err := s.Start(t.Context(), "x", nil)
			got := wantError(t, err, tc.want.Status, tc.want.Name)
			if diff := cmp.Diff(tc.want, got, cmp.FilterPath(hiddenField, cmp.Ignore())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLaunch_UnderstandsAPlainReply(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, `{"success":true,"data":{"id":"x","status":"running","port":8001,"restart_count":2}}`)
	})
	got, err := s.Restart(t.Context(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &client.Launched{FormationID: "x", Status: "running", Port: 8001, RestartCount: 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLaunch_AStreamWithoutEndIsAnError(t *testing.T) {
	t.Parallel()
	for _, frames := range [][]string{
		nil,
		{"event: progress\ndata: {\"stage\":\"spawning\"}"},
		{"event: progress\ndata: {\"stage\":\"spawning\"}", "event: complete"},
	} {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
			events(w, frames...)
			if len(frames) == 2 { // cut the last event off
				panic(http.ErrAbortHandler)
			}
		})
		if _, err := s.Start(t.Context(), "x", nil); err == nil {
			t.Errorf("%v was taken for a start", frames)
		}
	}
}

func TestLaunch_BadEventsAreErrors(t *testing.T) {
	t.Parallel()
	for _, frame := range []string{"event: progress\ndata: [", "event: complete\ndata: 7"} {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { events(w, frame) })
		_, err := s.Start(t.Context(), "x", nil)
		wantError(t, err, 200, client.NameBadReply)
	}
}

func TestDeploy_EndsWithTheContextAndReportsNothingAfterIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		events(w, "event: progress\ndata: {\"stage\":\"spawning\"}")
		<-r.Context().Done()
	})
	var seenStages stages
	returned := false
	_, err := s.Deploy(ctx, client.DeployRequest{ID: "x", Bundle: strings.NewReader("b")}, func(p client.Progress) {
		if returned {
			t.Error("progress after the return")
		}
		seenStages.add(p)
		if p.Stage == "spawning" {
			cancel()
		}
	})
	returned = true
	if !errors.Is(err, context.Canceled) || !slices.Contains(seenStages, client.StageUploaded) {
		t.Errorf("error %v after %v", err, seenStages)
	}
}

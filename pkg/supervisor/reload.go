package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/version"
)

// outcomeName is the file in the run directory that tells how the last reload
// went.
const outcomeName = "reload.json"

// Outcome tells how a reload went.
type Outcome struct {
	At      time.Time `json:"at"`
	Done    bool      `json:"done"`              // the program was replaced
	Version string    `json:"version"`           // of the program that runs since
	Message string    `json:"message,omitempty"` // why it was not
}

// LastReload returns how the last reload of a home's supervisor went. It is the
// zero Outcome when there was none.
func LastReload(home string) (Outcome, error) {
	text, err := os.ReadFile(filepath.Join(home, "run", outcomeName))
	if errors.Is(err, os.ErrNotExist) {
		return Outcome{}, nil
	}
	var o Outcome
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("read the outcome of the reload: %w", err)
	}
	return o, nil
}

// reloading is what takes part in a reload.
type reloading struct {
	e        *estate
	h        *house
	f        *front
	stopWork context.CancelFunc
}

// reload prepares the replacement of the program: a bridge takes the requests
// over, those in progress are finished within the drain time, the children are
// let go. It returns true when only the replacement is left, and false when
// everything goes on as before: with the reason, or because ctx has ended.
func (s *Supervisor) reload(ctx context.Context, r reloading) (bool, error) {
	s.log.Info().Str("program", s.cfg.Self.Path).Msg("reloading")
	s.tellReloading()
	if b := r.e.bridge; b != nil { // of an earlier reload, which still finishes requests
		select {
		case <-b.ended:
			r.e.bridge = nil
		case <-ctx.Done():
			return false, nil
		}
	}
	o, err := s.orders(ctx, r.h)
	if err != nil {
		return false, err
	}
	b, err := s.raiseBridge(ctx, r.e.door, o)
	if err != nil {
		return false, err
	}
	bound, cancel := context.WithTimeout(ctx, s.cfg.Formations.DrainTimeout)
	defer cancel()
	if !r.f.drain(bound) {
		if ctx.Err() != nil { // stopping instead
			b.kill()
			return false, nil
		}
		s.log.Warn().Dur("after", s.cfg.Formations.DrainTimeout).Msg("requests that were open before the reload are cut")
	}
	r.stopWork()
	r.f.close(ctx)
	if r.h.deploy.Settle(ctx) != nil || ctx.Err() != nil {
		// Stopping instead. Once the children are let go it would be too late: the
		// new program does not know what this one was told.
		b.kill()
		return false, nil
	}
	r.e.bridge = b
	r.h.deploy.Close()
	if r.e.sockets, err = r.h.ports.Export(); err != nil {
		// The children have their copies, from which they are taken back.
		s.log.Warn().Err(err).Msg("the formations' sockets are not kept over the reload")
	}
	return true, nil
}

// orders tells a bridge which formations run.
func (s *Supervisor) orders(ctx context.Context, h *house) (orders, error) {
	o := orders{
		Version: bridgeVersion, Ports: make(map[string]int), Host: reachableHost(s.cfg.Formations.BindHost),
		Hatch: filepath.Join(s.path("run"), hatchName), Formations: h.deploy.Counts().Total,
		Leased: h.ports.Leased(), StartedAt: h.startedAt,
	}
	views, err := h.deploy.List(ctx, process.StatusRunning)
	if err != nil {
		return orders{}, fmt.Errorf("list the formations: %w", err)
	}
	for _, v := range views {
		o.Ports[v.ID] = v.Port
	}
	return o, nil
}

// relieveBridge lets the bridge of the reload that made this program finish, and
// takes the requests that it brings until it has ended.
func (s *Supervisor) relieveBridge(ctx context.Context, e *estate, h *house) {
	b := e.bridge
	if b == nil {
		return
	}
	hatch := newFront(context.WithoutCancel(ctx), bridged(h.api), s.log)
	err := hatch.serve(b.hatch, nil)
	if err == nil {
		err = b.relieve()
	}
	if err != nil {
		s.log.Error().Err(err).Msg("the bridge of the reload is not relieved")
	}
	go func() {
		b.attend()
		hatch.close(ctx)
	}()
	if e.refusal != nil {
		s.refused(e.refusal)
		e.refusal = nil
		return
	}
	s.reloaded(Outcome{Done: true})
}

// dismissBridge ends a bridge that still finishes requests: the formations have
// ended, so nothing will come.
func (e *estate) dismissBridge() {
	if b := e.bridge; b != nil {
		b.dismiss()
		e.bridge = nil
	}
}

// refused tells that this program goes on.
func (s *Supervisor) refused(err error) {
	if err == nil {
		err = errors.New("the supervisor is stopping")
	}
	s.log.Error().Err(err).Msg("the reload is refused; the supervisor goes on as it was")
	s.tellSystemd(sd.SdNotifyReady)
	s.reloaded(Outcome{Message: err.Error()})
}

// reloaded leaves the outcome for LastReload.
func (s *Supervisor) reloaded(o Outcome) {
	o.At, o.Version = time.Now().UTC(), version.Version
	text, err := json.Marshal(o)
	if err == nil {
		err = replaceFile(filepath.Join(s.path("run"), outcomeName), text)
	}
	if err != nil {
		s.log.Warn().Err(err).Msg("the outcome of the reload is not written down")
	}
}

// replaceFile writes a file (0600) so that a reader sees the old text or the new.
func replaceFile(path string, text []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

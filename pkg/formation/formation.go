// Package formation puts the parts of a formation together, in the order of
// its floors, and is the child's side of the control protocol. It is the only
// room that knows all others; cmd/formation-runtime imports it.
//
//	New ── Load ──► loaded ── Serve ──► serving ── Drain ──► draining ── Stop ──► stopped
//
// Load leaves a formation that could serve: manifest and secrets read, store
// open, what dead launches left taken in hand. Serve accepts connections and
// starts the background work. Stop cuts what is still open; it resumes in the
// next process.
package formation

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/spool"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/version"
)

// Config is what the process brings.
type Config struct {
	// FormationID is the id that the manifest must have; "" accepts any.
	FormationID string
	LaunchID    string
	// CheckHello refuses a stranger on the control socket; nil lets everybody in.
	CheckHello func(control.HelloRequest) error
	// Listen opens the formation's port, at Serve and not before.
	Listen func() (net.Listener, error)
	// CloseSocket un-listens the port for every process that holds it; nil
	// when nobody else does.
	CloseSocket func() error
	// SecretsKey is the text of the key to secrets.enc; "" means the file .key.
	SecretsKey string
	// Env looks up variables that ${{ env.NAME }} may name.
	Env func(name string) (string, bool)
	// Alone tells that no other process may write to the store, whatever its
	// launch: every earlier launch is fenced.
	Alone bool
	// Fatal is told when the formation can't go on by itself; it ends the
	// process. nil does nothing.
	Fatal func(error)
	Log   zerolog.Logger
}

// Formation is one running formation. It implements control.Formation.
type Formation struct {
	cfg     Config
	started time.Time
	beat    atomic.Uint64

	mu       sync.Mutex // guards the fields that follow
	parts    *parts     // nil before Load
	server   *http.Server
	listener net.Listener
	paused   bool // another child accepts
	draining atomic.Bool
	stopOnce sync.Once

	background *errgroup.Group
	cancel     context.CancelFunc
}

var _ control.Formation = (*Formation)(nil)

// New returns a formation that has loaded nothing.
func New(cfg Config) *Formation {
	return &Formation{cfg: cfg, started: time.Now()}
}

// Hello implements control.Formation.
func (f *Formation) Hello(_ context.Context, req control.HelloRequest) (control.Hello, error) {
	if f.cfg.CheckHello != nil {
		if err := f.cfg.CheckHello(req); err != nil {
			return control.Hello{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.Hello{
		FormationID: f.cfg.FormationID, LaunchID: f.cfg.LaunchID, Build: version.String(), PID: os.Getpid(),
		StartedAt: f.started, Serving: f.server != nil, ControlVersion: control.Version,
	}, nil
}

var errNotLoaded = fault.New(fault.Conflict, "", "the formation is not loaded")

func (f *Formation) loaded() (*parts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.parts == nil {
		return nil, errNotLoaded
	}
	return f.parts, nil
}

// Manifest returns what was loaded. It is called from Config.Listen, when the
// formation is loaded and locked.
func (f *Formation) Manifest() *manifest.Formation { return f.parts.manifest }

// Health implements control.Formation. It takes no lock that a turn could hold.
func (f *Formation) Health(context.Context) (control.Health, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.Health{Ready: f.parts != nil, Serving: f.server != nil, Heartbeat: f.beat.Load()}, nil
}

// Status implements control.Formation.
func (f *Formation) Status(context.Context) (control.Status, error) {
	p, err := f.loaded()
	if err != nil {
		return control.Status{}, err
	}
	total, active := p.turns.Counts()
	return control.Status{
		FormationID: p.manifest.ID, Version: p.manifest.Version, Agents: len(p.manifest.Agents),
		ActiveRequests: active, TotalRequests: total, Uptime: time.Since(f.started),
	}, nil
}

// Records implements control.Formation.
func (f *Formation) Records(ctx context.Context, after uint64, sink func(control.Record) error) error {
	p, err := f.loaded()
	if err != nil {
		return err
	}
	return p.spool.Follow(ctx, after, func(r spool.Record) error {
		return sink(control.Record{
			Seq: r.Seq, Time: r.Time, Kind: control.RecordKind(r.Kind),
			Action: r.Action, Actor: r.Actor, Result: r.Result, Message: r.Message, Detail: r.Detail,
		})
	})
}

// Drain implements control.Formation: no new connections, then the end of what
// is open, at most for the timeout.
func (f *Formation) Drain(ctx context.Context, req control.DrainRequest) (control.Drained, error) {
	f.draining.Store(true)
	f.mu.Lock()
	p, server, listener := f.parts, f.server, f.listener
	f.mu.Unlock()
	if server == nil {
		return control.Drained{}, nil
	}
	if req.CloseSocket && f.cfg.CloseSocket != nil {
		// Before our own copy closes: afterwards clients would queue in a
		// socket that nobody empties.
		if err := f.cfg.CloseSocket(); err != nil {
			f.cfg.Log.Warn().Err(err).Msg("un-listen the port")
		}
	}
	_ = listener.Close() // Serve returns with "use of closed network connection"
	if err := pause(ctx, req.LameDuck); err != nil {
		return control.Drained{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- server.Shutdown(ctx) }()
	left := p.turns.Drain(ctx)
	if err := <-shut; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return control.Drained{Unfinished: left}, err
	}
	return control.Drained{Unfinished: left}, nil
}

// Pause implements control.Formation.
func (f *Formation) Pause(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.server == nil || f.paused {
		return nil
	}
	f.paused = true
	f.draining.Store(true)
	return f.listener.Close() // the accept loop ends with "use of closed network connection"
}

// Fence implements control.Formation.
func (f *Formation) Fence(ctx context.Context, launchIDs []string) (int, error) {
	p, err := f.loaded()
	if err != nil {
		return 0, err
	}
	if err := p.db.Fence(ctx, launchIDs); err != nil {
		return 0, err
	}
	return p.turns.Recover(ctx)
}

// pause waits out the clients' idle time.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop implements control.Formation. It is safe to call at any time, and twice.
func (f *Formation) Stop(context.Context) error {
	var err error
	f.stopOnce.Do(func() { err = f.stop() })
	return err
}

func (f *Formation) stop() error {
	f.draining.Store(true)
	f.mu.Lock()
	p, server, background, cancel := f.parts, f.server, f.background, f.cancel
	f.mu.Unlock()
	if p == nil {
		return nil
	}
	p.turns.Stop()
	var errs []error
	if server != nil {
		cancel()
		errs = append(errs, server.Close())
	}
	if background != nil {
		errs = append(errs, background.Wait())
	}
	p.router.Close()
	return errors.Join(append(errs, p.db.Close())...)
}

// heartbeatEvery is how often the heart beats, well within the 35 s after which
// a supervisor takes silence for a hang. A beat goes through the store's writer,
// so a process that can't commit any more is seen as hung.
const heartbeatEvery = 5 * time.Second

func (f *Formation) heartbeat(ctx context.Context, db *store.DB) error {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for {
		switch err := db.Write(ctx, func(*store.Tx) error { return nil }); {
		case errors.Is(err, store.ErrFenced):
			f.cfg.Log.Error().Msg("a newer launch has taken this formation over")
			return err
		case err == nil:
			f.beat.Add(1)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// alert tells the supervisor, through the spool, what an operator should see.
func (p *parts) alert(ctx context.Context, a turn.Alert) {
	r := spool.Record{Kind: spool.Alert, Action: a.Action, Actor: "formation", Result: "failed", Message: a.Message}
	if err := p.spool.Add(ctx, r); err != nil {
		p.log.Error().Err(err).Str("action", a.Action).Msg("store an alert")
	}
}

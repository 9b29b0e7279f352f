// Package deploy holds the use cases of the supervisor: deploy, update, roll
// back, start, stop, restart and delete a formation, tell how it is, and bring
// the fleet back after the supervisor was away.
//
// It promises that a change which returned nil is committed in the registry,
// that a deploy or update which failed leaves nothing behind and what served
// before serving, that operations on one formation follow each other, and that
// an operation goes on when the client that asked for it leaves. httpapi calls
// it; the proxy asks it for targets.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Config is what a Service works with. Registry and Ports stay the caller's,
// who closes them after Shutdown or Close.
type Config struct {
	Log      zerolog.Logger
	Registry *registry.Registry
	Ports    *ports.Pool
	Dirs     Dirs
	Child    Child
	Limits   archive.Limits // of bundles
	// Guards limits the children; nil leaves them alone.
	Guards *Guards
	// MaxFormations bounds the fleet; 0 means 100.
	MaxFormations int
	// Manager is the pattern for each formation's process.Manager; Notify and
	// RestartCount are set here.
	Manager process.ManagerConfig
	// AutoRestart replaces children that ended unasked.
	AutoRestart bool
	// KeepVersions bounds the versions of a formation, the current one included;
	// 0 means 5.
	KeepVersions int
	// Probation is how long a new version must serve before the old one ends; 0
	// skips it.
	Probation time.Duration
	// LameDuck is how long a process that is replaced by an update, rollback or
	// restart waits for idle clients.
	LameDuck time.Duration
	// InitTimeout bounds a manifest's init command; 0 means 5 minutes.
	InitTimeout time.Duration
	// Alert is told what an operator wants to know. It must not block. May be nil.
	Alert func(Notice)
	Now   func() time.Time // nil is time.Now
}

// Child is what all children have in common.
type Child struct {
	Binary       string // the formation-runtime program
	Args         []string
	Env          []string // NAME=value, beside what the package adds
	ServerURL    string   // where a child reaches this supervisor
	ServerID     string
	HeaderPrefix string
	// Budgets returns the operator's budget policy for a formation as JSON, nil
	// when there is none. nil is none for all.
	Budgets func(id string) []byte
	// ReadyTimeout bounds the time to readiness, moved on by progress; DrainTimeout
	// the end of open work; KillTimeout what comes after it; OrphanTimeout the
	// life without a supervisor (0 is for ever).
	ReadyTimeout, DrainTimeout, KillTimeout, OrphanTimeout time.Duration
}

// Service is safe for concurrent use.
type Service struct {
	cfg Config
	log zerolog.Logger
	now func() time.Time

	launches  sync.WaitGroup // of Restore, which go on after it returned
	followers sync.WaitGroup // of the children's records, and of what goes on beside them

	mu    sync.Mutex // guards what follows; never held while waiting
	fleet map[string]*formation
	devs  map[string]*dev // drafts that run, by formation id
	down  bool            // no further operation begins

	drafts drafts
}

// New returns a Service with an empty fleet; Restore fills it.
func New(cfg Config) (*Service, error) {
	if cfg.Registry == nil || cfg.Ports == nil {
		return nil, errors.New("deploy: Registry and Ports must be set")
	}
	if cfg.MaxFormations <= 0 {
		cfg.MaxFormations = 100
	}
	if cfg.KeepVersions <= 0 {
		cfg.KeepVersions = 5
	}
	if cfg.InitTimeout <= 0 {
		cfg.InitTimeout = 5 * time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Manager.Policy == (process.Policy{}) {
		cfg.Manager.Policy = process.DefaultPolicy()
	}
	if !cfg.AutoRestart {
		cfg.Manager.Policy.Max = 1 // the first failure is the last
	}
	for _, dir := range []string{cfg.Dirs.Formations, cfg.Dirs.staging(), cfg.Dirs.trash(), cfg.Dirs.Logs, cfg.Dirs.Run, cfg.Dirs.Tmp} {
		if dir == "" {
			return nil, errors.New("deploy: every directory of Dirs must be set")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	return &Service{cfg: cfg, log: cfg.Log, now: cfg.Now, fleet: make(map[string]*formation)}, nil
}

// formation is one member of the fleet, from the beginning of its deploy to
// the end of its deletion.
type formation struct {
	id  string
	mgr *process.Manager
	ops chan struct{} // capacity 1: held by the operation in progress

	mu      sync.Mutex // guards what follows
	socket  *ports.Socket
	cancel  context.CancelCauseFunc // ends a first deploy in progress; nil otherwise
	launch  context.CancelCauseFunc // ends a start or restart in progress; nil otherwise
	change  *change                 // an update or rollback in progress; nil otherwise
	coming  bool                    // a first deploy or a restore will launch it
	gone    bool                    // deleted, or its deploy failed
	changed chan struct{}           // closed and replaced at every event of the process
	count   int                     // restarts, as the registry has them
	seen    records                 // of the formation, taken into the audit chain
	// lastExit is the newest of the history but for replaced processes; nil when
	// none has ended.
	lastExit *registry.Exit
	noted    *registry.Exit // the last one that went into the history since the start
}

// join makes a member of the fleet. Its first operation, which is expected to
// launch it, holds ops already. The
// error is 409 when the id is taken, 500 PortAllocationError when the fleet is
// full.
func (s *Service) join(ctx context.Context, id string, restarts, limit int) (*formation, error) {
	f := &formation{id: id, ops: make(chan struct{}, 1), changed: make(chan struct{}), coming: true, count: restarts}
	f.ops <- struct{}{}
	cfg := s.cfg.Manager
	cfg.Log = s.log.With().Str("formation", id).Logger()
	cfg.RestartCount = restarts
	record := context.WithoutCancel(ctx) // events come long after the call that made the formation
	cfg.Notify = func(e process.Event) { s.noted(record, f, e) }
	f.mgr = process.NewManager(cfg)

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return nil, errShuttingDown()
	case s.fleet[id] != nil:
		return nil, errExists(id)
	case s.takenByDraft(id):
		return nil, fault.Errorf(fault.Conflict, "ValidationError", "a draft runs under the name '%s'; stop it first", id)
	case len(s.fleet) >= limit:
		return nil, fault.Errorf(fault.Failed, "PortAllocationError",
			"this server hosts at most %d formations (formations.max_formations); delete one first", s.cfg.MaxFormations)
	}
	s.fleet[id] = f
	return f, nil
}

// leave takes f out of the fleet and ends its operation.
func (s *Service) leave(f *formation) {
	s.mu.Lock()
	delete(s.fleet, f.id)
	s.mu.Unlock()
	f.mu.Lock()
	f.gone = true
	f.mu.Unlock()
	f.wake()
	<-f.ops
}

// member returns the formation with that id, 404 when there is none.
func (s *Service) member(id string) (*formation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.fleet[id]
	if !ok {
		return nil, errNotFound(id)
	}
	return f, nil
}

// operate waits for its turn on the formation with that id. The caller ends
// its operation by calling done, which tells those who wait for the process: one
// that was given up has told nothing itself.
func (s *Service) operate(ctx context.Context, id string) (f *formation, done func(), err error) {
	if f, err = s.member(id); err != nil {
		return nil, nil, err
	}
	if err := f.lock(ctx); err != nil {
		return nil, nil, err
	}
	down := s.goingDown()
	f.mu.Lock()
	gone := f.gone
	f.mu.Unlock()
	switch {
	case gone:
		<-f.ops
		return nil, nil, errNotFound(id)
	case down:
		<-f.ops
		return nil, nil, errShuttingDown()
	}
	return f, func() {
		f.wake()
		<-f.ops
	}, nil
}

// goingDown tells that no further operation begins.
func (s *Service) goingDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// came says that the launch which was to come without an operator's call is over.
func (f *formation) came() {
	f.mu.Lock()
	f.coming = false
	f.mu.Unlock()
	f.wake()
}

func (f *formation) isComing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.coming
}

func (f *formation) lock(ctx context.Context) error {
	select {
	case f.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Canceled, "", "the caller left", context.Cause(ctx))
	}
}

// wake tells those who wait for a change of the process.
func (f *formation) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

// noted records what happened to the process. It runs before the manager's
// next step, so a restart is counted on disk before it is done.
func (s *Service) noted(ctx context.Context, f *formation, e process.Event) {
	log := s.log.Info()
	if e.Kind == process.EventCrashed || e.Kind == process.EventHung || e.Kind == process.EventExited {
		log = s.log.Error().Str("reason", e.Exit.Reason).Strs("stderr", e.Exit.Stderr)
	}
	log.Str("formation", f.id).Str("event", string(e.Kind)).Int("restart_count", e.Snapshot.RestartCount).Msg("formation")
	f.mu.Lock()
	counted := f.count == e.Snapshot.RestartCount
	f.count = e.Snapshot.RestartCount
	f.mu.Unlock()
	s.noteExit(ctx, f, e)
	s.alertEvent(f, e)
	if e.Kind == process.EventRunning || e.Kind == process.EventAdopted {
		s.followRecords(ctx, f)
	}
	if !counted {
		err := s.cfg.Registry.SetRestartCount(ctx, f.id, e.Snapshot.RestartCount)
		if err != nil && !errors.Is(err, registry.ErrNotFound) {
			s.log.Error().Err(err).Str("formation", f.id).Msg("the restart count is not recorded")
		}
	}
	f.wake()
}

// members returns the fleet by id.
func (s *Service) members() []*formation {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.fleet))
	slices.SortFunc(all, func(a, b *formation) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}

func errNotFound(id string) error {
	return fault.Errorf(fault.NotFound, "FormationNotFound", "No formation with id '%s'", id)
}

func errExists(id string) error {
	return fault.Errorf(fault.Conflict, "ValidationError", "Formation '%s' already exists", id)
}

func errShuttingDown() error {
	return fault.New(fault.Unavailable, "FormationUnavailable", "the supervisor is shutting down")
}

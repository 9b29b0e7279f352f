package process

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// Manager supervises one formation's process. Its methods are safe for
// concurrent use; Start, Stop, Restart and Adopt of one Manager wait for each
// other, but Stop and Close interrupt a Start.
type Manager struct {
	cfg    ManagerConfig
	log    zerolog.Logger
	policy Policy
	outage outage
	now    func() time.Time

	ops chan struct{} // capacity 1: held by the operation in progress

	mu    sync.Mutex // guards what follows; never held while waiting
	snap  Snapshot
	ep    *episode // the latest; nil before the first
	child *child   // that serves now; nil when none does
	fresh bool     // the next launch empties the logs
}

// NewManager returns a Manager with nothing to supervise.
func NewManager(cfg ManagerConfig) *Manager {
	cfg.HealthInterval = orElse(cfg.HealthInterval, 30*time.Second)
	cfg.HealthTimeout = orElse(cfg.HealthTimeout, 5*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	m := &Manager{
		cfg: cfg, log: cfg.Log, policy: cfg.Policy.withDefaults(), now: cfg.Now,
		ops:  make(chan struct{}, 1),
		snap: Snapshot{Status: StatusStopped, RestartCount: cfg.RestartCount},
	}
	m.outage = outage{log: cfg.Log, limit: orElse(cfg.OutageLimit, 30*time.Second), handler: cfg.Unavailable}
	return m
}

// lock waits for its turn among the operations.
func (m *Manager) lock(ctx context.Context) error {
	select {
	case m.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *Manager) unlock() { <-m.ops }

// Start launches the formation and returns when it serves. From then on it is
// restarted by the policy until Stop. A start that fails leaves the status
// crashed, with the supervisor answering on the port, and is not tried again;
// the error is the fault that the child reported (SecretsError, ParseError, …), a
// SpawnError when no process could be started, or a HealthCheckFailed that
// carries the last lines of the error log. The end of ctx gives the start up.
// progress may be nil.
func (m *Manager) Start(ctx context.Context, spec Spec, progress Progress) error {
	spec, err := spec.withDefaults()
	if err != nil {
		return err
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	if m.supervising() {
		return fault.Errorf(fault.Conflict, "AlreadyRunning", "formation %s is already running", spec.ID)
	}
	return m.begin(ctx, spec, progress)
}

// Restart ends the child, keeping the port open, and starts spec: clients that
// connect in between wait. It is Start when nothing runs.
func (m *Manager) Restart(ctx context.Context, spec Spec, progress Progress) error {
	spec, err := spec.withDefaults()
	if err != nil {
		return err
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	if m.supervising() {
		if progress != nil {
			progress("stopping", "finishing open work", 0, 0)
		}
		if err := m.end(ctx, errRestart); err != nil {
			return err
		}
	}
	m.set(func(s *Snapshot) { s.RestartCount++ })
	return m.begin(ctx, spec, progress)
}

// begin starts an episode and waits for its first launch.
func (m *Manager) begin(ctx context.Context, spec Spec, progress Progress) error {
	ep := newEpisode(ctx, spec, progress)
	m.outage.use(spec.Socket)
	m.mu.Lock()
	m.ep, m.fresh = ep, spec.FreshLogs
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { ep.cancel(errAbandon) })
	go m.own(ep)
	err := <-ep.began
	if !stop() && err == nil { // ctx ended as the child began to serve
		<-ep.done
		err = startError(errAbandon)
	}
	if err != nil {
		<-ep.done
	}
	return err
}

// Stop closes the port for every holder, lets open work finish (DrainTimeout),
// and ends the child; after KillTimeout more it is killed. It interrupts a start
// in progress and ends the answering of a crashed formation. It returns when the
// child is gone; when ctx ends before, the stopping goes on without it.
func (m *Manager) Stop(ctx context.Context) error {
	m.interrupt(errStop)
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.end(ctx, errStop)
}

// end ends the episode for a reason and waits for it.
func (m *Manager) end(ctx context.Context, why error) error {
	ep := m.interrupt(why)
	if ep == nil {
		return nil
	}
	select {
	case <-ep.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !errors.Is(why, errStop) {
		return nil
	}
	m.outage.end()
	m.settle(StatusStopped)
	return ep.spec.Socket.Shutdown()
}

// interrupt tells the owner goroutine to end; a stop closes the port at once.
func (m *Manager) interrupt(why error) *episode {
	m.mu.Lock()
	ep := m.ep
	m.mu.Unlock()
	if ep == nil {
		return nil
	}
	ep.cancel(why)
	if errors.Is(why, errStop) {
		m.outage.end()
		if err := ep.spec.Socket.Shutdown(); err != nil {
			m.log.Warn().Err(err).Msg("cannot close the formation's port")
		}
	}
	return ep
}

// Adopt takes over a child that an earlier supervisor left serving. It is proven
// by process number, start time and boot, and by its answer to the launch token.
// It returns false when there is none: call Start then. What is found but hangs
// or never served is killed, if the token in its environment proves it ours; in
// any case its launch id is fenced by the next start.
func (m *Manager) Adopt(ctx context.Context, spec Spec) (bool, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return false, err
	}
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.unlock()
	if m.supervising() {
		return false, fault.Errorf(fault.Conflict, "AlreadyRunning", "formation %s is already running", spec.ID)
	}
	c, err := m.find(ctx, spec)
	if err != nil || c == nil {
		return false, err
	}
	ep := newEpisode(ctx, spec, nil)
	m.outage.use(spec.Socket)
	m.mu.Lock()
	m.ep = ep
	m.mu.Unlock()
	m.serving(c, EventAdopted)
	go func() {
		defer close(ep.done)
		defer ep.cancel(nil)
		m.keepUp(ep, c)
	}()
	return true, nil
}

// Close ends the supervision and leaves the child serving, for the next
// supervisor to adopt. A child that does not serve yet is killed; a stop in
// progress is waited for. The Manager is not used afterwards.
func (m *Manager) Close() {
	if ep := m.interrupt(errDetach); ep != nil {
		<-ep.done
	}
	m.outage.end()
}

// Snapshot returns what is known now. It never waits.
func (m *Manager) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snap
}

// Control returns the serving child's end of the control protocol, for Status
// and Records; false when no child serves. It answers with control.ErrNoAnswer
// once that child has ended.
func (m *Manager) Control() (control.Formation, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child == nil {
		return nil, false
	}
	return m.child.conn, true
}

// supervising tells whether an episode is in progress.
func (m *Manager) supervising() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ep == nil {
		return false
	}
	select {
	case <-m.ep.done:
		return false
	default:
		return true
	}
}

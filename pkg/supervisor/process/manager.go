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
	"github.com/agentformation/service/pkg/supervisor/ports"
)

// Manager supervises one formation's process. Its methods are safe for
// concurrent use; Start, Stop, Restart, Update and Adopt of one Manager wait for
// each other, but Stop and Close interrupt a Start, a Restart and an Update, also
// one that still waits for its turn.
type Manager struct {
	cfg    ManagerConfig
	log    zerolog.Logger
	policy Policy
	outage outage
	now    func() time.Time

	ops       chan struct{} // capacity 1: held by the operation in progress
	admission sync.Mutex    // held while a launch looks at what earlier ones left
	fencing   sync.Mutex    // held while a child fences others

	mu       sync.Mutex // guards what follows; never held while waiting
	snap     Snapshot
	ep       *episode // the latest; nil before the first
	child    *child   // that serves now; nil when none does
	fresh    bool     // the next launch empties the logs
	closed   bool
	stops    int                     // how often Stop was called
	updating context.CancelCauseFunc // ends the update in progress before its switch; nil without one
	live     map[string]struct{}     // launches whose process is in our hands
	asides   []*aside                // children that end beside the serving one
	unfenced []dead                  // of them, those that have ended and are not fenced yet
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
		live: make(map[string]struct{}),
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

// asked is what an operation remembers from before it waits for its turn: a Stop
// that comes since then finds nothing of it to end, so it must not begin any more.
func (m *Manager) asked() (stops int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stops
}

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
	stops := m.asked()
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	if m.supervising() {
		return fault.Errorf(fault.Conflict, "AlreadyRunning", "formation %s is already running", spec.ID)
	}
	return m.begin(ctx, newEpisode(ctx, spec, progress), stops)
}

// Restart ends the child, keeping the port open, and starts spec: clients that
// connect in between wait. It is Start when nothing runs.
func (m *Manager) Restart(ctx context.Context, spec Spec, progress Progress) error {
	spec, err := spec.withDefaults()
	if err != nil {
		return err
	}
	stops := m.asked()
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
	return m.begin(ctx, newEpisode(ctx, spec, progress), stops)
}

// begin starts an episode and waits for its first launch.
func (m *Manager) begin(ctx context.Context, ep *episode, stops int) error {
	if err := m.enter(ep, stops); err != nil {
		if errors.Is(err, errStop) { // whoever stopped may not have waited for us
			if err := m.shut(ep.socket); err != nil {
				m.log.Warn().Err(err).Msg("cannot close the formation's port")
			}
		}
		return interrupted("start", err)
	}
	m.mu.Lock()
	m.fresh = ep.spec.FreshLogs
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { ep.cancel(abandoned(ctx)) })
	go m.own(ep)
	err := <-ep.began
	if !stop() && err == nil { // ctx ended as the child began to serve
		<-ep.done
		err = interrupted("start", abandoned(ctx))
	}
	if err != nil {
		<-ep.done
	}
	return err
}

// evenStopped lets an episode begin whatever came between: it has its child.
const evenStopped = -1

// enter makes ep the present episode, unless Stop was called since asked returned
// stops.
func (m *Manager) enter(ep *episode, stops int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fault.Wrap(fault.Canceled, "", errDetach.Error(), errDetach)
	case stops != evenStopped && m.stops != stops:
		return errStop
	}
	m.ep = ep
	m.outage.use(ep.socket)
	return nil
}

// Stop closes the port for every holder, lets open work finish (DrainTimeout),
// and ends the child; after KillTimeout more it is killed. It interrupts a start
// in progress and ends the answering of a crashed formation. It returns when the
// child is gone; when ctx ends before, the stopping goes on without it.
func (m *Manager) Stop(ctx context.Context) error {
	m.mu.Lock()
	m.stops++ // before it looks for what is in progress
	m.mu.Unlock()
	m.interrupt(errStop)
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.end(ctx, errStop)
}

// end ends the episode for a reason and waits for it; a stop also for the
// children that end beside it.
func (m *Manager) end(ctx context.Context, why error) error {
	ep := m.interrupt(why)
	stop := errors.Is(why, errStop)
	if ep != nil {
		select {
		case <-ep.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if !stop {
		return nil
	}
	if err := m.awaitAsides(ctx); err != nil {
		return err
	}
	if ep == nil {
		return m.shut(nil)
	}
	return m.shut(ep.socket)
}

// shut leaves a formation that nobody serves or answers for; it may have had no
// socket yet.
func (m *Manager) shut(socket *ports.Socket) error {
	m.outage.end()
	m.settle(StatusStopped)
	if socket == nil {
		return nil
	}
	return socket.Shutdown()
}

// interrupt tells the owner goroutine to end, and a stop or the supervisor's end
// also an update; a stop closes the port at once.
func (m *Manager) interrupt(why error) *episode {
	stop := errors.Is(why, errStop)
	m.mu.Lock()
	ep := m.ep
	if ep != nil {
		ep.cancel(why)
	}
	if m.updating != nil && !errors.Is(why, errRestart) {
		m.updating(why)
	}
	m.mu.Unlock()
	if ep != nil && stop {
		m.outage.end()
		if err := ep.socket.Shutdown(); err != nil {
			m.log.Warn().Err(err).Msg("cannot close the formation's port")
		}
	}
	return ep
}

// Adopt takes over the child that an earlier supervisor left serving. It is
// proven by process number, start time and boot, and by its answer to the launch
// token. Of several, which an interrupted update leaves, it takes the one that
// runs in spec.Dir; the others finish their work beside it and are stopped, in
// the background. It returns false when none runs in spec.Dir: call Start then.
// What is found but hangs or never served is killed, if the token in its
// environment proves it ours; in any case its launch id is fenced by the next
// start.
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
	if err := m.enter(ep, evenStopped); err != nil {
		m.leave(c)
		return false, err
	}
	m.serving(c)
	m.notify(Event{Kind: EventAdopted})
	go func() {
		defer close(ep.done)
		defer ep.cancel(nil)
		m.keepUp(ep, m.attend(ep.ctx, c))
	}()
	return true, nil
}

// Close ends the supervision and leaves every child that has served as it is, for
// the next supervisor to adopt. A child that does not serve yet is killed; a stop
// in progress is waited for. The Manager is not used afterwards.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	ep := m.interrupt(errDetach)
	for _, a := range m.asideNow() {
		a.cancel(errDetach)
	}
	if ep != nil {
		<-ep.done
	}
	for _, a := range m.asideNow() {
		<-a.done
	}
	m.ops <- struct{}{} // an update that was loading has killed its child
	m.unlock()
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

// supervising tells whether an episode is in progress. One that has given up says
// so before it is over.
func (m *Manager) supervising() bool {
	m.mu.Lock()
	ep, status := m.ep, m.snap.Status
	m.mu.Unlock()
	if ep == nil {
		return false
	}
	if status == StatusCrashed {
		<-ep.done
	}
	return !ep.over()
}

package process

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// UpdateOptions says how an update goes.
type UpdateOptions struct {
	// Probation is how long the old child stands by after the switch; 0 skips it.
	Probation time.Duration
	// Spawning and Stopping are the names of the stages that Progress reports for
	// the new child's start and the old one's end. "" is "spawning", "stopping".
	Spawning, Stopping string
	Progress           Progress // may be nil
	// Commit makes the new version the current one. It is called once, when the
	// new child has survived its probation; its error brings the old one back. It
	// must not call the Manager, except Snapshot. May be nil.
	Commit func(context.Context) error
}

// update is an offer to the owner of an episode: a child that is ready to serve.
type update struct {
	ctx    context.Context //nolint:containedctx // its end gives the update up, with the cause
	c      *child
	o      UpdateOptions
	stops  int           // of the Manager, when it was asked for
	answer chan switched // capacity 1
}

// switched is the owner's answer.
type switched struct {
	err  error
	rest *aside // the child that does not stay and still has work; nil when there is none
}

// Update puts a child of spec in the place of the present one without a gap: both
// share the socket, and the old one serves until the new one does.
//
// In order: spec.Init, when set; a new child becomes ready while the old one
// serves; the new one serves and the old one pauses, alive; after the probation
// Commit; the old one finishes its work and ends, its launch is fenced. When the
// new one never becomes ready, or ends, hangs or becomes unhealthy during its
// probation, or when Commit fails, the old one serves on; the error is the fault
// of a failed Start, a HealthCheckFailed "Formation crashed … after the switch",
// or Commit's. An old child that ends meanwhile is replaced by the restart policy
// until the new one is ready. The end of ctx gives the update up; after Commit
// it does nothing. So do Stop and Close.
//
// Update returns when the child that does not stay has ended. When nothing runs
// it is a Start with probation and Commit; after a failure the state is as
// before.
func (m *Manager) Update(ctx context.Context, spec Spec, o UpdateOptions) error {
	spec, err := spec.withDefaults()
	if err != nil {
		return err
	}
	if o.Progress == nil {
		o.Progress = noProgress
	}
	stops := m.asked()
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	ctx, end := m.updateContext(ctx, stops)
	defer end()
	ep, err := m.host(ctx, spec, stops)
	if err != nil {
		return err
	}
	c, err := m.ready(ctx, spec, o)
	if err != nil {
		giveUp(ep)
		return interrupted("update", err)
	}
	s := m.offer(ctx, ep, &update{ctx: ctx, c: c, o: o, stops: stops, answer: make(chan switched, 1)})
	if s.rest != nil {
		if s.err == nil {
			o.Progress(orName(o.Stopping, "stopping"), "the old process finishes open work", 0, 0)
		}
		<-s.rest.done
	}
	return s.err
}

func orName(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

// updateContext returns the update's own context, which Stop and Close end too:
// at once when they came since asked returned stops.
func (m *Manager) updateContext(ctx context.Context, stops int) (context.Context, func()) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(abandoned(ctx)) })
	m.mu.Lock()
	m.updating = cancel
	switch {
	case m.closed:
		cancel(errDetach)
	case m.stops != stops:
		cancel(errStop)
	}
	m.mu.Unlock()
	return own, func() {
		stop()
		m.mu.Lock()
		m.updating = nil
		m.mu.Unlock()
		cancel(nil)
	}
}

// host returns the episode that is to take the new child: the present one or,
// when nothing runs, one that waits for it.
func (m *Manager) host(ctx context.Context, spec Spec, stops int) (*episode, error) {
	if cause := context.Cause(ctx); cause != nil {
		return nil, interrupted("update", cause)
	}
	m.mu.Lock()
	ep, before := m.ep, m.snap.Status
	m.mu.Unlock()
	if ep != nil && ep.socket != spec.Socket {
		return nil, fault.Errorf(fault.Internal, "", "update %s: another socket was given than the formation's", spec.ID)
	}
	if ep != nil && !ep.over() {
		return ep, nil
	}
	ep = newEpisode(ctx, spec, nil)
	ep.waiting = true
	if err := m.enter(ep, stops); err != nil {
		return nil, interrupted("update", err)
	}
	m.set(func(s *Snapshot) { s.Status = StatusStarting })
	go m.waitForUpdate(ep, before)
	return ep, nil
}

// giveUp ends an episode that waits for an update; nil is none.
func giveUp(ep *episode) {
	if ep != nil && ep.waiting {
		ep.cancel(errAbandon)
		<-ep.done
	}
}

// waitForUpdate is the owner's goroutine of an episode without a child.
func (m *Manager) waitForUpdate(ep *episode, before Status) {
	defer close(ep.done)
	defer ep.cancel(nil)
	select {
	case <-ep.ctx.Done():
	case u := <-ep.updates:
		if w, _ := m.swap(ep, nil, Exit{}, u); w != nil {
			m.keepUp(ep, w)
			return
		}
	}
	m.settle(before)
	if before == StatusCrashed {
		m.outage.now()
		return
	}
	m.outage.end()
	if err := ep.socket.Shutdown(); err != nil {
		m.log.Warn().Err(err).Msg("cannot close the formation's port")
	}
}

// ready runs init and brings a new child to the point where it could serve.
func (m *Manager) ready(ctx context.Context, spec Spec, o UpdateOptions) (*child, error) {
	progress := func(stage, message string, attempt, attempts int) {
		if stage == stageSpawning {
			stage = orName(o.Spawning, stage)
		}
		o.Progress(stage, message, attempt, attempts)
	}
	if err := m.runInit(ctx, spec, progress); err != nil {
		return nil, err
	}
	return m.prove(ctx, spec, progress)
}

// offer gives the ready child to the owner and waits for the answer. An owner
// that has given its own child up meanwhile is followed by one that waits.
func (m *Manager) offer(ctx context.Context, ep *episode, u *update) switched {
	for {
		var err error
		select {
		case ep.updates <- u:
			s := <-u.answer
			if ep.waiting && s.err != nil {
				<-ep.done // until then it is not as before
			}
			ep.waiting = false // what has begun to serve is no longer ours to give up
			return s
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-ep.done:
			if err = context.Cause(ctx); err == nil {
				ep, err = m.host(ctx, u.c.spec, u.stops)
			}
		}
		if err != nil {
			giveUp(ep)
			m.discard(u.c, err)
			return switched{err: interrupted("update", err)}
		}
	}
}

// discard kills a child that is not wanted any more; it never served.
func (m *Manager) discard(c *child, why error) {
	m.killFor(c, why.Error())
	m.ended(c, "")
}

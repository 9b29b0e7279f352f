package process

import (
	"context"
	"errors"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/ports"
)

// Why an episode is ended from outside; the causes of its context.
var (
	errStop    = errors.New("the formation is being stopped")
	errRestart = errors.New("the formation is being restarted")
	errDetach  = errors.New("the supervisor is ending")
	errAbandon = errors.New("it was given up")
)

// abandoned is why an operation ends whose ctx has ended: the caller's own fault,
// when that is the cause.
func abandoned(ctx context.Context) error {
	if f, ok := errors.AsType[*fault.Error](context.Cause(ctx)); ok {
		return f
	}
	return errAbandon
}

// episode is one stretch of supervision, from a Start or Adopt to the end of the
// last child. Its goroutine owns the serving child and, during an update, the
// one that stands by; others only cancel ctx, offer an update, and wait.
type episode struct {
	id     string
	socket *ports.Socket
	// spec is what is launched when the child ends, history the failures that
	// count; both are the owner's.
	spec    Spec
	history []Exit

	ctx      context.Context //nolint:containedctx // its end is the way to tell the owner goroutine
	cancel   context.CancelCauseFunc
	progress Progress
	updates  chan *update // an offered update; taken while the owner has nothing else to do
	began    chan error   // capacity 1: how the first launch ended
	done     chan struct{}
	waiting  bool // for the child of an update, which owns this: there is nothing to launch before
}

func newEpisode(ctx context.Context, spec Spec, progress Progress) *episode {
	if progress == nil {
		progress = noProgress
	}
	ep := &episode{
		id: spec.ID, socket: spec.Socket, spec: spec, progress: progress,
		updates: make(chan *update), began: make(chan error, 1), done: make(chan struct{}),
	}
	ep.ctx, ep.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return ep
}

func noProgress(string, string, int, int) {}

// over tells whether the owner goroutine has ended.
func (ep *episode) over() bool {
	select {
	case <-ep.done:
		return true
	default:
		return false
	}
}

// own is the owner's goroutine of a start: init, the first launch, then the
// keeping up.
func (m *Manager) own(ep *episode) {
	defer close(ep.done)
	defer ep.cancel(nil)
	m.set(func(s *Snapshot) { s.Status = StatusStarting })
	err := m.runInit(ep.ctx, ep.spec, ep.progress)
	var c *child
	if err == nil {
		c, err = m.launch(ep.ctx, ep.spec, ep.progress)
	}
	if err != nil {
		m.endedBeforeServing(err)
		ep.began <- interrupted("start", err)
		return
	}
	m.serving(c)
	m.notify(Event{Kind: EventRunning})
	ep.began <- nil
	m.keepUp(ep, m.attend(ep.ctx, c))
}

// interrupted gives the end of an operation from outside its meaning for a
// client, and the failure of a launch its fault.
func interrupted(operation string, err error) error {
	if l, ok := errors.AsType[*launchError](err); ok {
		return l.fault
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f // the caller's own word for the end of its context
	}
	return fault.Wrap(fault.Canceled, "", "the "+operation+" was interrupted: "+err.Error(), err)
}

// endedBeforeServing settles the state after a launch that failed and is not
// tried again.
func (m *Manager) endedBeforeServing(err error) {
	if l, ok := errors.AsType[*launchError](err); ok {
		m.crashed(l.exit)
		return
	}
	if !errors.Is(err, errDetach) {
		m.settle(StatusStopped)
	}
}

// keepUp watches the serving child, replaces it when it ends, and takes updates,
// until the episode is ended or the policy gives up.
func (m *Manager) keepUp(ep *episode, w *watcher) {
	m.fenceDead(ep.ctx)
	var exit Exit // why there is no child, when w is nil
	for {
		if w == nil {
			var u *update
			w, u = m.replace(ep, &exit)
			switch {
			case u != nil:
				w, exit = m.swap(ep, w, exit, u)
			case w == nil:
				return
			}
			continue
		}
		select {
		case <-ep.ctx.Done():
			m.finish(ep, w)
			return
		case e := <-w.ended:
			exit = e.exit
			m.lost(w.c, e)
			w = nil
		case u := <-ep.updates:
			w, exit = m.swap(ep, w, exit, u)
		}
	}
}

// lost records that the serving child ended unasked; from now on clients wait.
func (m *Manager) lost(c *child, e ending) {
	m.outage.begin()
	m.logEnd(c, e.exit).Msg("the child has ended")
	m.gone(e.exit, StatusRestarting)
	m.notify(Event{Kind: e.kind, Exit: e.exit})
}

// replace launches children until one serves, or until an update that brings one
// is offered. It returns neither when the policy gave up or the episode was
// ended, and the state says which. exit is the last failure, before and after.
func (m *Manager) replace(ep *episode, exit *Exit) (*watcher, *update) {
	for {
		if cause := context.Cause(ep.ctx); cause != nil {
			m.endedBeforeServing(cause)
			return nil, nil
		}
		delay, giveUp := m.policy.Next(ep.history, *exit, m.cfg.Rand())
		if giveUp {
			m.log.Error().Int("failures", m.policy.Max).Stringer("window", m.policy.Window).
				Msg("too many failures: no further restart")
			m.crashed(*exit)
			return nil, nil
		}
		ep.history = append(ep.history, *exit)
		if over := len(ep.history) - m.policy.Max - 1; over > 0 {
			ep.history = ep.history[over:]
		}
		m.set(func(s *Snapshot) { s.Status = StatusRestarting; s.RestartCount++ })
		m.notify(Event{Kind: EventRestarting, Delay: delay, Exit: *exit})
		c, u, err := m.relaunch(ep, delay)
		if err == nil {
			return m.replaced(ep, c), u
		}
		l, ok := errors.AsType[*launchError](err)
		if !ok {
			m.endedBeforeServing(err)
			return nil, nil
		}
		*exit = l.exit
		m.gone(*exit, StatusRestarting)
	}
}

// replaced follows the new child, if there is one.
func (m *Manager) replaced(ep *episode, c *child) *watcher {
	if c == nil {
		return nil
	}
	m.serving(c)
	m.notify(Event{Kind: EventRunning})
	m.fenceDead(ep.ctx)
	return m.attend(ep.ctx, c)
}

// errOvertaken ends the launch of a child when an update brings a ready one.
var errOvertaken = errors.New("an update brings a child")

// relaunch launches a child after delay. An update that is offered meanwhile
// ends the launch, unless that was quicker: its child is ready already.
func (m *Manager) relaunch(ep *episode, delay time.Duration) (*child, *update, error) {
	ctx, cancel := context.WithCancelCause(ep.ctx)
	defer cancel(nil)
	var c *child
	ended := make(chan error, 1)
	go func() {
		err := wait(ctx, delay)
		if err == nil {
			c, err = m.launch(ctx, ep.spec, noProgress)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return c, nil, err
	case u := <-ep.updates:
		cancel(errOvertaken)
		if err := <-ended; err != nil {
			c = nil // overtaken, or it failed just before
		}
		return c, u, nil
	}
}

// wait returns nil after d, or the cause of ctx's end.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return context.Cause(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// finish ends the episode of a living child.
func (m *Manager) finish(ep *episode, w *watcher) {
	w.stop()
	cause := context.Cause(ep.ctx)
	e, over := w.over()
	if errors.Is(cause, errDetach) {
		if !over {
			m.leave(w.c)
		}
		return
	}
	m.set(func(s *Snapshot) { s.Status = StatusStopping })
	restart := errors.Is(cause, errRestart)
	if restart {
		m.outage.begin()
	}
	if !over {
		e.exit = m.retire(context.WithoutCancel(ep.ctx), w.c, retirement{closeSocket: !restart}).exit
	}
	m.gone(e.exit, StatusStopped)
	m.notify(Event{Kind: EventStopped, Exit: e.exit})
}

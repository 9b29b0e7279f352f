package process

import (
	"context"
	"errors"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// Why an episode is ended from outside; the causes of its context.
var (
	errStop    = errors.New("the formation is being stopped")
	errRestart = errors.New("the formation is being restarted")
	errDetach  = errors.New("the supervisor is ending")
	errAbandon = errors.New("the start was given up")
)

// episode is one stretch of supervision, from a Start or Adopt to the end of the
// last child. Its goroutine owns the child; others only cancel ctx and wait.
type episode struct {
	spec     Spec
	ctx      context.Context //nolint:containedctx // its end is the way to tell the owner goroutine
	cancel   context.CancelCauseFunc
	progress Progress
	began    chan error // capacity 1: how the first launch ended
	done     chan struct{}
}

func newEpisode(ctx context.Context, spec Spec, progress Progress) *episode {
	if progress == nil {
		progress = func(string, string, int, int) {}
	}
	ep := &episode{spec: spec, progress: progress, began: make(chan error, 1), done: make(chan struct{})}
	ep.ctx, ep.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return ep
}

// own is the owner's goroutine of a start: the first launch, then the keeping up.
func (m *Manager) own(ep *episode) {
	defer close(ep.done)
	defer ep.cancel(nil)
	m.set(func(s *Snapshot) { s.Status = StatusStarting })
	c, err := m.launch(ep.ctx, ep.spec, ep.progress)
	if err != nil {
		m.endedBeforeServing(err)
		ep.began <- startError(err)
		return
	}
	m.serving(c, EventRunning)
	ep.began <- nil
	m.keepUp(ep, c)
}

// startError gives the end of an episode from outside its meaning for a client.
func startError(err error) error {
	if l, ok := errors.AsType[*launchError](err); ok {
		return l.fault
	}
	return fault.Wrap(fault.Canceled, "", "the start was interrupted: "+err.Error(), err)
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

// keepUp watches a serving child and replaces it until the episode is ended or
// the policy gives up.
func (m *Manager) keepUp(ep *episode, c *child) {
	var history []Exit
	for c != nil {
		exit, cause := m.watch(ep, c)
		if cause != nil {
			m.finish(ep, c, cause)
			return
		}
		c = m.replace(ep, &history, exit)
	}
}

// watch returns when the child has ended by itself or was killed for hanging
// (exit), or when the episode is to end (cause).
func (m *Manager) watch(ep *episode, c *child) (exit Exit, cause error) {
	hung := make(chan struct{})
	stopHealth := m.watchHealth(ep.ctx, c, hung)
	defer stopHealth()
	asked, kind := "", EventExited
	select {
	case <-ep.ctx.Done():
		return Exit{}, context.Cause(ep.ctx)
	case <-c.proc.exited:
	case <-hung:
		asked = "hang: no heartbeat for " + (m.cfg.HealthInterval + m.cfg.HealthTimeout).String()
		kind = EventHung
		if err := c.kill(); err != nil {
			m.log.Error().Err(err).Int("pid", c.proc.pid).Msg("cannot kill a child that hangs")
		}
	}
	stopHealth()
	m.outage.begin()
	exit = exitOf(c, asked, m.now())
	c.release()
	m.log.Error().Int("pid", c.proc.pid).Str("launch", c.rec.LaunchID).Str("exit", exit.Reason).
		Strs("stderr", exit.Stderr).Msg("the child has ended")
	m.gone(exit, StatusRestarting)
	m.notify(Event{Kind: kind, Exit: exit})
	return exit, nil
}

// replace launches children until one serves, or returns nil: the policy gave
// up or the episode was ended, and the state says which.
func (m *Manager) replace(ep *episode, history *[]Exit, exit Exit) *child {
	for {
		delay, giveUp := m.policy.Next(*history, exit, m.cfg.Rand())
		if giveUp {
			m.log.Error().Int("failures", m.policy.Max).Stringer("window", m.policy.Window).
				Msg("too many failures: no further restart")
			m.crashed(exit)
			return nil
		}
		*history = append(*history, exit)
		if over := len(*history) - m.policy.Max - 1; over > 0 {
			*history = (*history)[over:]
		}
		m.set(func(s *Snapshot) { s.Status = StatusRestarting; s.RestartCount++ })
		m.notify(Event{Kind: EventRestarting, Delay: delay, Exit: exit})
		err := wait(ep.ctx, delay)
		if err == nil {
			var c *child
			if c, err = m.launch(ep.ctx, ep.spec, func(string, string, int, int) {}); err == nil {
				m.serving(c, EventRunning)
				return c
			}
		}
		l, ok := errors.AsType[*launchError](err)
		if !ok {
			if !errors.Is(err, errDetach) {
				m.settle(StatusStopped)
			}
			return nil
		}
		exit = l.exit
		m.gone(exit, StatusRestarting)
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

// finish ends the episode of a living child for the reason given.
func (m *Manager) finish(ep *episode, c *child, cause error) {
	if errors.Is(cause, errDetach) {
		c.detach()
		return
	}
	m.set(func(s *Snapshot) { s.Status = StatusStopping })
	restart := errors.Is(cause, errRestart)
	if restart {
		m.outage.begin()
	}
	exit := m.retire(ep.ctx, c, !restart)
	m.gone(exit, StatusStopped)
	m.notify(Event{Kind: EventStopped, Exit: exit})
}

package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// probationInterval is the time between two questions during a probation, at most.
const probationInterval = time.Second

// swap is the owner's part of an update: from the offer of a ready child to the
// decision which of the two stays. It watches both.
type swap struct {
	m  *Manager
	ep *episode
	u  *update
	// old and next are nil when that child is no longer there.
	old, next *watcher
	// exit is how the last child ended that ended unasked: what the restart policy
	// goes on from when neither is left.
	exit  Exit
	began time.Time
	// oldExit is how the old child ended that ended unasked; nil when it did not.
	oldExit *Exit
}

// swap takes an offered update and returns the child that serves afterwards,
// watched; nil when there is none, for the reason in the Exit. old is nil and
// exit says why when the update comes while no child serves.
func (m *Manager) swap(ep *episode, old *watcher, exit Exit, u *update) (*watcher, Exit) {
	s := &swap{m: m, ep: ep, u: u, old: old, exit: exit, began: m.now()}
	if err := s.change(); err != nil {
		u.answer <- switched{err: interrupted("update", err)}
		return s.old, s.exit
	}
	err := s.probation()
	if err == nil {
		err = s.commit()
	}
	if err != nil {
		s.back(err)
		return s.old, s.exit
	}
	s.forth()
	return s.next, s.exit
}

// change lets the new child accept, and only then the old one pause, so that at
// no moment nobody accepts.
func (s *swap) change() error {
	m, c := s.m, s.u.c
	ctx, cancel := context.WithTimeoutCause(s.u.ctx, switchTimeout, errNotReady)
	defer cancel()
	s.report("switching to the new process")
	if err := c.conn.Serve(ctx); err != nil {
		return m.notReady(ctx, c, err)
	}
	c.serving = m.now()
	s.began = c.serving
	m.serving(c)
	s.next = m.attend(s.ep.ctx, c)
	if s.old != nil {
		m.pause(s.u.ctx, s.old.c)
	}
	m.notify(Event{Kind: EventRunning})
	return nil
}

// report tells how far the probation is, in seconds.
func (s *swap) report(message string) {
	all := int((s.u.o.Probation + time.Second - 1) / time.Second)
	s.u.o.Progress("swapping", message, min(int(s.m.now().Sub(s.began)/time.Second), all), all)
}

// probation watches both children for its time. It returns why the new one
// failed, or what ended the update from outside.
func (s *swap) probation() error {
	if s.u.o.Probation <= 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(s.u.ctx)
	verdict, c := make(chan error, 1), s.next.c
	var examining sync.WaitGroup
	examining.Go(func() { verdict <- s.m.examine(ctx, c, s.u.o.Probation) })
	defer examining.Wait()
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-verdict:
			return s.judged(err)
		case e := <-s.next.ended:
			return s.fell(e)
		case e := <-endedOf(s.old):
			s.oldFell(e)
		case <-tick.C:
			s.report("the new process is on probation")
		}
	}
}

// examine asks c for its health until the time is over and returns why it failed,
// or nil; its last answer came after the end of the time.
func (m *Manager) examine(ctx context.Context, c *child, d time.Duration) error {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(min(m.cfg.HealthInterval, probationInterval))
	defer tick.Stop()
	over := false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			over = true
		case <-tick.C:
		}
		h, err := askHealth(ctx, c.conn, m.cfg.HealthTimeout)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, control.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
			return &unwell{hangs: true, why: fmt.Sprintf("it did not answer for %s", m.cfg.HealthTimeout)}
		case err != nil:
			return &unwell{why: "it does not tell its health: " + err.Error()}
		case !h.Ready:
			return &unwell{why: strings.TrimSuffix("it is not ready any more: "+h.Message, ": ")}
		case over:
			return nil
		}
	}
}

// unwell is why a living child failed its probation.
type unwell struct {
	why   string
	hangs bool
}

func (u *unwell) Error() string { return u.why }

// judged turns the verdict on the new child into the update's. One that hangs is
// killed.
func (s *swap) judged(err error) error {
	var u *unwell
	if !errors.As(err, &u) {
		if e, over := s.next.over(); err == nil && over {
			return s.fell(e)
		}
		return err
	}
	if !u.hangs {
		return s.failed("Formation became unhealthy %s after the switch: "+u.why, nil)
	}
	if !s.next.c.proc.awaitDeath(deathWait) { // the connection of a dying child breaks first
		s.m.killFor(s.next.c, "hang: "+u.why)
	}
	return s.fell(s.m.await(s.next))
}

// fell records that the new child ended and returns the update's failure.
func (s *swap) fell(e ending) error {
	s.m.logEnd(s.next.c, e.exit).Msg("the new child of an update has ended")
	s.m.toFence(s.next.c)
	s.next.stop()
	s.next, s.exit = nil, e.exit
	return s.failed("Formation crashed %s after the switch: "+e.exit.Reason, e.exit.Stderr)
}

// failed makes the update's fault; its text begins with format, which takes the
// time since the switch.
func (s *swap) failed(format string, stderr []string) error {
	after := s.m.now().Sub(s.began).Round(time.Millisecond)
	before, rest, _ := strings.Cut(format, "%s")
	return fault.New(s.u.c.spec.NotReady, "HealthCheckFailed",
		withTail(before+after.String()+rest, strings.Join(stderr, "\n")))
}

// oldFell records that the old child ended while it stood by. The new one serves,
// so nothing else happens.
func (s *swap) oldFell(e ending) {
	s.m.logEnd(s.old.c, e.exit).Msg("the child that stood by during an update has ended")
	s.m.toFence(s.old.c)
	s.old.stop()
	s.old, s.exit, s.oldExit = nil, e.exit, &e.exit
}

// commit asks the owner to keep the new version. What came before is the last
// moment to give the update up.
func (s *swap) commit() error {
	if err := context.Cause(s.u.ctx); err != nil {
		return err
	}
	if s.u.o.Commit == nil {
		return nil
	}
	return s.u.o.Commit(context.WithoutCancel(s.u.ctx))
}

// forth keeps the new child; the old one finishes its work beside it.
func (s *swap) forth() {
	m := s.m
	s.ep.spec, s.ep.history = s.u.c.spec, nil
	m.notify(Event{Kind: EventUpdated})
	if s.oldExit != nil {
		s.toldEnd(*s.oldExit)
	}
	rest := s.aside(&s.old, true)
	if rest == nil {
		m.fenceDead(s.ep.ctx)
	}
	s.u.answer <- switched{rest: rest}
}

// back brings the old child back, before the new one stops accepting. Without an
// old child the restart policy launches one.
func (s *swap) back(err error) {
	m := s.m
	if s.ep.ctx.Err() != nil { // a stop ends both, the supervisor's end lets go of both
		if s.next != nil {
			s.aside(&s.old, true)
			s.old = s.next
		}
		s.u.answer <- switched{err: s.ended(err)}
		return
	}
	failed, died, fell := s.exit, s.next == nil, s.oldExit
	if !died {
		failed = Exit{
			Time: m.now(), Code: -1, Reason: err.Error(), Served: m.now().Sub(s.began), Launch: s.u.c.rec.LaunchID,
		}
	}
	s.serveAgain()
	if s.old != nil {
		m.serving(s.old.c)
		if died {
			m.set(func(snap *Snapshot) { snap.LastExit = &failed })
		} else {
			m.pause(s.ep.ctx, s.next.c)
		}
		m.notify(Event{Kind: EventRolledBack, Exit: failed})
	} else {
		// The restart policy goes on from the end that came last, and tells it.
		other := failed
		if died && fell != nil {
			other = *fell
		}
		m.notify(Event{Kind: EventReplaced, Exit: other})
		m.outage.begin()
		m.gone(s.exit, StatusRestarting)
	}
	rest := s.aside(&s.next, false)
	if rest == nil {
		m.fenceDead(s.ep.ctx)
	}
	s.u.answer <- switched{err: s.ended(err), rest: rest}
}

// serveAgain lets the old child accept again; one that does not is killed.
func (s *swap) serveAgain() {
	if s.old == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ep.ctx), switchTimeout)
	defer cancel()
	err := s.old.c.conn.Serve(ctx)
	if err == nil {
		return
	}
	s.m.log.Error().Err(err).Str("launch", s.old.c.rec.LaunchID).Msg("the old child of an update does not serve again")
	// The connection of a dying child breaks first.
	if !errors.Is(err, control.ErrNoAnswer) || !s.old.c.proc.awaitDeath(deathWait) {
		s.m.killFor(s.old.c, "it did not serve again after an update failed")
	}
	s.oldFell(s.m.await(s.old))
}

// toldEnd tells how the old child ended that another one has replaced.
func (s *swap) toldEnd(exit Exit) {
	exit.Reason = replaced + ", it had ended by itself: " + exit.Reason
	s.m.notify(Event{Kind: EventReplaced, Exit: exit})
}

// aside ends a watched child beside the other and empties *w; tell says that an
// event tells of its end. It returns nil when the child has ended already.
func (s *swap) aside(w **watcher, tell bool) *aside {
	v := *w
	if v == nil {
		return nil
	}
	*w = nil
	v.stop()
	e, over := v.over()
	if !over && v.c.proc.over() { // it ended as the watching did
		e, over = s.m.await(v), true
	}
	if over {
		s.m.logEnd(v.c, e.exit).Msg("a child that was to be ended has ended by itself")
		if tell {
			s.toldEnd(e.exit)
		}
		s.m.toFence(v.c)
		return nil
	}
	return s.m.setAside(s.ep.ctx, v.c, tell)
}

// ended is the update's error: an end from outside becomes a fault, those of the
// new child and of the owner stay.
func (s *swap) ended(err error) error {
	if cause := context.Cause(s.u.ctx); cause != nil && errors.Is(err, cause) {
		return interrupted("update", err)
	}
	return err
}

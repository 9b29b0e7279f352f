package turn

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// backgroundTurns is how many background turns run at once; the queue of jobs
// lets as many more run in the process that works it.
const backgroundTurns = 16

// maxAttempts is how often a turn may be cut by the death of its process
// before it is given up: a turn that kills the process must not do so forever.
const maxAttempts = 5

// admit waits until a turn may run: until recovered turns may, until it is the
// session's turn, and, in the background, until there is a place. A place is
// taken last, so that none is held by a turn that waits for another.
func (s *Service) admit(t *live) (release func(), err error) {
	if t.resumed {
		select {
		case <-s.opened:
		case <-t.ctx.Done():
			return nil, context.Cause(t.ctx)
		}
	}
	if t.rivals && !t.fresh {
		if err := s.waitRivals(t); err != nil {
			return nil, err
		}
		t.queued = s.sessions.join(t.rec.UserID, t.rec.SessionID)
	}
	if t.queued != nil {
		if err := t.queued.wait(t.ctx); err != nil {
			return nil, err
		}
	}
	leave, err := s.place(t)
	if err == nil && t.resumed {
		if err = s.again(t); err != nil {
			leave()
		}
	}
	if err != nil {
		return nil, err
	}
	t.begun.Store(true)
	return leave, nil
}

// queue gives a turn that is about to be run its place in its session, in the
// order of the calls. A session made for the request has no past and no rival,
// and one with rivals in another process is joined when they are gone: waiting
// for them in the queue could be waiting for who waits here.
func (s *Service) queue(t *live) {
	if !t.fresh && !t.rivals {
		t.queued = s.sessions.join(t.rec.UserID, t.rec.SessionID)
	}
}

// place waits for one of the background's places, or for the turn's job, which
// brings its own.
func (s *Service) place(t *live) (leave func(), err error) {
	if t.rec.Mode != request.ModeAsync && !t.resumed {
		return func() {}, nil
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-t.permit:
		return func() {}, nil
	case <-t.ctx.Done():
		return nil, context.Cause(t.ctx)
	}
}

// again counts another attempt at a recovered turn, and gives it up after too
// many.
func (s *Service) again(t *live) error {
	ok := false
	err := s.cfg.DB.Write(t.ctx, func(tx *store.Tx) (err error) {
		t.rec.Attempt, ok, err = request.Retry(tx, t.rec.ID, s.cfg.DB.LaunchID())
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("resume: %w", err)
	case !ok: // another process cancelled it while it waited here
		t.cancel(errCancelled)
		return errCancelled
	case t.rec.Attempt <= maxAttempts:
		t.span.Set("attempt", t.rec.Attempt)
		return nil
	}
	f := fault.Errorf(fault.Failed, "", "the turn was interrupted %d times by the end of its process and is given up", t.rec.Attempt-1)
	if s.cfg.Alert != nil {
		s.cfg.Alert(context.WithoutCancel(t.ctx), Alert{Action: "turn.given_up", Message: "request " + t.rec.ID + ": " + f.Message})
	}
	return f
}

// RunJob gives a turn that waits for a place in the background one more, for
// as long as it runs. A turn that another process has in hand, that runs or has
// ended, needs its job no more: should its process die, Recover finds it.
func (s *Service) RunJob(ctx context.Context, requestID string) error {
	t := s.find(requestID)
	if t == nil {
		return nil
	}
	select {
	case t.permit <- struct{}{}:
	default:
		return nil
	}
	select {
	case <-t.done:
	case <-ctx.Done(): // the turn goes on
	}
	return nil
}

// Recover takes in hand what fenced launches left open: each request gets a
// live turn, so that callers find it. The turns go on once Open was called. It
// returns how many there were.
func (s *Service) Recover(ctx context.Context) (int, error) {
	orphans, err := request.Orphans(ctx, s.cfg.DB)
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range orphans {
		claimed, err := s.adopt(ctx, orphans[i])
		if err != nil {
			return n, err
		}
		if claimed {
			n++
		}
	}
	return n, nil
}

// adopt makes a live turn of an orphan, unless a sibling is faster. What is
// read before the claim can't change: its writer is fenced.
func (s *Service) adopt(ctx context.Context, rec request.Record) (claimed bool, err error) {
	rec.LaunchID = s.cfg.DB.LaunchID()
	steps, err := request.Steps(ctx, s.cfg.DB, rec.ID)
	if err != nil {
		return false, err
	}
	var frames []Frame
	if rec.Mode == request.ModeStream {
		if frames, err = request.Frames(ctx, s.cfg.DB, rec.ID, 0); err != nil {
			return false, err
		}
	}
	t := s.newLive(rec, "")
	t.resumed, t.rivals, t.steps = true, s.cfg.DB.Siblings(), steps
	t.journalled.Store(len(steps) > 0)
	if rec.Mode == request.ModeStream {
		t.stream = newStream(s, &t.rec)
		t.stream.resume(frames)
	}
	err = s.cfg.DB.Write(ctx, func(tx *store.Tx) (err error) {
		if claimed, err = request.Claim(tx, rec.ID, rec.LaunchID); claimed && err == nil {
			s.enter(t) // before anybody can see that it is ours
		}
		return err
	})
	if err != nil || !claimed {
		s.leave(t)
		t.discard()
		return false, err
	}
	s.queue(t)
	go roomy(func() { s.run(t) })
	return true, nil
}

// Open lets recovered turns go on.
func (s *Service) Open() { s.openOnce.Do(func() { close(s.opened) }) }

func isStopping(err error) bool { return errors.Is(err, ErrStopping) }

package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// The kinds of cancellation: a waiting turn ends at once, a running one at its
// next step.
const (
	Immediate   = "immediate"
	Cooperative = "cooperative"
)

// Cancel ends a request for good: the record says cancelled when it returns.
// Cancelling twice is no fault. Faults: NOT_FOUND, FORBIDDEN, and
// OPERATION_FAILED when the request has completed or failed.
func (s *Service) Cancel(ctx context.Context, userID, requestID string, admin bool) (string, error) {
	if _, err := s.record(ctx, userID, requestID, admin); err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return "", fault.Errorf(fault.NotFound, "NOT_FOUND", "no request with id %q", requestID)
		}
		return "", err
	}
	if t := s.find(requestID); t != nil {
		return s.cancelTurn(ctx, t)
	}
	rec, err := request.Get(ctx, s.cfg.DB, requestID)
	if err != nil {
		return "", err
	}
	return Cooperative, alreadyEnded(rec)
}

func alreadyEnded(rec *request.Record) error {
	if rec.Status == request.Cancelled {
		return nil
	}
	return fault.Errorf(fault.Invalid, "OPERATION_FAILED", "request %s is %s and can't be cancelled", rec.ID, rec.Status)
}

func (s *Service) cancelTurn(ctx context.Context, t *live) (string, error) {
	var ended bool
	err := s.cfg.DB.Write(ctx, func(tx *store.Tx) (err error) {
		ended, err = request.Finish(tx, request.End{ID: t.rec.ID, Status: request.Cancelled, At: s.cfg.DB.Now()})
		return err
	})
	if err != nil {
		return "", err
	}
	if !ended {
		rec, err := request.Get(ctx, s.cfg.DB, t.rec.ID)
		if err != nil {
			return "", err
		}
		return Cooperative, alreadyEnded(rec)
	}
	t.cancel(errCancelled)
	if t.started.CompareAndSwap(false, true) {
		// Nobody runs it yet, so nobody would end it.
		go s.run(t)
		return Immediate, nil
	}
	return Cooperative, nil
}

// Recover takes in hand what dead launches left open: each request gets a live
// turn, so that callers find it, and a job that resumes it. It runs before the
// formation accepts connections.
func (s *Service) Recover(ctx context.Context) (int, error) {
	orphans, err := request.Orphans(ctx, s.cfg.DB)
	if err != nil || len(orphans) == 0 {
		return 0, err
	}
	for i := range orphans {
		t := s.newLive(orphans[i])
		if t.steps, err = request.Steps(ctx, s.cfg.DB, t.rec.ID); err != nil {
			return 0, err
		}
		t.journalled.Store(len(t.steps) > 0)
		if t.rec.Mode == request.ModeStream {
			frames, err := request.Frames(ctx, s.cfg.DB, t.rec.ID, 0)
			if err != nil {
				return 0, err
			}
			t.stream = newStream(s, &t.rec)
			t.stream.resume(frames)
		}
		s.enter(t)
	}
	return len(orphans), s.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		for i := range orphans {
			if err := s.cfg.Jobs.EnqueueTx(ctx, tx, JobKind, orphans[i].ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// RunJob runs the turn of a request, as a background job, and returns when it
// has ended; an error means that it is to be tried again. A turn that has begun
// otherwise needs its job no more: should this process die, Recover makes
// another.
func (s *Service) RunJob(ctx context.Context, requestID string) error {
	t := s.find(requestID)
	if t == nil || !t.started.CompareAndSwap(false, true) {
		return nil
	}
	if err := s.resume(ctx, t); err != nil {
		t.started.Store(false)
		return err
	}
	select {
	case <-t.done:
		if t.err != nil && isStopping(t.err) {
			return t.err
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// resume runs a waiting turn; one of a dead launch is claimed first.
func (s *Service) resume(ctx context.Context, t *live) error {
	if t.rec.LaunchID == s.cfg.DB.LaunchID() {
		go s.run(t)
		return nil
	}
	var claimed bool
	err := s.cfg.DB.Write(ctx, func(tx *store.Tx) (err error) {
		t.rec.Attempt, claimed, err = request.Claim(tx, t.rec.ID, s.cfg.DB.LaunchID())
		return err
	})
	if err != nil {
		return fmt.Errorf("claim request %s: %w", t.rec.ID, err)
	}
	if !claimed {
		return fmt.Errorf("claim request %s: it has ended or another live process has it", t.rec.ID)
	}
	t.rec.LaunchID = s.cfg.DB.LaunchID()
	if t.rec.Attempt <= maxAttempts {
		go s.run(t)
		return nil
	}
	go func() {
		defer s.leave(t)
		f := fault.Errorf(fault.Failed, "", "the turn was interrupted %d times by the end of its process and is given up", t.rec.Attempt-1)
		s.end(t, chat.Answer{}, f)
		if s.cfg.Alert != nil {
			s.cfg.Alert(context.WithoutCancel(t.ctx), Alert{Action: "turn.given_up", Message: "request " + t.rec.ID + ": " + f.Message})
		}
	}()
	return nil
}

func isStopping(err error) bool { return errors.Is(err, ErrStopping) }

// Drain waits until no turn is open or ctx ends, and returns how many are left.
func (s *Service) Drain(ctx context.Context) int {
	select {
	case <-s.whenIdle():
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

// Stop cuts the turns that are open, which resume in a later process, and
// waits until each has let go of the store.
func (s *Service) Stop() {
	s.stop(ErrStopping)
	s.mu.Lock()
	waiting := make([]*live, 0, len(s.live))
	for _, t := range s.live {
		if t.started.CompareAndSwap(false, true) {
			waiting = append(waiting, t)
		}
	}
	s.mu.Unlock()
	for _, t := range waiting {
		s.end(t, chat.Answer{}, ErrStopping)
		s.leave(t)
	}
	<-s.whenIdle()
}

// purgeEvery is how often ended requests are looked through.
const purgeEvery = time.Hour

// Run removes what is older than async.result_ttl until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	ticker := time.NewTicker(purgeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			n, err := request.Purge(ctx, s.cfg.DB, s.cfg.DB.Now().Add(-s.cfg.Async.ResultTTL))
			if err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn().Err(err).Msg("purge ended requests")
			} else if n > 0 {
				s.cfg.Log.Info().Int("requests", n).Msg("purged ended requests")
			}
		}
	}
}

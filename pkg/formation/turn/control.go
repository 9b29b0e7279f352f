package turn

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
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
	rec, err := s.record(ctx, userID, requestID, admin)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return "", fault.Errorf(fault.NotFound, "NOT_FOUND", "no request with id %q", requestID)
		}
		return "", err
	}
	if t := s.find(requestID); t != nil {
		return s.cancelTurn(ctx, t)
	}
	return s.cancelElsewhere(ctx, rec)
}

// finishCancelled cancels an open request in the caller's commit. One that
// waits for its user takes the question back, and the others that wait for the
// same answer along.
func (s *Service) finishCancelled(tx *store.Tx, rec *request.Record) (ended bool, err error) {
	waits, err := request.Waits(tx, rec.ID)
	if err != nil {
		return false, err
	}
	end := request.End{ID: rec.ID, Status: request.Cancelled, At: s.cfg.DB.Now()}
	if ended, err = request.Finish(tx, end); err != nil || !waits {
		return ended, err
	}
	if err := request.Settle(tx, rec.UserID, rec.SessionID, end); err != nil {
		return false, err
	}
	return ended, s.cfg.Memory.Withdraw(tx, rec.UserID, rec.SessionID)
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
		ended, err = s.finishCancelled(tx, &t.rec)
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
	how := Cooperative
	if !t.begun.Load() {
		how = Immediate
	}
	t.cancel(errCancelled)
	return how, nil
}

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
	<-s.whenIdle()
	s.owed.Wait()
}

// Ended requests are looked through every so often, and first when the start is
// over: a process may not last until the second time.
const (
	purgeEvery = time.Hour
	firstPurge = time.Minute
)

// Purge removes what is older than async.result_ttl, now and then, until ctx ends.
func (s *Service) Purge(ctx context.Context) error {
	timer := time.NewTimer(firstPurge)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(purgeEvery)
			if err := s.lapse(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn().Err(err).Msg("end requests whose question nobody answers")
			}
			n, err := request.Purge(ctx, s.cfg.DB, s.cfg.DB.Now().Add(-s.cfg.Async.ResultTTL))
			if err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn().Err(err).Msg("purge ended requests")
			} else if n > 0 {
				s.cfg.Log.Info().Int("requests", n).Msg("purged ended requests")
			}
		}
	}
}

// lapse ends the requests that have waited for an answer for as long as a
// result is kept.
func (s *Service) lapse(ctx context.Context) error {
	now := s.cfg.DB.Now()
	return s.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		sessions, err := s.cfg.Memory.ExpireQuestions(tx, now.Add(-s.cfg.Async.ResultTTL))
		if err != nil {
			return err
		}
		for i := range sessions {
			if err := request.Settle(tx, sessions[i].UserID, sessions[i].ID, request.End{
				Status: request.Cancelled, Error: "the question was not answered in time", At: now,
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// During an update a turn may be in the hands of the other process on the same
// store. What is asked of it here is answered from the store, by looking again
// every so often; a turn that comes into this process's hands meanwhile is
// followed here from then on.
const (
	remoteLook = 50 * time.Millisecond
	// A cancelled turn's closing frames come a moment after its record says so,
	// from the process that has it. When they don't within this, it has died.
	closingGrace = 5 * time.Second
)

// look calls see now and every remoteLook until it reports true. The end of
// the process's turns is ErrStopping.
func (s *Service) look(ctx context.Context, see func() (bool, error)) error {
	ticker := time.NewTicker(remoteLook)
	defer ticker.Stop()
	for {
		if done, err := see(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.life.Done():
			return context.Cause(s.life)
		}
	}
}

// waitRivals waits until no older turn of the session is open in another
// process. Waiting is for lower request numbers only, so that no two wait for
// each other; within this process the session's lock does the rest.
func (s *Service) waitRivals(t *live) error {
	return s.look(t.ctx, func() (bool, error) {
		found, err := request.Rivals(t.ctx, s.cfg.DB, t.rec.ID)
		return !found, err
	})
}

// seek waits for a turn that this process has not in hand: until it has, or
// until the turn has ended. over may be nil.
func (h *Handle) seek(ctx context.Context, over <-chan time.Time) (rec *request.Record, err error) {
	passed := false
	err = h.service.look(ctx, func() (bool, error) {
		select {
		case <-over:
			passed = true
			return true, nil
		default:
		}
		if h.live = h.service.find(h.ID); h.live != nil {
			return true, nil
		}
		rec, err = request.Get(ctx, h.service.cfg.DB, h.ID)
		return err == nil && rec.Settled(), err
	})
	switch {
	case passed:
		return nil, ErrContinues
	case errors.Is(err, ErrStopping):
		return nil, errGoesOn()
	}
	return rec, err
}

// errGoesOn is the fault of a turn that was cut and resumes in another process.
func errGoesOn() error {
	return fault.Wrap(fault.Unavailable, "SERVICE_UNAVAILABLE",
		"the formation is stopping; the request goes on when it is back", ErrStopping)
}

// followStored emits the frames of a turn that this process has not in hand,
// as they are stored.
func (h *Handle) followStored(ctx context.Context, after uint64, emit func([]Frame) error) error {
	leave, err := h.join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	db, closed := h.service.cfg.DB, false
	err = h.service.look(ctx, func() (bool, error) {
		if h.live = h.service.find(h.ID); h.live != nil {
			return true, nil
		}
		// The record first: when it says ended, the frames that are read after
		// it are all there are.
		rec, err := request.Get(ctx, db, h.ID)
		if err != nil {
			return false, err
		}
		frames, err := request.Frames(ctx, db, h.ID, after)
		if err != nil {
			return false, err
		}
		if n := len(frames); n > 0 {
			after, closed = frames[n-1].ID, frames[n-1].Event == "done"
			if err := emit(frames); err != nil {
				return false, err
			}
		}
		return closed || (rec.Settled() && !unclosed(rec, db.Now())), nil
	})
	switch {
	case errors.Is(err, ErrStopping):
		h.cut = true
		return nil
	case err != nil || h.live == nil:
		return err
	}
	return h.live.stream.follow(ctx, after, emit)
}

// unclosed tells that an ended turn's last frames may still come. An end that
// lies ahead was noted before the clock was set back, and nobody waits for that.
func unclosed(rec *request.Record, now time.Time) bool {
	return rec.Status == request.Cancelled && now.Sub(*rec.CompletedAt).Abs() < closingGrace
}

// join notes a reader in the store when the turn would end without one.
func (h *Handle) join(ctx context.Context) (leave func(), err error) {
	s := h.service
	rec := h.rec
	if rec == nil {
		if rec, err = request.Get(ctx, s.cfg.DB, h.ID); err != nil {
			return nil, err
		}
	}
	if rec.Settled() || rec.OnDisconnect != onDisconnectCancel {
		return func() {}, nil
	}
	var sid int64
	if err := s.cfg.DB.Write(ctx, func(tx *store.Tx) (err error) {
		sid, err = request.Join(tx, h.ID)
		return err
	}); err != nil {
		return nil, err
	}
	return func() {
		if err := s.cfg.DB.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			return request.Part(tx, sid, h.ID, s.cfg.DB.LaunchID())
		}); err != nil {
			s.log(rec).Warn().Err(err).Msg("tell that a reader has left")
		}
	}, nil
}

// cancelElsewhere ends the record of a turn that another process has in hand,
// or had, and tells that process.
func (s *Service) cancelElsewhere(ctx context.Context, rec *request.Record) (string, error) {
	id := rec.ID
	var ended bool
	if err := s.cfg.DB.Write(ctx, func(tx *store.Tx) (err error) {
		ended, err = s.finishCancelled(tx, rec)
		if err != nil || !ended {
			return err
		}
		return request.Tell(tx, id, request.SignalCancel, s.cfg.DB.LaunchID())
	}); err != nil {
		return "", err
	}
	if t := s.find(id); t != nil && ended { // it came into our hands meanwhile
		t.cancel(errCancelled)
		return Cooperative, nil
	}
	if ended {
		return Cooperative, nil
	}
	now, err := request.Get(ctx, s.cfg.DB, id)
	if err != nil {
		return "", err
	}
	return Cooperative, alreadyEnded(now)
}

// Heed does what other processes signalled about turns in this one's hands. It
// is to be called often while siblings live.
func (s *Service) Heed(ctx context.Context) error {
	signals, err := request.Signals(ctx, s.cfg.DB, s.cfg.DB.LaunchID())
	if err != nil || len(signals) == 0 {
		return err
	}
	for i := range signals {
		t := s.find(signals[i].RequestID)
		switch {
		case t == nil:
		case signals[i].Kind == request.SignalCancel:
			t.cancel(errCancelled)
		case t.stream != nil:
			t.stream.checkReaders()
		}
	}
	if err := s.cfg.DB.Write(ctx, func(tx *store.Tx) error { return request.Heeded(tx, signals) }); err != nil {
		return fmt.Errorf("heed signals: %w", err)
	}
	return nil
}

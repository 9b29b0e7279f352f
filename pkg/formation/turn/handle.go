package turn

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
)

// Handle is a caller's view of a turn, running or ended.
type Handle struct {
	ID        string
	UserID    string
	SessionID string
	// Async tells that the turn was accepted for the background.
	Async bool
	// Replayed tells that an idempotency key named an earlier request.
	Replayed       bool
	IdempotencyKey string

	service   *Service
	threshold time.Duration
	live      *live           // nil while this process has not the turn in hand
	rec       *request.Record // set when the request existed before
	cut       bool            // the process stopped while another's turn was read
}

// Wait returns the reply of the turn or its fault. A turn that outlasts its
// threshold returns ErrContinues; the end of ctx leaves the turn running.
func (h *Handle) Wait(ctx context.Context) (*Reply, error) {
	var over <-chan time.Time
	if h.threshold > 0 && h.service.cfg.Async.EnableEstimation {
		timer := time.NewTimer(h.threshold)
		defer timer.Stop()
		over = timer.C
	}
	if h.live == nil {
		if h.rec != nil && h.rec.Settled() {
			return stored(h.rec)
		}
		if rec, err := h.seek(ctx, over); err != nil {
			return nil, err
		} else if h.live == nil {
			return stored(rec)
		}
	}
	select {
	case <-h.live.done:
		return h.live.reply, h.live.err
	case <-over:
		return nil, ErrContinues
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stored returns the reply from the record of an ended turn.
func stored(rec *request.Record) (*Reply, error) {
	switch rec.Status {
	case request.Failed:
		return nil, fault.New(kindOf(rec.ErrorCode), rec.ErrorCode, rec.Error)
	case request.Cancelled:
		return cancelledReply(*rec, *rec.CompletedAt), nil
	}
	return storedAnswer(rec)
}

// kindOf is the kind of fault that a stored code is of, as far as callers do
// something else about it than about a failed turn.
func kindOf(code string) fault.Kind {
	switch code {
	case "RATE_LIMITED", "BUDGET_EXCEEDED":
		return fault.RateLimited
	case "AGENT_NOT_FOUND":
		return fault.NotFound
	}
	return fault.Failed
}

// Frames emits the frames of a streaming turn after an id, in order, until the
// turn has ended, ctx ends or emit fails. The turn goes on either way, unless
// its on_disconnect says that it ends with its last reader.
func (h *Handle) Frames(ctx context.Context, after uint64, emit func([]Frame) error) error {
	if h.live != nil {
		if h.live.stream == nil {
			return errNotStreaming(h.ID)
		}
		return h.live.stream.follow(ctx, after, emit)
	}
	rec, err := request.Get(ctx, h.service.cfg.DB, h.ID)
	if err != nil {
		return err
	}
	if rec.Mode != request.ModeStream {
		return errNotStreaming(h.ID)
	}
	return h.followStored(ctx, after, emit)
}

// Stopped tells, after Frames has returned nil, whether the turn was cut by
// the end of this process: then no closing frame was sent, and the reader
// comes back later.
func (h *Handle) Stopped() bool {
	if h.live == nil {
		return h.cut
	}
	<-h.live.done // which comes a moment after the end of the stream
	return h.live.err != nil && isStopping(h.live.err)
}

func errNotStreaming(id string) error {
	return fault.Errorf(fault.NotFound, "REQUEST_NOT_FOUND", "request %q has no stream", id)
}

// Find returns a handle to an existing request. Faults: REQUEST_NOT_FOUND;
// FORBIDDEN when it is another user's and the caller is not an admin.
func (s *Service) Find(ctx context.Context, userID, requestID string, admin bool) (*Handle, error) {
	rec, err := s.record(ctx, userID, requestID, admin)
	if err != nil {
		return nil, err
	}
	return &Handle{
		ID: rec.ID, UserID: rec.UserID, SessionID: rec.SessionID, Async: rec.Mode == request.ModeAsync,
		service: s, live: s.find(rec.ID), rec: rec,
	}, nil
}

// FindKey returns a handle to the request that an idempotency key names;
// REQUEST_NOT_FOUND when there is none. Of r it reads Route, UserID, Stream
// and IdempotencyKey.
func (s *Service) FindKey(ctx context.Context, r Request) (*Handle, error) {
	id, err := request.ByKey(ctx, s.cfg.DB, keyScope(r))
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, fault.New(fault.NotFound, "REQUEST_NOT_FOUND", "no request was made with this idempotency key")
	}
	h, err := s.Find(ctx, r.UserID, id, false)
	if err == nil {
		h.IdempotencyKey = r.IdempotencyKey
	}
	return h, err
}

func keyScope(r Request) [32]byte {
	mode := "json"
	if r.Stream {
		mode = "stream"
	}
	return request.KeyScope(r.Route, r.UserID, mode, r.IdempotencyKey)
}

func (s *Service) record(ctx context.Context, userID, requestID string, admin bool) (*request.Record, error) {
	rec, err := request.Get(ctx, s.cfg.DB, requestID)
	if err != nil {
		return nil, err
	}
	if rec.UserID != userID && !admin {
		return nil, fault.New(fault.Forbidden, "FORBIDDEN", "the request belongs to another user")
	}
	return rec, nil
}

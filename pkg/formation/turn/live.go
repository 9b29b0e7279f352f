package turn

import (
	"context"
	"sync/atomic"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
)

// live is a turn that this process has in hand, waiting or running.
type live struct {
	rec     request.Record
	fresh   bool    // its session was made for it
	stream  *stream // nil unless frames are wanted
	steps   map[string][]byte
	started atomic.Bool
	// journalled tells that the end has steps to drop.
	journalled atomic.Bool

	ctx    context.Context //nolint:containedctx // the turn's own life, not a request's
	cancel context.CancelCauseFunc

	done  chan struct{} // closed when the turn has ended; then the fields below are set
	reply *Reply
	err   error
}

func (s *Service) newLive(rec request.Record) *live {
	t := &live{rec: rec, done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(s.life)
	return t
}

// sink receives the turn's events; only a streaming turn shows them.
func (t *live) sink(e chat.Event) error {
	if err := t.ctx.Err(); err != nil {
		return context.Cause(t.ctx)
	}
	if t.stream == nil {
		return nil
	}
	return t.stream.event(e)
}

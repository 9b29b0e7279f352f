package turn

import (
	"context"
	"encoding/json"
	"sync/atomic"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// live is a turn that this process has in hand, waiting or running.
type live struct {
	rec     request.Record
	fresh   bool    // its session was made for it
	rivals  bool    // its session may have older turns in another process
	resumed bool    // it was begun by a launch that is dead
	queued  *queued // its place in its session; nil while it has none, or needs none
	stream  *stream // nil unless frames are wanted
	steps   map[string][]byte
	begun   atomic.Bool // it waits no more
	// sent are the files of a new request until they are stored; then filed tells
	// that there are some, and files are what the turn has read of them.
	sent   []chat.File
	filed  bool
	files  []chat.File
	quiet  bool          // what it does is not shown while it does it
	permit chan struct{} // takes a value while it waits for a place in the background
	// journalled tells that the end has steps to drop.
	journalled atomic.Bool

	// waited tells that the session had a question when the turn began; pending
	// is that question while it can still be answered.
	waited  bool
	pending *chat.Question

	trace  *telemetry.Trace // nil when nobody is told
	span   *telemetry.Span  // of the whole turn
	parent string           // traceparent of the request

	ctx    context.Context //nolint:containedctx // the turn's own life, not a request's
	cancel context.CancelCauseFunc

	done  chan struct{} // closed when the turn has ended; then the fields below are set
	reply *Reply
	err   error
}

func (s *Service) newLive(rec request.Record, parent string) *live {
	t := &live{rec: rec, parent: parent, quiet: !s.cfg.Response.Progress, permit: make(chan struct{}), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(s.trace(s.life, t))
	return t
}

// discard ends what was made for a turn that does not begin here: until then
// the life of all turns holds on to its context and its trace.
func (t *live) discard() { t.cancel(context.Canceled) }

// sink receives the turn's events; only a streaming turn shows them, and those
// who observe are told what it does.
func (t *live) sink(e chat.Event) error {
	if err := t.ctx.Err(); err != nil {
		return context.Cause(t.ctx)
	}
	t.tellProgress(e)
	if t.stream == nil {
		return nil
	}
	return t.stream.event(e)
}

// encodeClick writes a choice for the record.
func encodeClick(c *chat.UIReply) []byte {
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and a number always encode
	}
	return data
}

// click is the choice that came with the message, nil for none.
func (t *live) click() *chat.UIReply {
	var c chat.UIReply
	if t.rec.Click == nil || json.Unmarshal(t.rec.Click, &c) != nil {
		return nil
	}
	return &c
}

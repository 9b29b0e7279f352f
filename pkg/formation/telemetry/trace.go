package telemetry

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// TraceInfo says whose turn a trace is of.
type TraceInfo struct {
	RequestID, UserID, SessionID string
	// Parent is the traceparent header of the request, which an exporter
	// continues; "" for none.
	Parent string
}

// Trace is the spans of one turn. It is safe for concurrent use; the methods of
// a nil Trace do nothing.
type Trace struct {
	hub     *Hub
	info    TraceInfo
	root    Span // stands in contexts where no span is open
	started time.Time
	texts   atomic.Int64 // bytes of long texts

	mu      sync.Mutex // guards the fields that follow, and the spans
	spans   []*Span
	last    int // id of the span that was opened last
	dropped int
	totals  Totals
	ended   bool
	turn    *Span // the outermost span, when it is a turn
}

// Totals are the sums over the spans of a trace.
type Totals struct {
	Duration   time.Duration
	ModelCalls int // without cached answers, which asked no model
	ToolCalls  int // without refused ones, which called no tool
	Tokens     Tokens
	// Cost is nil when a model that was asked has no price, or none was asked.
	Cost *Cost
	// Dropped counts spans that were not kept.
	Dropped int

	unpriced bool
}

// Trace opens a trace. The context that it returns carries it.
func (h *Hub) Trace(ctx context.Context, info TraceInfo) (context.Context, *Trace) {
	if h == nil {
		return ctx, nil
	}
	t := &Trace{hub: h, info: info, started: h.cfg.Now()}
	t.root.trace = t
	return context.WithValue(ctx, key{}, &t.root), t
}

// Info says whose trace it is.
func (t *Trace) Info() TraceInfo {
	if t == nil {
		return TraceInfo{}
	}
	return t.info
}

func (t *Trace) start(parent *Span, kind Kind, name string) *Span {
	s := &Span{trace: t, kind: kind, name: clip(name, maxName), started: t.hub.cfg.Now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	s.id, s.parent = t.last, parent.id
	if len(t.spans) >= t.hub.cfg.MaxSpans {
		t.dropped++
		return s
	}
	if !parent.kept { // its parent was not kept, so nobody could find that
		s.parent = 0
	}
	if t.turn == nil && kind == KindTurn {
		t.turn = s
	}
	s.kept = true
	if t.spans == nil {
		t.spans = make([]*Span, 0, 8)
	}
	t.spans = append(t.spans, s)
	return s
}

// count adds an ended span to the totals and the metrics; mu is held.
func (t *Trace) count(s *Span) {
	switch s.kind {
	case KindModel:
		if !s.flag(AttrCached) {
			t.totals.ModelCalls++
			t.charge(s)
		}
	case KindTool:
		if s.flag(AttrRefused) {
			return
		}
		t.totals.ToolCalls++
	default:
	}
	if !s.replayed {
		t.hub.metrics.count(s)
	}
}

func (t *Trace) charge(s *Span) {
	if tokens, ok := s.value(AttrTokens).(Tokens); ok {
		t.totals.Tokens = t.totals.Tokens.add(tokens)
	}
	cost, _ := s.value(AttrCost).(*Cost)
	if cost == nil {
		t.totals.unpriced = true
		return
	}
	sum := *cost
	if t.totals.Cost != nil {
		sum.Amount += t.totals.Cost.Amount
	}
	t.totals.Cost = &sum
}

// running tells that the turn has not ended; mu is held.
func (t *Trace) running() bool { return !t.ended && (t.turn == nil || !t.turn.ended) }

// Totals are the sums over the spans. Of those that are open the calls count;
// what they cost is not known yet.
func (t *Trace) Totals() Totals {
	if t == nil {
		return Totals{}
	}
	now := t.hub.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.totals
	sum.Dropped = t.dropped
	if t.running() {
		for _, s := range t.spans {
			switch {
			case s.ended:
			case s.kind == KindModel:
				sum.ModelCalls++
			case s.kind == KindTool:
				sum.ToolCalls++
			}
		}
	}
	if sum.unpriced {
		sum.Cost = nil
	}
	switch {
	case t.turn == nil:
		sum.Duration = now.Sub(t.started)
	case t.turn.ended:
		sum.Duration = t.turn.duration
	default:
		sum.Duration = now.Sub(t.turn.started)
	}
	return sum
}

// Spans returns the spans so far in the order in which they were opened.
func (t *Trace) Spans() []SpanRecord {
	if t == nil {
		return nil
	}
	now := t.hub.cfg.Now()
	t.mu.Lock()
	out := make([]SpanRecord, len(t.spans))
	for i, s := range t.spans {
		out[i] = s.record(now)
	}
	t.mu.Unlock()
	for i := range out {
		t.hub.shown(&out[i])
	}
	return out
}

// Close ends the trace: spans that are open stay so, and the exporter, when
// there is one, gets it. Only the first Close counts.
func (t *Trace) Close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	again := t.ended
	t.ended = true
	t.mu.Unlock()
	if !again && t.hub.cfg.Ended != nil {
		t.hub.cfg.Ended(t)
	}
}

// Package telemetry tells what a formation does: the spans of a turn, the
// events that its doors stream, and counters for Prometheus.
//
// Work says what it does by Start and Emit, with the context that it has
// anyway. Without a trace in the context and without an observer both do
// nothing. It promises that no observer, however slow, holds a turn, that what
// is kept of a turn is bounded, and that texts lose their secrets before
// anybody sees them. Every room of the formation may import it; it imports none.
package telemetry

import (
	"context"
	"time"
)

// Redactor takes secrets out of texts; *redact.Redactor satisfies it.
type Redactor interface {
	// String returns text without secrets.
	String(text string) string
	// Bytes returns JSON without secrets; an object stays one.
	Bytes(p []byte) []byte
}

// Config is what a Hub is made of. All of it may be left out.
type Config struct {
	// Redact cleans attributes, errors and events; nil leaves them as they are.
	Redact Redactor
	// NewID makes ids of events; nil leaves them out.
	NewID func(prefix string) string
	// MaxSpans bounds the spans that are kept of one trace; 0 means 1000. Those
	// beyond count in its totals.
	MaxSpans int
	// Ended is given every trace that has ended, for an exporter; nil gives it to
	// nobody. It must not block.
	Ended func(*Trace)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

const defaultMaxSpans = 1000

// Hub joins those who tell and those who listen. It is safe for concurrent use;
// a nil Hub does nothing.
type Hub struct {
	cfg     Config
	subs    subscribers
	metrics Metrics
}

// New returns a Hub. It starts nothing.
func New(cfg Config) *Hub {
	if cfg.MaxSpans <= 0 {
		cfg.MaxSpans = defaultMaxSpans
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Hub{cfg: cfg}
}

// Metrics are the counters of this formation's process; nil for a nil Hub.
func (h *Hub) Metrics() *Metrics {
	if h == nil {
		return nil
	}
	return &h.metrics
}

// key is what telemetry keeps in a context: the *Span that is open there. The
// root of a trace stands in for it while none is.
type key struct{}

func current(ctx context.Context) *Span {
	s, _ := ctx.Value(key{}).(*Span)
	return s
}

// Start opens a span below the one that ctx holds. Without a trace in ctx it
// returns ctx and a nil Span, whose methods do nothing. End must be called.
func Start(ctx context.Context, kind Kind, name string) (context.Context, *Span) {
	parent := current(ctx)
	if parent == nil {
		return ctx, nil
	}
	s := parent.trace.start(parent, kind, name)
	return context.WithValue(ctx, key{}, s), s
}

// Replayed adds a span for a step that an earlier life of the turn has done: it
// took no time now, counts in the totals and is marked replayed. It is open for
// attributes until its End.
func Replayed(ctx context.Context, kind Kind, name string) *Span {
	parent := current(ctx)
	if parent == nil {
		return nil
	}
	s := parent.trace.start(parent, kind, name)
	s.replayed = true
	s.Set("replayed", true)
	return s
}

// TraceOf returns the trace that ctx belongs to, nil when there is none.
func TraceOf(ctx context.Context) *Trace {
	if s := current(ctx); s != nil {
		return s.trace
	}
	return nil
}

// Emit tells an event to who listens on the hub that ctx belongs to. Fields
// that e leaves out are filled in from the trace. Without a trace nobody is told.
func Emit(ctx context.Context, e Event) {
	t := TraceOf(ctx)
	if t == nil || !t.hub.Listening() {
		return
	}
	if e.RequestID == "" {
		e.RequestID = t.info.RequestID
	}
	if e.UserID == "" {
		e.UserID = t.info.UserID
	}
	if e.SessionID == "" {
		e.SessionID = t.info.SessionID
	}
	t.hub.Emit(e)
}

// Listening tells whether anybody hears an event of ctx, for callers whose
// events are dear to make.
func Listening(ctx context.Context) bool {
	t := TraceOf(ctx)
	return t != nil && t.hub.Listening()
}

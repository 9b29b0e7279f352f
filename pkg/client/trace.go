package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Span is one piece of the work for a request.
type Span struct {
	SpanID     string    `json:"span_id"`
	ParentID   *string   `json:"parent_id"` // nil for none
	Kind       string    `json:"kind"`      // turn, routing, model, tool, memory, delegation, delivery
	Name       string    `json:"name"`
	Status     string    `json:"status"` // ok or error
	StartedAt  time.Time `json:"started_at"`
	DurationMS float64   `json:"duration_ms"`
	// Attributes are of each kind its own (reference runtime.md 21).
	Attributes map[string]json.RawMessage `json:"attributes"`
}

// Tokens are what model calls used.
type Tokens struct {
	Input  int `json:"input"`
	Output int `json:"output"`
	Cached int `json:"cached"` // part of Input
}

// Cost is an amount of money.
type Cost struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// TraceTotals are the sums over the spans of a trace.
type TraceTotals struct {
	DurationMS float64 `json:"duration_ms"`
	ModelCalls int     `json:"model_calls"`
	ToolCalls  int     `json:"tool_calls"`
	Tokens     Tokens  `json:"tokens"`
	Cost       *Cost   `json:"cost"` // nil when a model has no price, or none was asked
	// SpansDropped counts spans that were too many to be kept.
	SpansDropped int `json:"spans_dropped,omitempty"`
}

// Trace is what was done for a request.
type Trace struct {
	RequestID string      `json:"request_id"`
	Spans     []Span      `json:"spans"` // in the order in which they began
	Totals    TraceTotals `json:"totals"`
}

// Trace returns the trace of a request: so far while it runs.
func (f *Formation) Trace(ctx context.Context, requestID string) (*Trace, error) {
	var out Trace
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "requests", requestID, "trace"), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

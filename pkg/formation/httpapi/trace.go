package httpapi

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/httpx"
)

// traceDocument is the trace of a request (reference runtime.md 21).
type traceDocument struct {
	RequestID string      `json:"request_id"`
	Spans     []traceSpan `json:"spans"`
	Totals    traceTotals `json:"totals"`
}

// traceSpan is one piece of a turn's work.
type traceSpan struct {
	SpanID     string         `json:"span_id"`
	ParentID   *string        `json:"parent_id"`
	Kind       telemetry.Kind `json:"kind"`
	Name       string         `json:"name"`
	Status     string         `json:"status"`
	StartedAt  time.Time      `json:"started_at"`
	DurationMS float64        `json:"duration_ms"`
	// Attributes are of each kind its own.
	Attributes map[string]any `json:"attributes"`
}

type traceTotals struct {
	DurationMS float64          `json:"duration_ms"`
	ModelCalls int              `json:"model_calls"`
	ToolCalls  int              `json:"tool_calls"`
	Tokens     telemetry.Tokens `json:"tokens"`
	Cost       *telemetry.Cost  `json:"cost"`
	// SpansDropped counts those that were too many to be kept.
	SpansDropped int `json:"spans_dropped,omitempty"`
}

func (a *api) getTrace(c echo.Context, who caller) error {
	id := httpx.Param(c, "id")
	trace, err := a.cfg.Turns.Trace(c.Request().Context(), who.user, id, who.admin)
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound:
		return fault.Wrap(fault.NotFound, "REQUEST_NOT_FOUND", "No request with id '"+clip(id)+"'", err)
	case err != nil:
		return err
	}
	doc := traceDocument{RequestID: id}
	if err := json.Unmarshal(trace, &doc); err != nil {
		return fmt.Errorf("read the trace of %s: %w", clip(id), err)
	}
	return a.reply(c, objectTrace, typeTrace, &doc)
}

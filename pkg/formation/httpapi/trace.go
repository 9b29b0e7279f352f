package httpapi

import (
	"encoding/json"
	"fmt"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// traceDocument is the trace of a request (reference runtime.md 21). Spans and
// totals are passed on as they are stored.
type traceDocument struct {
	RequestID string          `json:"request_id"`
	Spans     json.RawMessage `json:"spans"`
	Totals    json.RawMessage `json:"totals"`
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

package httpapi

import (
	"time"

	"github.com/labstack/echo/v4"
)

// The object values of this release's routes (reference runtime.md 1.4).
const (
	objectChat          = "chat_response"
	objectRequest       = "request"
	objectRequestStatus = "request_status"
	objectRequestList   = "request_list"
	objectTrace         = "trace"
	objectCancellation  = "request_cancellation"
	objectSession       = "session"
	objectSessionList   = "session_list"
	objectList          = "list"
	objectAgent         = "agent"
	objectAgentList     = "agent_list"
	objectStatus        = "formation_status"
	objectUsage         = "usage"
	objectHealth        = "status"
	objectError         = "error"
)

// The type values of this release's routes (reference runtime.md 1.5).
const (
	typeChatCompleted     = "chat.completed"
	typeRequestProcessing = "request.processing"
	typeRequestStatus     = "request.status.retrieved"
	typeRequestList       = "request.list.retrieved"
	typeTrace             = "request.trace.retrieved"
	typeRequestCancelled  = "request.cancelled"
	typeSession           = "session.retrieved"
	typeSessionList       = "session.list"
	typeSessionMessages   = "session.messages.list"
	typeAgent             = "agent.retrieved"
	typeAgentList         = "agent.list"
	typeStatus            = "status.retrieved"
	typeUsage             = "usage.retrieved"
)

// envelope is the shape of every JSON reply but health (reference runtime.md 1.2).
type envelope struct {
	Object    string      `json:"object"`
	Timestamp int64       `json:"timestamp"` // epoch milliseconds
	Type      string      `json:"type"`
	Request   requestInfo `json:"request"`
	Success   bool        `json:"success"`
	Error     *errorInfo  `json:"error"`
	Data      any         `json:"data"`
	// Code and Message repeat the error at the top, where older clients look.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

type requestInfo struct {
	ID             string  `json:"id"`
	IdempotencyKey *string `json:"idempotency_key"`
}

type errorInfo struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data"`
}

// reply sends data in a success envelope with status 200.
func (a *api) reply(c echo.Context, object, typ string, data any) error {
	return a.replyStatus(c, 200, object, typ, data)
}

// jsonTime is a time in a reply: RFC 3339, UTC, milliseconds.
type jsonTime time.Time

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSON writes the time as a string.
func (t jsonTime) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, len(timeLayout)+2)
	b = append(b, '"')
	b = time.Time(t).UTC().AppendFormat(b, timeLayout)
	return append(b, '"'), nil
}

// JSONSchema describes it.
func (jsonTime) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "format": "date-time"}
}

// timeOrNil returns t for a reply, nil when it is not known.
func timeOrNil(t *time.Time) *jsonTime {
	if t == nil {
		return nil
	}
	j := jsonTime(*t)
	return &j
}

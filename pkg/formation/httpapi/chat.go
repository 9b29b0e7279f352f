package httpapi

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// chatRoute is the scope of a chat's idempotency keys.
const chatRoute = "POST /v1/chat"

// chatData is the data of a chat reply (reference runtime.md 3.3).
type chatData struct {
	Response       string      `json:"response"`
	Message        chatMessage `json:"message"`
	SessionID      string      `json:"session_id"`
	UserID         string      `json:"user_id"`
	RequestID      string      `json:"request_id"`
	Status         string      `json:"status"`
	ProcessingMode string      `json:"processing_mode"`
	Agent          string      `json:"agent"`
	Model          string      `json:"model"`
	Usage          chat.Usage  `json:"usage"`
}

type chatMessage struct {
	Role    chat.Role `json:"role"`
	Content string    `json:"content"`
}

// acceptedData is the data of a turn that goes on in the background.
type acceptedData struct {
	RequestID string `json:"request_id"`
	Status    string `json:"status"`
	Delivery  string `json:"delivery"`
	PollURL   string `json:"poll_url"`
}

// chat answers POST /v1/chat: as JSON, as a stream, or at once with 202 when
// the turn goes on in the background.
func (a *api) chat(c echo.Context, who caller) error {
	req, resume, err := a.readChat(c, &who)
	if err != nil {
		return err
	}
	if resume != nil {
		return a.resumeChat(c, who, resume)
	}
	t, err := a.cfg.Turns.Begin(c.Request().Context(), *req)
	if err != nil {
		return err
	}
	info := t.Info()
	httpx.SetRequestID(c, info.ID)
	switch {
	case req.Stream:
		return a.streamChat(c, t, 0)
	case info.Async:
		return a.accepted(c, info, req.IdempotencyKey)
	default:
		return a.answer(c, t, req.IdempotencyKey)
	}
}

// answer waits for the result and sends it. The reply is made of the stored
// result only, so a replay says the same.
func (a *api) answer(c echo.Context, t Turn, key string) error {
	r, err := t.Wait(c.Request().Context())
	if err != nil {
		return err
	}
	return httpx.JSON(c, http.StatusOK, &envelope{
		Object: objectChat, Timestamp: r.CompletedAt.UnixMilli(), Type: typeChatCompleted,
		Request: requestInfo{ID: r.RequestID, IdempotencyKey: stringOrNil(key)}, Success: true,
		Data: &chatData{
			Response: r.Response, Message: chatMessage{Role: chat.Assistant, Content: r.Response},
			SessionID: r.SessionID, UserID: r.UserID, RequestID: r.RequestID, Status: r.Status,
			ProcessingMode: r.ProcessingMode, Agent: r.Agent, Model: r.Model, Usage: r.Usage,
		},
	})
}

// accepted tells where the result of a background turn can be polled.
func (a *api) accepted(c echo.Context, info TurnInfo, key string) error {
	return httpx.JSON(c, http.StatusAccepted, &envelope{
		Object: objectRequest, Timestamp: info.AcceptedAt.UnixMilli(), Type: typeRequestProcessing,
		Request: requestInfo{ID: info.ID, IdempotencyKey: stringOrNil(key)}, Success: true,
		Data: &acceptedData{
			RequestID: info.ID, Status: "processing", Delivery: "polling", PollURL: "/v1/requests/" + info.ID,
		},
	})
}

// readChat reads everything a chat request says. Either the turn to begin or
// the stream to continue is returned.
func (a *api) readChat(c echo.Context, who *caller) (*TurnRequest, *resumption, error) {
	body, err := httpx.ReadBody(c, httpx.MaxFormationBody)
	if err != nil {
		return nil, nil, err
	}
	// Everything below copies what it keeps: a turn does not hold the buffer.
	defer body.Release()
	var in chatBody
	if err := body.Decode(&in); err != nil {
		return nil, nil, chatFault(err)
	}
	if !who.named && in.UserID != "" {
		if err := checkUserID(in.UserID); err != nil {
			return nil, nil, err
		}
		who.user = in.UserID
	}
	key, err := a.idempotencyKey(c)
	if err != nil {
		return nil, nil, err
	}
	if resume, err := resumptionOf(c, &in, key); resume != nil || err != nil {
		return nil, resume, err
	}
	if bad := in.check(a.cfg.Formation.InputLimits.MaxMessageLength); len(bad) > 0 {
		return nil, nil, chatFault(&httpx.BodyError{Fields: bad})
	}
	if in.AgentID != "" && a.cfg.Formation.Agent(in.AgentID) == nil {
		return nil, nil, agentNotFound(in.AgentID)
	}
	req := a.turnRequest(c, who, &in)
	if req.IdempotencyKey = key; key != "" {
		if req.BodyHash, err = body.CanonicalHash(); err != nil {
			return nil, nil, err
		}
	}
	return req, nil, nil
}

func (a *api) turnRequest(c echo.Context, who *caller, in *chatBody) *TurnRequest {
	if in.RequestID != "" {
		httpx.SetRequestID(c, in.RequestID)
	}
	return &TurnRequest{
		ID: httpx.RequestID(c), UserID: who.user, SessionID: in.SessionID, AgentID: in.AgentID,
		GroupID: in.GroupID, Message: *in.Message, Mode: in.mode(a.cfg.Formation.Async.Mode),
		Stream: a.wantsStream(c, in), OnDisconnect: in.OnDisconnect, Route: chatRoute,
		ThresholdSeconds: in.ThresholdSeconds,
	}
}

// wantsStream decides between stream and JSON (reference runtime.md 3.2).
func (a *api) wantsStream(c echo.Context, in *chatBody) bool {
	if in.Stream != nil {
		return *in.Stream
	}
	for _, accept := range c.Request().Header[echo.HeaderAccept] {
		if strings.Contains(accept, "text/event-stream") {
			return true
		}
	}
	return a.cfg.Formation.Overlord.Response.Streaming
}

// idempotencyKey returns the key of a request that may be repeated.
func (a *api) idempotencyKey(c echo.Context) (string, error) {
	const most = 255
	key := strings.TrimSpace(first(c.Request().Header[a.head.idempotKey]))
	if len(key) > most || strings.ContainsFunc(key, isControl) {
		return "", fault.Errorf(fault.Invalid, "", "%s must be at most %d characters without control characters",
			httpx.HeaderName(a.cfg.HeaderPrefix, "Idempotency-Key"), most)
	}
	return key, nil
}

func agentNotFound(id string) error {
	return fault.New(fault.NotFound, "AGENT_NOT_FOUND", "No agent with id '"+clip(id)+"'")
}

func stringOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// mode returns how the turn is to be processed; formation is the default.
func (in *chatBody) mode(formation string) string {
	switch {
	case in.UseAsync != nil && *in.UseAsync:
		return manifest.ModeAsync
	case in.Mode != "":
		return in.Mode
	case in.UseAsync != nil:
		return manifest.ModeSync
	case formation == "":
		return manifest.ModeAuto
	default:
		return formation
	}
}

package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpserver"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/httpx"
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
	Role     chat.Role     `json:"role"`
	Content  string        `json:"content"`
	UI       []chat.Widget `json:"ui,omitempty"`
	Metadata *chatMetadata `json:"metadata,omitempty"`
}

// chatMetadata says what a program may want to know of a reply. RequestID names
// the earlier request whose question this turn answered.
type chatMetadata struct {
	SessionID            string   `json:"session_id"`
	Agents               []string `json:"agents,omitempty"`
	RequiresUserResponse bool     `json:"requires_user_response,omitempty"`
	RequestID            string   `json:"request_id,omitempty"`
}

func messageOf(r *turn.Reply) chatMessage {
	return chatMessage{Role: chat.Assistant, Content: r.Response, UI: r.Widgets, Metadata: &chatMetadata{
		SessionID: r.SessionID, Agents: r.Agents, RequiresUserResponse: r.Asks(), RequestID: r.Answers,
	}}
}

// acceptedData is the data of a turn that goes on in the background.
type acceptedData struct {
	RequestID string `json:"request_id"`
	Status    string `json:"status"`
	Delivery  string `json:"delivery"`
	PollURL   string `json:"poll_url"`
}

// asked is what a chat request asks for: a turn to begin, or the stream of one
// to continue.
type asked struct {
	req     *turn.Request
	uploads []media.Upload
	spoken  bool
	resume  *resumption // nil for a new turn
}

// chat answers POST /v1/chat.
func (a *api) chat(c echo.Context, who caller) error {
	asked, err := a.readChat(c, &who)
	if err != nil {
		return err
	}
	return a.begin(c, who, asked)
}

// begin begins a turn and answers: as JSON, as a stream, or at once with 202
// when the turn goes on in the background.
func (a *api) begin(c echo.Context, who caller, in *asked) error {
	if in.resume != nil {
		return a.resumeChat(c, who, in.resume)
	}
	if err := a.prepare(c.Request().Context(), in); err != nil {
		return err
	}
	h, err := a.cfg.Turns.Begin(c.Request().Context(), *in.req)
	if err != nil {
		return err
	}
	httpx.SetRequestID(c, h.ID)
	switch {
	case in.req.Stream:
		return a.streamChat(c, h, h.ID, 0)
	case h.Async:
		return a.accepted(c, h)
	default:
		return a.answer(c, h)
	}
}

// answer waits for the result and sends it. The reply is made of the stored
// result only, so a replay says the same.
func (a *api) answer(c echo.Context, h *turn.Handle) error {
	r, err := h.Wait(c.Request().Context())
	if errors.Is(err, turn.ErrContinues) {
		return a.accepted(c, h)
	}
	if err != nil {
		return turnFault(c, err)
	}
	return httpx.JSON(c, http.StatusOK, &envelope{
		Object: objectChat, Timestamp: r.CompletedAt.UnixMilli(), Type: typeChatCompleted,
		Request: requestInfo{ID: r.RequestID, IdempotencyKey: stringOrNil(h.IdempotencyKey)}, Success: true,
		Data: &chatData{
			Response: r.Response, Message: messageOf(r),
			SessionID: r.SessionID, UserID: r.UserID, RequestID: r.RequestID, Status: r.Status,
			ProcessingMode: r.ProcessingMode, Agent: r.Agent, Model: r.Model, Usage: r.Usage,
		},
	})
}

// accepted tells where the result of a background turn can be polled. Its time
// is that of the acceptance, so a replay says the same.
func (a *api) accepted(c echo.Context, h *turn.Handle) error {
	r, err := a.cfg.Requests.Get(c.Request().Context(), h.ID)
	if err != nil {
		return err
	}
	return httpx.JSON(c, http.StatusAccepted, &envelope{
		Object: objectRequest, Timestamp: r.CreatedAt.UnixMilli(), Type: typeRequestProcessing,
		Request: requestInfo{ID: h.ID, IdempotencyKey: stringOrNil(h.IdempotencyKey)}, Success: true,
		Data: &acceptedData{
			RequestID: h.ID, Status: request.Processing, Delivery: "polling", PollURL: "/v1/requests/" + h.ID,
		},
	})
}

// turnFault is the fault of a turn that was accepted and failed. Whatever kind
// of trouble it met inside, to its caller it is a failed turn, unless the fault
// has a name of its own (reference runtime.md 3.3).
func turnFault(c echo.Context, err error) error {
	f := fault.From(err)
	if f.Name != "" || c.Request().Context().Err() != nil {
		return err
	}
	failed := fault.Wrap(fault.Failed, "", f.Message, err)
	failed.Data = f.Data
	return failed
}

// readChat reads everything a chat request says.
func (a *api) readChat(c echo.Context, who *caller) (*asked, error) {
	body, err := httpx.ReadBody(c, httpx.MaxFormationBody)
	if err != nil {
		return nil, err
	}
	// Everything below copies what it keeps: a turn does not hold the buffer.
	defer body.Release()
	var in chatBody
	if err := body.Decode(&in); err != nil {
		return nil, chatFault(in.alsoWrong(err, a.cfg.Formation.InputLimits.MaxMessageLength))
	}
	return a.ask(c, body, who, &in, chatRoute)
}

// ask checks what a body says and makes the turn of it.
func (a *api) ask(c echo.Context, body *httpx.Body, who *caller, in *chatBody, route string) (*asked, error) {
	if err := a.nameUser(who, in.UserID); err != nil {
		return nil, err
	}
	key, err := a.idempotencyKey(c)
	if err != nil {
		return nil, err
	}
	if resume, err := resumptionOf(c, in, key, route); resume != nil || err != nil {
		return &asked{resume: resume}, err
	}
	if in.spoken {
		if err := a.checkSpoken(in); err != nil {
			return nil, err
		}
	}
	if bad := in.check(a.cfg.Formation.InputLimits.MaxMessageLength); len(bad) > 0 {
		return nil, chatFault(&httpx.BodyError{Fields: bad})
	}
	if in.AgentID != "" && a.cfg.Formation.Agent(in.AgentID) == nil {
		return nil, agentNotFound(in.AgentID)
	}
	out := &asked{req: a.turnRequest(c, who, in), uploads: uploadsOf(in.Files), spoken: in.spoken}
	out.req.Route = route
	if out.req.IdempotencyKey = key; key != "" {
		if out.req.BodyHash, err = body.CanonicalHash(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a *api) turnRequest(c echo.Context, who *caller, in *chatBody) *turn.Request {
	if id := cmp.Or(in.RequestID, mcpserver.TurnID(c.Request().Context())); id != "" {
		httpx.SetRequestID(c, id)
	}
	message := *in.Message
	if strings.TrimSpace(message) == "" { // the files say it all
		message = ""
	}
	return &turn.Request{
		ID: httpx.RequestID(c), UserID: who.user, SessionID: in.SessionID, AgentID: in.AgentID,
		Message: message, Click: in.UIResponse.click(), Mode: in.mode(),
		Stream: a.wantsStream(c, in), OnDisconnect: in.OnDisconnect,
		Threshold: in.threshold(), TraceParent: first(c.Request().Header["Traceparent"]),
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

// mode returns how the turn is to be processed, "" for the formation's way.
func (in *chatBody) mode() string {
	switch {
	case in.UseAsync != nil && *in.UseAsync:
		return turn.Async
	case in.Mode != "":
		return in.Mode
	case in.UseAsync != nil:
		return turn.Sync
	default:
		return ""
	}
}

// threshold returns the caller's own threshold, nil for the formation's.
func (in *chatBody) threshold() *time.Duration {
	if in.ThresholdSeconds == nil {
		return nil
	}
	d := time.Duration(*in.ThresholdSeconds * float64(time.Second))
	return &d
}

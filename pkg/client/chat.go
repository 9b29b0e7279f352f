package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// chatTimeout bounds a chat that is answered as JSON; a turn may use tools for
// minutes.
const chatTimeout = 10 * time.Minute

// ChatRequest is one message to a formation.
type ChatRequest struct {
	Message string `json:"message"`
	// AgentID names the agent that shall answer; "" lets the formation choose.
	AgentID string `json:"agent_id,omitempty"`
	// SessionID continues a conversation; "" begins one.
	SessionID string `json:"session_id,omitempty"`
	// RequestID is the caller's own id of the request; "" lets the formation
	// make one.
	RequestID string `json:"request_id,omitempty"`
	// Files go with the message.
	Files []File `json:"files,omitempty"`
	// UIResponse answers the options widget of a question; Message may be "".
	UIResponse *UIResponse `json:"ui_response,omitempty"`

	// IdempotencyKey makes a repeated request give the first one's answer; ""
	// makes a new key.
	IdempotencyKey string `json:"-"`
	// LastEventID resumes the stream of RequestID or IdempotencyKey after that
	// event instead of starting a turn. ChatStream only.
	LastEventID string `json:"-"`
}

// chatBody is the request on the wire, with the mode that the method chose.
type chatBody struct {
	ChatRequest
	Stream   bool `json:"stream"`
	UseAsync bool `json:"use_async,omitempty"`
}

// Usage counts the tokens of a turn.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// ChatMessage is the answer as a message of its conversation.
type ChatMessage struct {
	Role    string   `json:"role"`
	Content string   `json:"content"`
	UI      []Widget `json:"ui,omitempty"`
	// Metadata says what a program may want to know of the answer.
	Metadata *ChatMetadata `json:"metadata,omitempty"`
}

// ChatMetadata belongs to an answer.
type ChatMetadata struct {
	SessionID string   `json:"session_id"`
	Agents    []string `json:"agents,omitempty"` // that took part, the answering one first
	// RequiresUserResponse says that the answer is a question.
	RequiresUserResponse bool `json:"requires_user_response,omitempty"`
	// RequestID is of the earlier request whose question was answered.
	RequestID string `json:"request_id,omitempty"`
}

// ChatReply is the answer to a message.
type ChatReply struct {
	RequestID string `json:"request_id"`
	SessionID string `json:"session_id"`
	UserID    string `json:"user_id"`
	Response  string `json:"response"`
	Status    string `json:"status"`
	Agent     string `json:"agent"`
	Model     string `json:"model"`
	Usage     Usage  `json:"usage"`
	// Message is the answer with its widgets.
	Message ChatMessage `json:"message"`
}

// Asks says whether the answer is a question that the session's next message
// answers.
func (r *ChatReply) Asks() bool {
	return r.Message.Metadata != nil && r.Message.Metadata.RequiresUserResponse
}

// Chat sends a message and waits for the whole answer.
func (f *Formation) Chat(ctx context.Context, req ChatRequest) (*ChatReply, error) {
	c, err := newChatCall(chatBody{ChatRequest: req})
	if err != nil {
		return nil, err
	}
	var out ChatReply
	if err := f.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Accepted is a message that will be answered later.
type Accepted struct {
	RequestID string `json:"request_id"`
	Status    string `json:"status"`
	Delivery  string `json:"delivery"` // polling or webhook
	PollURL   string `json:"poll_url,omitempty"`
}

// ChatAsync sends a message and returns as soon as the formation has promised
// to answer it. WaitRequest waits for the answer.
func (f *Formation) ChatAsync(ctx context.Context, req ChatRequest) (*Accepted, error) {
	c, err := newChatCall(chatBody{ChatRequest: req, UseAsync: true})
	if err != nil {
		return nil, err
	}
	c.timeout = PlainTimeout
	var out Accepted
	if err := f.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	if out.RequestID == "" {
		return nil, badReply(http.StatusAccepted, "a promise without request_id")
	}
	return &out, nil
}

// Token is one frame of a chat stream.
type Token struct {
	// EventID is the frame's id, for ChatRequest.LastEventID.
	EventID   string `json:"-"`
	Type      string `json:"type"` // progress, planning, content, completed
	Content   string `json:"content"`
	Stage     string `json:"stage,omitempty"`
	ToolName  string `json:"tool_name,omitempty"`
	RequestID string `json:"request_id"`
	SessionID string `json:"session_id"`
	UserID    string `json:"user_id"`

	// The fields from here on are set on completed only.

	Status           string  `json:"status,omitempty"`
	ProcessingTimeMS float64 `json:"processing_time_ms,omitempty"`
	// StreamDiscontinuity says that the content frames are not the answer;
	// the content of this one is.
	StreamDiscontinuity bool `json:"stream_discontinuity,omitempty"`
	Escalated           bool `json:"escalated,omitempty"`
	// RequiresUserResponse says that Content is a question that the session's
	// next message answers.
	RequiresUserResponse bool `json:"requires_user_response,omitempty"`
	// UI are the widgets of the answer; they come after the frame itself, and
	// are there when ChatStream returns.
	UI []Widget `json:"-"`
}

// ChatStream sends a message and hands each frame of the answer to sink. It
// returns the completed frame. An error of sink ends the stream and is
// returned. A stream that breaks is an *Error NameBrokenStream; the last
// EventID that sink saw resumes it.
func (f *Formation) ChatStream(ctx context.Context, req ChatRequest, sink func(Token) error) (*Token, error) {
	c, err := newChatCall(chatBody{ChatRequest: req, Stream: true})
	if err != nil {
		return nil, err
	}
	c.timeout = 0
	if req.LastEventID != "" {
		c.header.Set("Last-Event-ID", req.LastEventID)
	}
	t := &turn{sink: sink}
	err = f.caller.events(ctx, streaming{call: c.wantEvents(), idle: f.idle, onEvent: t.event})
	if t.completed != nil && StatusOf(err) == 0 && ctx.Err() == nil {
		err = nil // the answer is whole; a missing done is made up
	}
	if err == nil && t.completed == nil {
		err = badReply(http.StatusOK, "a stream without a completed frame")
	}
	if t.completed != nil {
		t.completed.UI = t.ui
	}
	return t.completed, err
}

// turn follows the frames of one answer.
type turn struct {
	sink      func(Token) error
	completed *Token
	ui        []Widget
}

// event takes one event and says whether it was the last.
func (t *turn) event(ev Event) (bool, error) {
	switch ev.Name {
	case "done":
		return true, nil
	case "error":
		return true, chatError(ev.Data)
	case "ui":
		var frame struct {
			UI []Widget `json:"ui"`
		}
		if err := json.Unmarshal(ev.Data, &frame); err != nil {
			return true, badReply(http.StatusOK, "widgets that are no JSON object")
		}
		t.ui = frame.UI
	case "", "message":
		return t.frame(ev)
	}
	return false, nil // also what later versions add
}

func (t *turn) frame(ev Event) (bool, error) {
	var frame struct {
		Token    *Token `json:"token"`
		Finished bool   `json:"finished"`
	}
	if err := json.Unmarshal(ev.Data, &frame); err != nil {
		return true, badReply(http.StatusOK, "a frame that is no JSON object")
	}
	if frame.Finished || frame.Token == nil {
		return frame.Finished, nil
	}
	frame.Token.EventID = ev.ID
	if frame.Token.Type == "completed" {
		t.completed = frame.Token
	}
	return false, t.sink(*frame.Token)
}

// chatError makes an Error of the error event of a chat stream, whose type is
// the error class of reference runtime.md 1.3. Older formations write the code
// there, newer ones beside it.
func chatError(data []byte) *Error {
	var wire struct {
		Error string `json:"error"`
		Type  string `json:"type"`
		Code  string `json:"code"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return badReply(http.StatusOK, "an error event that is no JSON object")
	}
	e := &Error{Name: wire.Type, Message: wire.Error}
	if wire.Code != "" {
		e.Name = wire.Code
	}
	e.Status = statusOf(e.Name)
	if e.Status == http.StatusInternalServerError {
		e.Status = statusOf(wire.Type)
	}
	return e
}

// statusOf is the status that a reply with an error class or code would have.
func statusOf(word string) int {
	switch word {
	case "error.validation", "INVALID_REQUEST":
		return http.StatusBadRequest
	case "error.authentication", "UNAUTHORIZED":
		return http.StatusUnauthorized
	case "error.authorization", "FORBIDDEN":
		return http.StatusForbidden
	case "error.not_found", "RESOURCE_NOT_FOUND", "AGENT_NOT_FOUND":
		return http.StatusNotFound
	case "RATE_LIMITED", "BUDGET_EXCEEDED":
		return http.StatusTooManyRequests
	case "SERVICE_UNAVAILABLE", "SYSTEM_OVERLOAD":
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func newChatCall(body chatBody) (*call, error) {
	c := newCall(http.MethodPost, "v1", "chat")
	c.timeout = chatTimeout
	if body.IdempotencyKey != "" {
		c.key = body.IdempotencyKey
	}
	return c.withJSON(body)
}

// Package chat is the vocabulary of a conversation: messages, tool calls,
// usage and the events a turn emits. It has no behaviour and imports only the
// standard library; every room of the formation may speak it.
package chat

import (
	"encoding/json"
	"time"
)

// Role says who speaks.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// Message is one entry of a conversation as a model sees it.
type Message struct {
	Role    Role
	Content string
	// Calls are the tool calls an assistant message asks for.
	Calls []ToolCall
	// CallID names the call that a tool message answers.
	CallID string
	// Parts are the media that a user message shows beside its text, in order.
	Parts []Part
}

// PartKind says what a Part is.
type PartKind string

// The kinds of media.
const (
	Image    PartKind = "image"
	Audio    PartKind = "audio"
	Video    PartKind = "video"
	Document PartKind = "document"
)

// Part is a piece of media as its own bytes. Who makes it has checked the
// limits and the type; nothing is fetched from elsewhere.
type Part struct {
	Kind      PartKind
	MediaType string // for example "image/png"
	Name      string // the file's name, "" when it has none
	Data      []byte
}

// ToolSpec describes a tool to a model.
type ToolSpec struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON Schema of the arguments; nil means an empty object
	// ReadOnly and Idempotent come from the tool's annotations; a call that
	// has either may be repeated after a crash.
	ReadOnly   bool
	Idempotent bool
}

// ToolCall is a model's request to run a tool.
type ToolCall struct {
	ID   string
	Name string
	Args json.RawMessage // as the model wrote it; may be invalid JSON
	// Seal is a mark that some providers put on a call and want back with it,
	// unchanged; "" when there is none.
	Seal string
}

// Invocation is one call of a tool by an agent in a turn.
type Invocation struct {
	CallID string
	// Step names the call within its turn; a call that is repeated after a crash
	// has the same.
	Step string
	Args json.RawMessage // a JSON object, or empty for none
	// Agent, User, Session and Request say for whom the call is made.
	Agent   string
	User    string
	Session string
	Request string
	// Progress shows how far the call is. It may be nil, doesn't block, and may
	// be called by several goroutines at once.
	Progress func(ToolProgress)
}

// ToolProgress is how far a call of a tool says it is.
type ToolProgress struct {
	Message string
	Done    float64
	Total   float64 // 0 when the tool doesn't know
}

// ToolResult is what a tool answered.
type ToolResult struct {
	CallID  string
	Content string
	IsError bool
	// Structured is the result as JSON for programs; nil when there is none.
	Structured json.RawMessage `json:",omitempty"`
	// Parts are media of the result, for models that can see them.
	Parts []Part `json:",omitempty"`
	// Widgets are shown to the user with the answer.
	Widgets []Widget `json:",omitempty"`
}

// Usage counts tokens.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	// CachedTokens is the part of PromptTokens read from the provider's cache.
	CachedTokens int `json:"-"`
}

// Add returns the sum of u and v.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		PromptTokens:     u.PromptTokens + v.PromptTokens,
		CompletionTokens: u.CompletionTokens + v.CompletionTokens,
		TotalTokens:      u.TotalTokens + v.TotalTokens,
		CachedTokens:     u.CachedTokens + v.CachedTokens,
	}
}

// EventType is the token.type of a streamed frame.
type EventType string

// The streamed token types of the specification.
const (
	Progress  EventType = "progress"
	Planning  EventType = "planning"
	Content   EventType = "content"
	Completed EventType = "completed"
)

// Stages of progress and content events (reference runtime.md 5.1).
const (
	StageInit                = "init"
	StageThinking            = "thinking"
	StageAgentProcessing     = "agent_processing"
	StageToolCall            = "tool_call"
	StageResponsePreparation = "response_preparation"
	StageResponseGeneration  = "response_generation"
)

// Event is one step that a running turn shows: a stage marker or a slice of
// the answer. The last word of a turn is not an Event but its Answer.
type Event struct {
	Type     EventType
	Stage    string
	Content  string
	ToolName string // set with StageToolCall
	// Restart tells that the text emitted since the last restart or the
	// beginning of the turn is void and comes again from its start.
	Restart bool
	// Soon tells that the next event or the end follows at once, so that this one
	// may be shown together with it.
	Soon bool
}

// Sink receives the events of a turn in order. It is called by one goroutine
// at a time and does not block on slow readers; an error ends the turn.
type Sink func(Event) error

// Answer is the result of a turn.
type Answer struct {
	Content string
	AgentID string
	Model   string
	Usage   Usage
	// Heard is the message that a recording said; "" when there was none.
	Heard string
	// Widgets are shown with the answer, within the clamps of runtime.md 6.1.
	Widgets []Widget
	// Question is set when the answer is a question: the request waits for the
	// user's reply, which the session's next message brings.
	Question *Question
	// Settles says what the turn did with the question that was pending when it
	// began; "" when there was none.
	Settles Settlement
	// Fixed tells that the words stay as they are: they are not a model's.
	Fixed bool
	// Agents are those that took part, the answering one first.
	Agents []string
}

// Settlement is what a turn did with a pending question.
type Settlement string

// The settlements.
const (
	// SettlesAnswered: the message answered it. The requests that waited end with
	// this turn's answer; when that is a question again, they wait on.
	SettlesAnswered Settlement = "answered"
	// SettlesDropped: the message was a new request, or took the old one back.
	// The requests that waited are cancelled.
	SettlesDropped Settlement = "dropped"
)

// QuestionCredential is the kind of the question which of several accounts at a
// service is meant.
const QuestionCredential = "credential"

// Question is what a turn asks its user before it can go on. A session has at
// most one at a time; it is stored with the end of the turn that asks it.
type Question struct {
	// ID names the options widget that shows the question; "" when it has none.
	ID     string
	Kind   string // who asks and takes the reply, for example QuestionCredential
	Prompt string
	// Options are the replies offered; none means that any text is one.
	Options []Option
	// State is what the asker needs to go on, in its own form.
	State json.RawMessage
	// RequestID and Message are the request that waits.
	RequestID string
	Message   string
}

// StoredMessage is a message of a session's transcript.
type StoredMessage struct {
	ID        string
	Role      Role
	Content   string
	AgentID   string
	Time      time.Time
	SessionID string
	UserID    string
}

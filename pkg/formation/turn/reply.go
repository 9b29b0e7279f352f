package turn

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
)

// Reply is the result of a turn.
type Reply struct {
	RequestID      string
	UserID         string
	SessionID      string
	Response       string
	Agent          string   // "" when the overlord answered itself
	Agents         []string // all that took part, the answering one first
	Model          string
	Status         string // request.Completed, request.Cancelled or request.AwaitingClarification
	ProcessingMode string // sync or async
	Usage          chat.Usage
	Widgets        []chat.Widget
	// Answers names the request whose question the turn answered; "" for none.
	Answers string
	// CompletedAt is when the turn ended, be it with a question.
	CompletedAt time.Time
}

// Asks tells that the reply is a question, which the session's next message
// answers.
func (r *Reply) Asks() bool { return r.Status == request.AwaitingClarification }

// storedReply is what a replay needs beside the text.
type storedReply struct {
	Agent   string        `json:"agent"`
	Model   string        `json:"model"`
	Mode    string        `json:"mode"`
	Usage   chat.Usage    `json:"usage"`
	Agents  []string      `json:"agents,omitempty"`
	Widgets []chat.Widget `json:"ui,omitempty"`
	Answers string        `json:"answers,omitempty"`
	// Asked is set when the reply is a question. A repeated key gets the question
	// again, also when the request has ended with another text since.
	Asked *asked `json:"asked,omitempty"`
	// Final are the widgets of that text; request.Settle adds them.
	Final []chat.Widget `json:"final_ui,omitempty"`
}

// asked is a question as it was put.
type asked struct {
	Text string `json:"text"`
	At   int64  `json:"at"` // unix milliseconds
}

// replyOf makes the reply of an answer.
func (t *live) replyOf(answer chat.Answer, now time.Time) *Reply {
	r := &Reply{
		RequestID: t.rec.ID, UserID: t.rec.UserID, SessionID: t.rec.SessionID, Response: answer.Content,
		Agent: answer.AgentID, Agents: answer.Agents, Model: answer.Model, Status: request.Completed,
		ProcessingMode: processingMode(t.rec.Mode), Usage: answer.Usage, Widgets: answer.Widgets, CompletedAt: now,
	}
	if answer.Question != nil {
		r.Status = request.AwaitingClarification
	}
	if t.pending != nil && answer.Settles == chat.SettlesAnswered {
		r.Answers = t.pending.RequestID
	}
	return r
}

func (r *Reply) encode() ([]byte, error) {
	s := storedReply{
		Agent: r.Agent, Model: r.Model, Mode: r.ProcessingMode, Usage: r.Usage, Agents: r.Agents, Widgets: r.Widgets, Answers: r.Answers,
	}
	if r.Asks() {
		s.Asked = &asked{Text: r.Response, At: r.CompletedAt.UnixMilli()}
	}
	return json.Marshal(s)
}

func decodeStored(rec *request.Record) (s storedReply, err error) {
	if err := json.Unmarshal(rec.Reply, &s); err != nil {
		return storedReply{}, fmt.Errorf("decode stored reply of %s: %w", rec.ID, err)
	}
	return s, nil
}

// storedAnswer returns the reply that a turn ended with from its record.
func storedAnswer(rec *request.Record) (*Reply, error) {
	s, err := decodeStored(rec)
	if err != nil {
		return nil, err
	}
	r := &Reply{
		RequestID: rec.ID, UserID: rec.UserID, SessionID: rec.SessionID, Response: rec.Result, Agent: s.Agent, Agents: s.Agents,
		Model: s.Model, Status: rec.Status, ProcessingMode: s.Mode, Usage: s.Usage, Widgets: s.Widgets, Answers: s.Answers,
	}
	if s.Asked != nil {
		r.Response, r.Status, r.CompletedAt = s.Asked.Text, request.AwaitingClarification, time.UnixMilli(s.Asked.At).UTC()
	} else {
		r.CompletedAt = *rec.CompletedAt
	}
	return r, nil
}

// Shown returns what goes with a record's text: its widgets, and the question
// that it waits with, "" for none.
func Shown(rec *request.Record) (widgets []chat.Widget, question string, err error) {
	if len(rec.Reply) == 0 || (rec.Ended() && rec.Status != request.Completed) {
		return nil, "", nil
	}
	s, err := decodeStored(rec)
	switch {
	case err != nil || s.Asked == nil:
		return s.Widgets, "", err
	case rec.Ended():
		return s.Final, "", nil
	}
	return s.Widgets, s.Asked.Text, nil
}

func cancelledReply(rec request.Record, at time.Time) *Reply {
	return &Reply{
		RequestID: rec.ID, UserID: rec.UserID, SessionID: rec.SessionID, Status: request.Cancelled,
		ProcessingMode: processingMode(rec.Mode), CompletedAt: at,
	}
}

func processingMode(mode string) string {
	if mode == request.ModeAsync {
		return "async"
	}
	return "sync"
}

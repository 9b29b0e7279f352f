// Package memory is what a turn asks before it thinks and tells afterwards:
// Recall gathers the context of a message, Record writes what happened. It
// opens the chambers below it (event, buffer); nobody else writes to them.
//
// Record runs inside the commit that ends the turn, so an answer that was
// acknowledged is remembered, and one that was not is not.
package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory/buffer"
	"github.com/agentformation/service/pkg/formation/memory/event"
	"github.com/agentformation/service/pkg/formation/store"
)

// Config is what a Memory needs.
type Config struct {
	DB          *store.DB
	FormationID string
	BufferSize  int // messages recalled in full; 0 turns the buffer off
	NewID       func(prefix string) string
}

// Memory is the formation's memory.
type Memory struct {
	cfg Config
}

// New returns a memory over an open store.
func New(cfg Config) *Memory { return &Memory{cfg: cfg} }

// Context is what is remembered of a conversation.
type Context struct {
	History   []chat.Message // oldest first
	LastAgent string         // who answered last in this session; "" for none
	// Pending is the question that the session's last turn put, asked at Asked;
	// nil when none waits.
	Pending *chat.Question
	Asked   time.Time
}

// Recall returns the context of the next message of a session.
func (m *Memory) Recall(ctx context.Context, userID, sessionID string) (Context, error) {
	past, err := buffer.Window(ctx, m.cfg.DB, userID, sessionID, m.cfg.BufferSize)
	if err != nil {
		return Context{}, err
	}
	c := Context{History: past.Messages, LastAgent: past.LastAgent, Asked: past.Asked}
	if past.Pending != nil {
		c.Pending = new(chat.Question)
		if err := json.Unmarshal(past.Pending, c.Pending); err != nil {
			return Context{}, fmt.Errorf("decode the pending question: %w", err)
		}
	}
	return c, nil
}

// Withdraw takes the question of a session back, in the caller's commit.
func (m *Memory) Withdraw(tx *store.Tx, userID, sessionID string) error {
	return buffer.Withdraw(tx, userID, sessionID)
}

// ExpireQuestions takes back what was asked before the given time, in the
// caller's commit, and returns the sessions that were asked.
func (m *Memory) ExpireQuestions(tx *store.Tx, before time.Time) ([]Session, error) {
	return buffer.Expire(tx, before)
}

// Turn is a finished exchange.
type Turn struct {
	UserID, SessionID, RequestID string
	AgentID                      string
	Message, Answer              string
	AskedAt, AnsweredAt          time.Time
	// Question is what the answer asks; nil for none. Whatever the session was
	// asked before is settled.
	Question *chat.Question
}

// Record remembers a turn in the caller's commit: its event, and with it the
// session's transcript. The event's source id is the request id with the time
// of asking, so a turn that is recorded twice leaves one trace. The time is part
// of it because events outlive requests: once a request is purged, its caller
// may give its id to another one, which is to be remembered too.
func (m *Memory) Record(tx *store.Tx, t Turn) error {
	e, err := event.NewTurn(event.Event{
		PublicID: m.cfg.NewID(""), UserID: t.UserID, FormationID: m.cfg.FormationID,
		OccurredAt: t.AskedAt, SourceID: fmt.Sprintf("%s@%d", t.RequestID, t.AskedAt.UnixMilli()), AgentID: t.AgentID,
		Conversation: t.SessionID, RequestID: t.RequestID,
	}, event.Turn{UserMessage: t.Message, AgentResponse: t.Answer, SessionID: t.SessionID})
	if err != nil {
		return err
	}
	created, err := event.Append(tx, e, t.AnsweredAt)
	if err != nil || !created {
		return err
	}
	var pending []byte
	if t.Question != nil {
		if pending, err = json.Marshal(t.Question); err != nil {
			return fmt.Errorf("encode the question: %w", err)
		}
	}
	return buffer.Append(tx, buffer.Exchange{
		UserID: t.UserID, SessionID: t.SessionID, RequestID: t.RequestID, AgentID: t.AgentID,
		Question: t.Message, Answer: t.Answer, QuestionID: m.cfg.NewID("msg_"), AnswerID: m.cfg.NewID("msg_"),
		AskedAt: t.AskedAt, AnsweredAt: t.AnsweredAt, Pending: pending,
	})
}

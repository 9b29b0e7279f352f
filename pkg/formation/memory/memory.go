// Package memory is what a turn asks before it thinks and tells afterwards:
// Recall gathers the context of a message, Record writes what happened. It
// opens the chambers below it (event, buffer); nobody else writes to them.
//
// Record runs inside the commit that ends the turn, so an answer that was
// acknowledged is remembered, and one that was not is not.
package memory

import (
	"context"
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
}

// Recall returns the context of the next message of a session.
func (m *Memory) Recall(ctx context.Context, userID, sessionID string) (Context, error) {
	msgs, last, err := buffer.Window(ctx, m.cfg.DB, userID, sessionID, m.cfg.BufferSize)
	if err != nil {
		return Context{}, err
	}
	return Context{History: msgs, LastAgent: last}, nil
}

// Turn is a finished exchange.
type Turn struct {
	UserID, SessionID, RequestID string
	AgentID                      string
	Message, Answer              string
	AskedAt, AnsweredAt          time.Time
}

// Record remembers a turn in the caller's commit: its event, and with it the
// session's transcript. The request id is the event's source id, so a turn
// that is recorded twice leaves one trace.
func (m *Memory) Record(tx *store.Tx, t Turn) error {
	e, err := event.NewTurn(event.Event{
		PublicID: m.cfg.NewID(""), UserID: t.UserID, FormationID: m.cfg.FormationID,
		OccurredAt: t.AskedAt, SourceID: t.RequestID, AgentID: t.AgentID,
		Conversation: t.SessionID, RequestID: t.RequestID,
	}, event.Turn{UserMessage: t.Message, AgentResponse: t.Answer, SessionID: t.SessionID})
	if err != nil {
		return err
	}
	created, err := event.Append(tx, e, t.AnsweredAt)
	if err != nil || !created {
		return err
	}
	return buffer.Append(tx, buffer.Exchange{
		UserID: t.UserID, SessionID: t.SessionID, RequestID: t.RequestID, AgentID: t.AgentID,
		Question: t.Message, Answer: t.Answer, QuestionID: m.cfg.NewID("msg_"), AnswerID: m.cfg.NewID("msg_"),
		AskedAt: t.AskedAt, AnsweredAt: t.AnsweredAt,
	})
}

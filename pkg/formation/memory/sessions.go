package memory

import (
	"context"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory/buffer"
)

// Session is one conversation of a user.
type Session = buffer.Session

// MessageQuery selects messages of one session.
type MessageQuery = buffer.MessageQuery

// Sessions returns a user's sessions, newest activity first, and whether there
// are more than limit.
func (m *Memory) Sessions(ctx context.Context, userID string, activeOnly bool, limit int) ([]Session, bool, error) {
	return buffer.Sessions(ctx, m.cfg.DB, userID, activeOnly, limit)
}

// Session returns one session of a user; the fault RESOURCE_NOT_FOUND when
// there is none.
func (m *Memory) Session(ctx context.Context, userID, sessionID string) (Session, error) {
	return buffer.Get(ctx, m.cfg.DB, userID, sessionID)
}

// LastAgent tells which agent answered last in a session; "" when none did, or
// the session is unknown.
func (m *Memory) LastAgent(ctx context.Context, userID, sessionID string) (string, error) {
	past, err := buffer.Window(ctx, m.cfg.DB, userID, sessionID, 0)
	return past.LastAgent, err
}

// Messages returns the newest messages of a session said before a time, oldest
// first, and whether there are older ones. An unknown session has none.
func (m *Memory) Messages(ctx context.Context, q MessageQuery) ([]chat.StoredMessage, bool, error) {
	return buffer.Messages(ctx, m.cfg.DB, q)
}

// Package buffer is the short-term memory: the transcript of each session and
// the window of it that a turn sees. Everything is partitioned by user and
// session; a session id of one user never shows another user's messages.
//
// It writes in the commit of the turn's event and reads on its own.
package buffer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/store"
)

// Exchange is a finished turn to remember.
type Exchange struct {
	UserID, SessionID, RequestID string
	AgentID                      string
	Question, Answer             string
	QuestionID, AnswerID         string
	AskedAt, AnsweredAt          time.Time
	// Pending is the question that the answer puts, in its stored form; nil for
	// none.
	Pending []byte
}

// Append adds an exchange to its session in the caller's commit, and begins
// the session with its first one. What the session was asked before is settled.
//
// The times of a session's messages rise with their order, by a millisecond at
// least: readers page by time, and would miss or repeat one otherwise. So what
// was asked before the answer in front of it came, or while the clock was set
// back, has the time at which its turn came.
func Append(tx *store.Tx, x Exchange) error {
	var last int64
	if err := tx.QueryRow(`SELECT created_at FROM messages WHERE user_id = ? AND session_id = ? ORDER BY mid DESC LIMIT 1`,
		[]any{x.UserID, x.SessionID}, &last); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read the session's last message: %w", err)
	}
	asked := max(x.AskedAt.UnixMilli(), last+1)
	if _, err := tx.Exec(`INSERT INTO messages (id, user_id, session_id, role, agent_id, content, created_at, request_id)
		VALUES (?1, ?2, ?3, 'user', '', ?4, ?5, ?6), (?7, ?2, ?3, 'assistant', ?8, ?9, ?10, ?6)`,
		x.QuestionID, x.UserID, x.SessionID, x.Question, asked, x.RequestID,
		x.AnswerID, x.AgentID, x.Answer, max(x.AnsweredAt.UnixMilli(), asked+1)); err != nil {
		return fmt.Errorf("store exchange: %w", err)
	}
	at := x.AnsweredAt.UnixMilli()
	var pending, pendingSince any
	if x.Pending != nil {
		pending, pendingSince = string(x.Pending), at
	}
	if _, err := tx.Exec(`INSERT INTO sessions (user_id, session_id, last_agent, message_count, created_at, last_activity, question, asked_at)
		VALUES (?, ?, ?, 2, ?, ?, ?, ?)
		ON CONFLICT (user_id, session_id) DO UPDATE SET
			last_agent = CASE WHEN excluded.last_agent <> '' THEN excluded.last_agent ELSE last_agent END,
			message_count = message_count + 2, last_activity = excluded.last_activity,
			question = excluded.question, asked_at = excluded.asked_at`,
		x.UserID, x.SessionID, x.AgentID, x.AskedAt.UnixMilli(), at, pending, pendingSince); err != nil {
		return fmt.Errorf("store session: %w", err)
	}
	return nil
}

// Past is what a session's next message follows.
type Past struct {
	Messages  []chat.Message // oldest first
	LastAgent string         // who answered last
	// Pending is the question that waits, in its stored form, and Asked when it
	// was put; nil when none does.
	Pending []byte
	Asked   time.Time
}

// Window returns the newest n messages of a session in the order they were
// said, with what else the next one follows.
func Window(ctx context.Context, db *store.DB, userID, sessionID string, n int) (p Past, err error) {
	var asked sql.NullInt64
	err = db.QueryRow(ctx, `SELECT last_agent, question, asked_at FROM sessions WHERE user_id = ? AND session_id = ?`,
		[]any{userID, sessionID}, &p.LastAgent, &p.Pending, &asked)
	if errors.Is(err, sql.ErrNoRows) {
		return Past{}, nil
	}
	if err != nil {
		return Past{}, fmt.Errorf("read session: %w", err)
	}
	if asked.Valid {
		p.Asked = time.UnixMilli(asked.Int64).UTC()
	}
	if n <= 0 {
		return p, nil
	}
	rows, err := db.Query(ctx, `SELECT role, content FROM messages WHERE user_id = ? AND session_id = ?
		ORDER BY mid DESC LIMIT ?`, userID, sessionID, n)
	if err != nil {
		return Past{}, fmt.Errorf("read buffer: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var m chat.Message
		if err := rows.Scan(&m.Role, &m.Content); err != nil {
			return Past{}, fmt.Errorf("read buffer: %w", err)
		}
		p.Messages = append(p.Messages, m)
	}
	slices.Reverse(p.Messages)
	return p, rows.Err()
}

// Withdraw takes the question of a session back, in the caller's commit.
func Withdraw(tx *store.Tx, userID, sessionID string) error {
	if _, err := tx.Exec(`UPDATE sessions SET question = NULL, asked_at = NULL
		WHERE user_id = ? AND session_id = ? AND asked_at IS NOT NULL`, userID, sessionID); err != nil {
		return fmt.Errorf("withdraw a question: %w", err)
	}
	return nil
}

// Expire takes back what was asked before the given time, in the caller's
// commit, and returns the sessions that were asked.
func Expire(tx *store.Tx, before time.Time) ([]Session, error) {
	rows, err := tx.Query(`UPDATE sessions SET question = NULL, asked_at = NULL WHERE asked_at < ?
		RETURNING user_id, session_id`, before.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("expire questions: %w", err)
	}
	defer rows.Close()
	var out []Session
	for rows.Next() {
		var s Session
		if err := rows.Scan(&s.UserID, &s.ID); err != nil {
			return nil, fmt.Errorf("expire questions: %w", err)
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// activeFor is how long after its last message a session counts as active:
// the default of memory.captains_log.session_idle_minutes.
const activeFor = 30 * time.Minute

// Session is one conversation of a user.
type Session struct {
	ID           string
	UserID       string
	Title        *string
	MessageCount int
	CreatedAt    time.Time
	LastActivity time.Time
	Active       bool
}

const selectSession = `SELECT session_id, user_id, title, message_count, created_at, last_activity FROM sessions`

func scanSession(now time.Time, scan func(...any) error) (Session, error) {
	var s Session
	var created, last int64
	if err := scan(&s.ID, &s.UserID, &s.Title, &s.MessageCount, &created, &last); err != nil {
		return Session{}, err
	}
	s.CreatedAt, s.LastActivity = time.UnixMilli(created).UTC(), time.UnixMilli(last).UTC()
	s.Active = now.Sub(s.LastActivity) < activeFor
	return s, nil
}

// Sessions returns a user's sessions, newest activity first, and whether there
// are more than limit.
func Sessions(ctx context.Context, db *store.DB, userID string, activeOnly bool, limit int) (list []Session, more bool, err error) {
	now, since := db.Now(), int64(0)
	if activeOnly {
		since = now.Add(-activeFor).UnixMilli()
	}
	rows, err := db.Query(ctx, selectSession+` WHERE user_id = ? AND last_activity > ?
		ORDER BY last_activity DESC, session_id LIMIT ?`, userID, since, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list sessions: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		s, err := scanSession(now, rows.Scan)
		if err != nil {
			return nil, false, fmt.Errorf("list sessions: %w", err)
		}
		list = append(list, s)
	}
	if len(list) > limit {
		return list[:limit], true, rows.Err()
	}
	return list, false, rows.Err()
}

// Get returns one session of a user; the fault RESOURCE_NOT_FOUND when there is none.
func Get(ctx context.Context, db *store.DB, userID, sessionID string) (Session, error) {
	s, err := scanSession(db.Now(), func(dest ...any) error {
		return db.QueryRow(ctx, selectSession+` WHERE user_id = ? AND session_id = ?`, []any{userID, sessionID}, dest...)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, fault.Errorf(fault.NotFound, "RESOURCE_NOT_FOUND", "no session with id %q", sessionID)
	}
	if err != nil {
		return Session{}, fmt.Errorf("read session: %w", err)
	}
	return s, nil
}

// Messages returns the newest limit messages of a session said before the
// given time (zero: now), oldest first, and whether there are older ones. An
// unknown session has none.
func Messages(ctx context.Context, db *store.DB, q MessageQuery) (list []chat.StoredMessage, more bool, err error) {
	before := int64(1) << 62
	if !q.Before.IsZero() {
		before = q.Before.UnixMilli()
	}
	rows, err := db.Query(ctx, `SELECT id, role, agent_id, content, created_at FROM messages
		WHERE user_id = ? AND session_id = ? AND created_at < ? ORDER BY mid DESC LIMIT ?`,
		q.UserID, q.SessionID, before, q.Limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list messages: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		m := chat.StoredMessage{UserID: q.UserID, SessionID: q.SessionID}
		var at int64
		if err := rows.Scan(&m.ID, &m.Role, &m.AgentID, &m.Content, &at); err != nil {
			return nil, false, fmt.Errorf("list messages: %w", err)
		}
		m.Time = time.UnixMilli(at).UTC()
		list = append(list, m)
	}
	if len(list) > q.Limit {
		list, more = list[:q.Limit], true
	}
	slices.Reverse(list)
	return list, more, rows.Err()
}

// MessageQuery selects messages of one session.
type MessageQuery struct {
	UserID, SessionID string
	Before            time.Time
	Limit             int
}

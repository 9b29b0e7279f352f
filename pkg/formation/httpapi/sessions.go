package httpapi

import (
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/httpx"
)

// The bounds of limit on the session routes (reference runtime.md 2.3).
const (
	defaultSessions = 50
	maxSessions     = 1000
)

type sessionItem struct {
	SessionID    string   `json:"session_id"`
	UserID       string   `json:"user_id"`
	Title        *string  `json:"title"`
	CreatedAt    jsonTime `json:"created_at"`
	LastActivity jsonTime `json:"last_activity"`
	Active       bool     `json:"active"`
}

type sessionList struct {
	Sessions []sessionItem `json:"sessions"`
	Count    int           `json:"count"`
	HasMore  bool          `json:"has_more"`
}

type sessionDocument struct {
	sessionItem
	MessageCount int      `json:"message_count"`
	Metadata     struct{} `json:"metadata"`
}

type messageItem struct {
	ID        string          `json:"id"`
	Text      string          `json:"text"`
	Content   string          `json:"content"` // the same: clients read either
	Timestamp jsonTime        `json:"timestamp"`
	Metadata  messageMetadata `json:"metadata"`
}

type messageMetadata struct {
	Role      chat.Role `json:"role"`
	UserID    string    `json:"user_id"`
	SessionID string    `json:"session_id"`
	AgentID   string    `json:"agent_id,omitempty"`
}

type messageList struct {
	SessionID string        `json:"session_id"`
	Messages  []messageItem `json:"messages"`
	Count     int           `json:"count"`
	HasMore   bool          `json:"has_more"`
}

func (a *api) listSessions(c echo.Context, who caller) error {
	limit, err := queryLimit(c)
	if err != nil {
		return err
	}
	activeOnly, err := queryBool(c, "active_only")
	if err != nil {
		return err
	}
	sessions, more, err := a.cfg.Sessions.Sessions(c.Request().Context(), who.user, activeOnly, limit)
	if err != nil {
		return err
	}
	list := sessionList{Sessions: make([]sessionItem, len(sessions)), Count: len(sessions), HasMore: more}
	for i := range sessions {
		list.Sessions[i] = sessionOf(&sessions[i])
	}
	return a.reply(c, objectSessionList, typeSessionList, &list)
}

func (a *api) getSession(c echo.Context, who caller) error {
	s, err := a.cfg.Sessions.Session(c.Request().Context(), who.user, httpx.Param(c, "id"))
	if err != nil {
		return err
	}
	return a.reply(c, objectSession, typeSession, &sessionDocument{
		sessionItem: sessionOf(&s), MessageCount: s.MessageCount,
	})
}

func (a *api) sessionMessages(c echo.Context, who caller) error {
	limit, err := queryLimit(c)
	if err != nil {
		return err
	}
	q := memory.MessageQuery{UserID: who.user, SessionID: httpx.Param(c, "id"), Limit: limit}
	if before := c.QueryParam("before"); before != "" {
		if q.Before, err = time.Parse(time.RFC3339, before); err != nil {
			return fault.New(fault.Invalid, "", "before must be a time such as 2026-01-31T09:30:00Z")
		}
	}
	messages, more, err := a.cfg.Sessions.Messages(c.Request().Context(), q)
	if err != nil {
		return err
	}
	list := messageList{
		SessionID: q.SessionID, Messages: make([]messageItem, len(messages)),
		Count: len(messages), HasMore: more,
	}
	for i := range messages {
		m := &messages[i]
		list.Messages[i] = messageItem{
			ID: m.ID, Text: m.Content, Content: m.Content, Timestamp: jsonTime(m.Time),
			Metadata: messageMetadata{Role: m.Role, UserID: m.UserID, SessionID: m.SessionID, AgentID: m.AgentID},
		}
	}
	return a.reply(c, objectList, typeSessionMessages, &list)
}

func sessionOf(s *memory.Session) sessionItem {
	return sessionItem{
		SessionID: s.ID, UserID: s.UserID, Title: s.Title, CreatedAt: jsonTime(s.CreatedAt),
		LastActivity: jsonTime(s.LastActivity), Active: s.Active,
	}
}

func queryLimit(c echo.Context) (int, error) {
	text := c.QueryParam("limit")
	if text == "" {
		return defaultSessions, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxSessions {
		return 0, fault.Errorf(fault.Invalid, "", "limit must be a number from 1 to %d", maxSessions)
	}
	return n, nil
}

func queryBool(c echo.Context, name string) (bool, error) {
	text := c.QueryParam(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, fault.New(fault.Invalid, "", name+" must be true or false")
	}
	return v, nil
}

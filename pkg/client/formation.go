package client

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// FormationHealth is what a formation says of itself to anyone.
type FormationHealth struct {
	Status      string    `json:"status"`
	FormationID string    `json:"formation_id"`
	Version     string    `json:"version"`
	Timestamp   time.Time `json:"timestamp"`
}

// Health asks the formation how it is. It needs no key.
func (f *Formation) Health(ctx context.Context) (*FormationHealth, error) {
	body, err := f.caller.fetch(ctx, newCall(http.MethodGet, "v1", "health"))
	if err != nil {
		return nil, err
	}
	var out FormationHealth
	if err := json.Unmarshal(body, &out); err != nil || out.Status == "" {
		return nil, badReply(http.StatusOK, "a health document without status")
	}
	return &out, nil
}

// Agent is one agent of a formation.
type Agent struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Role        string `json:"role"`
	Description string `json:"description"`
	Model       string `json:"model"`
	Provider    string `json:"provider"`
	Enabled     bool   `json:"enabled"`
	Status      string `json:"status"`
}

// Agents returns the formation's agents. It needs the admin key.
func (f *Formation) Agents(ctx context.Context) ([]Agent, error) {
	var out struct {
		Agents []Agent `json:"agents"`
	}
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "agents"), &out); err != nil {
		return nil, err
	}
	return out.Agents, nil
}

// Session is one conversation of a user.
type Session struct {
	SessionID    string    `json:"session_id"`
	UserID       string    `json:"user_id"`
	Title        *string   `json:"title"`
	CreatedAt    time.Time `json:"created_at"`
	LastActivity time.Time `json:"last_activity"`
	Active       bool      `json:"active"`
}

// Sessions returns the user's newest sessions, at most limit (0: 50, the
// formation gives at most 1000). It needs UserID.
func (f *Formation) Sessions(ctx context.Context, limit int) ([]Session, error) {
	c := newCall(http.MethodGet, "v1", "sessions")
	if limit > 0 {
		c.query.Set("limit", strconv.Itoa(limit))
	}
	var out struct {
		Sessions []Session `json:"sessions"`
	}
	if err := f.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return out.Sessions, nil
}

// Message is one message of a session.
type Message struct {
	ID        string    `json:"id"`
	Content   string    `json:"content"`
	Timestamp time.Time `json:"timestamp"`
	Metadata  struct {
		Role    string `json:"role"`
		AgentID string `json:"agent_id"`
	} `json:"metadata"`
}

// Messages returns the newest messages of a session, oldest first. It needs UserID.
func (f *Formation) Messages(ctx context.Context, sessionID string) ([]Message, error) {
	var out struct {
		Messages []Message `json:"messages"`
	}
	err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "sessions", sessionID, "messages"), &out)
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// EventFilter chooses events of a formation; an empty field chooses all.
type EventFilter struct {
	SessionID string
	RequestID string
	AgentID   string
	Level     string // DEBUG, INFO, WARNING, ERROR or CRITICAL, and above
	Type      string // "chat.*": each * stands for any text
}

// plain says whether the filter asks for what happens, and not for the log.
func (f *EventFilter) plain() bool {
	return f.RequestID == "" && f.AgentID == "" && f.Level == "" && f.Type == ""
}

// LiveEvent is something that happened in a formation.
type LiveEvent struct {
	Timestamp int64           `json:"timestamp,omitempty"` // epoch milliseconds
	Level     string          `json:"level,omitempty"`     // "" without a filter that reads the log
	Type      string          `json:"type,omitempty"`
	Message   string          `json:"message"`
	RequestID string          `json:"request_id,omitempty"`
	SessionID string          `json:"session_id,omitempty"`
	UserID    string          `json:"user_id,omitempty"`
	AgentID   string          `json:"agent_id,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	// Fault says that this is no event: Message tells what the reader missed.
	Fault bool `json:"error,omitempty"`
}

// Time returns when it happened.
func (e *LiveEvent) Time() time.Time { return time.UnixMilli(e.Timestamp) }

// FollowEvents hands what happens in the formation to sink, from now on, until
// ctx ends, sink returns an error (both are returned) or the stream ends
// (NameBrokenStream): the formation ends it after ten minutes. Without a filter,
// or with a session alone, it is what happens in chats, agents and their tasks;
// any other filter reads the whole log too. UserID is whose events they are;
// only the admin key may leave it out.
func (f *Formation) FollowEvents(ctx context.Context, filter EventFilter, sink func(LiveEvent) error) error {
	return f.caller.events(ctx, streaming{
		call: f.newEventsCall(&filter).wantEvents(), idle: f.idle,
		onEvent: func(ev Event) (bool, error) {
			var wire struct {
				LiveEvent
				EventType string `json:"event_type"`
			}
			if err := json.Unmarshal(ev.Data, &wire); err != nil {
				return true, badReply(http.StatusOK, "an event that is no JSON object")
			}
			if wire.EventType != "" {
				wire.Type = wire.EventType
			}
			return false, sink(wire.LiveEvent)
		},
	})
}

func (f *Formation) newEventsCall(filter *EventFilter) *call {
	var c *call
	switch {
	case !filter.plain():
		c = newCall(http.MethodGet, "v1", "logs")
		for name, value := range map[string]string{
			"user_id": f.user, "session_id": filter.SessionID, "request_id": filter.RequestID, "agent_id": filter.AgentID,
			"level": filter.Level, "event_type": filter.Type,
		} {
			if value != "" {
				c.query.Set(name, value)
			}
		}
	case filter.SessionID != "":
		c = newCall(http.MethodGet, "v1", "events", filter.SessionID)
	default:
		c = newCall(http.MethodGet, "v1", "events")
	}
	c.timeout = 0
	return c
}

// Package event is the immutable log of what a formation learned. Other
// memories are projections of it. An event is appended in the commit of what
// it tells about; afterwards only its soft deletion may change it.
//
// Types and payloads are those of reference memory.md 7.3, strict: a payload
// that lacks a required key or has an unknown one is refused.
package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/store"
)

// The event types this release writes.
const InteractionTurn = "interaction.turn"

// SourceInteraction is the source of events that a chat turn made.
const SourceInteraction = "interaction"

// Event is one entry of the log, in user scope.
type Event struct {
	PublicID     string // 21-character id, the only one that is shown
	UserID       string
	FormationID  string
	OccurredAt   time.Time
	Type         string
	Version      int
	Payload      json.RawMessage
	Source       string
	SourceID     string // "" for none; else unique per formation, user and source
	AgentID      string
	Conversation string // session id
	RequestID    string // the turn that caused it
}

// Turn is the payload of interaction.turn version 1.
type Turn struct {
	UserMessage   string `json:"user_message"`
	AgentResponse string `json:"agent_response,omitempty"`
	SessionID     string `json:"session_id,omitempty"`
}

// ErrPayload tells that an event's payload does not fit its type.
var ErrPayload = errors.New("event payload does not fit its type")

// NewTurn returns the event of a finished turn.
func NewTurn(base Event, payload Turn) (Event, error) {
	if payload.UserMessage == "" {
		return Event{}, fmt.Errorf("%s: user_message is missing: %w", InteractionTurn, ErrPayload)
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		return Event{}, fmt.Errorf("encode %s: %w", InteractionTurn, err)
	}
	base.Type, base.Version, base.Payload, base.Source = InteractionTurn, 1, raw, SourceInteraction
	return base, nil
}

// Append writes e in the caller's commit. ingested_at is the store's clock.
// An event whose source id exists already is left alone: a replayed append
// never makes a second row.
func Append(tx *store.Tx, e Event, now time.Time) (created bool, err error) {
	n, err := tx.Exec(`INSERT INTO memory_events (public_id, user_id, formation_id, occurred_at, ingested_at, event_type,
			event_version, payload, source, source_id, agent_id, conversation_id, request_id)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULLIF(?, ''), NULLIF(?, ''), NULLIF(?, ''), NULLIF(?, ''))
		ON CONFLICT DO NOTHING`,
		e.PublicID, e.UserID, e.FormationID, e.OccurredAt.UnixMilli(), now.UnixMilli(), e.Type,
		e.Version, string(e.Payload), e.Source, e.SourceID, e.AgentID, e.Conversation, e.RequestID)
	if err != nil {
		return false, fmt.Errorf("append %s: %w", e.Type, err)
	}
	return n == 1, nil
}

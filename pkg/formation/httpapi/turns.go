package httpapi

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/request"
)

// Turns is what the chat routes need of the turn engine.
type Turns interface {
	// Begin accepts a turn durably, or joins or replays the one that its
	// idempotency key names. Faults: AGENT_NOT_FOUND, CONFLICT, SYSTEM_OVERLOAD.
	Begin(ctx context.Context, r TurnRequest) (Turn, error)
	// Find returns an existing turn to follow. The fault is NotFound, and
	// Forbidden for another user's unless admin.
	Find(ctx context.Context, userID, requestID string, admin bool) (Turn, error)
	// FindKey returns the streaming turn that ran under an idempotency key of
	// the route; the fault is NotFound.
	FindKey(ctx context.Context, userID, route, key string) (Turn, error)
	// Cancel ends a turn and says how: cooperative or immediate. Faults:
	// NotFound, Forbidden, OPERATION_FAILED when it has ended otherwise.
	Cancel(ctx context.Context, userID, requestID string, admin bool) (cancellation string, err error)
}

// TurnRequest is a chat message as the turn engine takes it.
type TurnRequest struct {
	ID, UserID, SessionID, AgentID, GroupID, Message string

	Mode           string // manifest.ModeAuto, ModeSync or ModeAsync
	Stream         bool
	OnDisconnect   string // "" for the formation's, continue, cancel
	IdempotencyKey string
	Route          string   // scope of the key
	BodyHash       [32]byte // canonical body, with a key only
	// ThresholdSeconds overrides the estimate above which an auto turn goes on
	// in the background.
	ThresholdSeconds *float64
}

// Turn is a turn that was accepted or found.
type Turn interface {
	Info() TurnInfo
	// Wait returns the result; the error is the turn's fault, or that of ctx.
	Wait(ctx context.Context) (*Reply, error)
	// Frames calls emit with the stored frames above after and then the live
	// ones, in order, until the turn has ended. ctx ends the subscription only.
	Frames(ctx context.Context, after uint64, emit func([]request.Frame) error) error
}

// TurnInfo names a turn.
type TurnInfo struct {
	ID, UserID, SessionID string
	Async                 bool      // goes on in the background: answer 202
	AcceptedAt            time.Time // of the first acceptance
}

// Reply is the result of a turn.
type Reply struct {
	RequestID, UserID, SessionID string
	Response, Agent, Model       string
	Status, ProcessingMode       string
	Usage                        chat.Usage
	CompletedAt                  time.Time
}

// Requests reads request records; request.Reader satisfies it.
type Requests interface {
	Get(ctx context.Context, id string) (*request.Record, error)
	List(ctx context.Context, userID string) ([]request.Record, error)
	Count(ctx context.Context) (total, active int, err error)
}

// Sessions reads sessions and transcripts; memory.Memory satisfies it.
type Sessions interface {
	Sessions(ctx context.Context, userID string, activeOnly bool, limit int) ([]memory.Session, bool, error)
	Session(ctx context.Context, userID, sessionID string) (memory.Session, error)
	Messages(ctx context.Context, q memory.MessageQuery) ([]chat.StoredMessage, bool, error)
}

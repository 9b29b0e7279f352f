package httpapi

import (
	"context"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
)

// Turns is what the routes need of the turn engine; *turn.Service satisfies it.
type Turns interface {
	// Begin accepts a turn durably, or joins or replays the one that its
	// idempotency key names. Faults: AGENT_NOT_FOUND, CONFLICT.
	Begin(ctx context.Context, r turn.Request) (*turn.Handle, error)
	// Find returns an existing turn to follow. The fault is NotFound, and
	// Forbidden for another user's unless admin.
	Find(ctx context.Context, userID, requestID string, admin bool) (*turn.Handle, error)
	// FindKey returns the turn that ran under an idempotency key; the fault is
	// NotFound.
	FindKey(ctx context.Context, r turn.Request) (*turn.Handle, error)
	// Cancel ends a turn and says how: cooperative or immediate. Faults:
	// NotFound, Forbidden, OPERATION_FAILED when it has ended otherwise.
	Cancel(ctx context.Context, userID, requestID string, admin bool) (cancellation string, err error)
	// Trace returns the object {"spans":[…],"totals":{…}} of a turn, running or
	// ended. Faults: NotFound, Forbidden.
	Trace(ctx context.Context, userID, requestID string, admin bool) ([]byte, error)
	// Counts returns how many turns were accepted since the start and how many
	// are open.
	Counts() (total, active int64)
}

// follower is a turn whose frames are read; *turn.Handle satisfies it.
type follower interface {
	// Frames calls emit with the stored frames above after and then the live
	// ones, in order, until the turn has ended. ctx ends the reading only.
	Frames(ctx context.Context, after uint64, emit func([]turn.Frame) error) error
	// Stopped tells that the process stops and the turn goes on in the next.
	Stopped() bool
}

// Requests reads request records; request.Reader satisfies it.
type Requests interface {
	Get(ctx context.Context, id string) (*request.Record, error)
	// List returns the newest records of a user, of all users for "".
	List(ctx context.Context, userID string) ([]request.Record, error)
}

// Sessions reads sessions and transcripts; *memory.Memory satisfies it.
type Sessions interface {
	Sessions(ctx context.Context, userID string, activeOnly bool, limit int) ([]memory.Session, bool, error)
	Session(ctx context.Context, userID, sessionID string) (memory.Session, error)
	Messages(ctx context.Context, q memory.MessageQuery) ([]chat.StoredMessage, bool, error)
	// LastAgent is who answered last in a session, "" when there is none.
	LastAgent(ctx context.Context, userID, sessionID string) (string, error)
}

var (
	_ Turns    = (*turn.Service)(nil)
	_ follower = (*turn.Handle)(nil)
	_ Requests = request.Reader{}
	_ Sessions = (*memory.Memory)(nil)
)

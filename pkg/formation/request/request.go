// Package request keeps the durable side of a turn: its record, the key under
// which a caller may repeat it, the journal of finished steps and the frames
// of its stream.
//
// Everything that changes takes a *store.Tx, so the turn decides what commits
// together; everything that reads takes a context. Ended requests are kept for
// async.result_ttl (24 h by default) and then removed by Purge.
package request

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/store"
)

// States of a request (reference runtime.md 4.2). The last three are terminal.
const (
	Pending               = "pending"
	Processing            = "processing"
	Running               = "running"
	AwaitingClarification = "awaiting_clarification"
	Completed             = "completed"
	Failed                = "failed"
	Cancelled             = "cancelled"
)

// Modes in which a turn was accepted.
const (
	ModeSync   = "sync"   // the caller waits for one JSON reply
	ModeStream = "stream" // frames are stored and sent
	ModeAsync  = "async"  // accepted, the result is polled
)

// MaxKeys bounds the idempotency records that are kept.
const MaxKeys = 10_000

// Record is one accepted turn.
type Record struct {
	ID           string
	UserID       string
	SessionID    string
	Status       string
	Mode         string
	OnDisconnect string // "", continue, cancel
	AgentID      string // as asked for, "" for routing; after the end the one that answered
	Message      string
	LaunchID     string // the process that works on it
	Attempt      int    // from 1; one more for every resumption
	CreatedAt    time.Time
	CompletedAt  *time.Time
	Progress     string // "" when nothing is known
	Result       string
	Reply        []byte // JSON of what a replay needs beside Result
	Error        string
	ErrorCode    string
	// Click is the choice in a widget that came with the message, as JSON; nil
	// for none.
	Click []byte
}

// Ended tells whether the record is terminal.
func (r *Record) Ended() bool { return r.CompletedAt != nil }

// Settled tells whether nobody works on it any more: it has ended, or waits for
// its user.
func (r *Record) Settled() bool { return r.Ended() || r.Status == AwaitingClarification }

// Key is an idempotency key in its scope.
type Key struct {
	Scope    [32]byte // KeyScope
	BodyHash [32]byte // of the canonical body
}

// KeyScope hashes what makes a key unique: method and path, user, response
// mode and the key itself. Lengths are part of the hash, so that no two
// different tuples serialise alike.
func KeyScope(route, userID, mode, key string) [32]byte {
	h := sha256.New()
	for _, part := range []string{route, userID, mode, key} {
		fmt.Fprintf(h, "%d:%s;", len(part), part)
	}
	return [32]byte(h.Sum(nil))
}

// Accepted is the outcome of Accept.
type Accepted struct {
	Record Record
	// Existing is set when the key named a request that is open or whose reply
	// is to be replayed: nothing new was stored.
	Existing bool
}

// Accept stores a new request in the caller's commit, or finds the one that
// its key names. Faults: CONFLICT when the key was used with another body, or
// when the id exists.
func Accept(tx *store.Tx, r Record, key *Key) (Accepted, error) {
	if key != nil {
		existing, err := existing(tx, key)
		if err != nil {
			return Accepted{}, err
		}
		if existing != nil {
			return Accepted{Record: *existing, Existing: true}, nil
		}
		if _, err := tx.Exec(`INSERT INTO idempotency (key, request_id, body_hash, created_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET request_id = excluded.request_id, body_hash = excluded.body_hash, created_at = excluded.created_at`,
			key.Scope[:], r.ID, key.BodyHash[:], r.CreatedAt.UnixMilli()); err != nil {
			return Accepted{}, fmt.Errorf("store idempotency key: %w", err)
		}
	}
	n, err := tx.Exec(`INSERT INTO requests (id, user_id, session_id, status, mode, on_disconnect, agent_id, message, launch_id, created_at, click)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
		r.ID, r.UserID, r.SessionID, r.Status, r.Mode, r.OnDisconnect, r.AgentID, r.Message, r.LaunchID, r.CreatedAt.UnixMilli(), r.Click)
	if err != nil {
		return Accepted{}, fmt.Errorf("store request: %w", err)
	}
	if n == 0 {
		return Accepted{}, fault.Errorf(fault.Conflict, "CONFLICT",
			"request_id %q is already in use; choose another, or send Last-Event-ID to follow that request", r.ID)
	}
	r.Attempt = 1
	return Accepted{Record: r}, nil
}

// A key names its request by id and time of acceptance. Callers choose ids, and
// once a request is purged, anybody may give its id to another one: a key that
// outlived its request, if only until the next purge, must not answer with that.
const selectKeyed = `SELECT request_id, body_hash FROM idempotency AS k WHERE key = ?
	AND EXISTS (SELECT 1 FROM requests AS r WHERE r.id = k.request_id AND r.created_at = k.created_at)`

// existing returns the request that key stands for, when it is open or its
// reply may be replayed. Failed and cancelled requests and ended streams run
// again under the same key.
func existing(tx *store.Tx, key *Key) (*Record, error) {
	var id string
	var bodyHash []byte
	err := tx.QueryRow(selectKeyed, []any{key.Scope[:]}, &id, &bodyHash)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil // never used, or its request is purged and it may be used anew
	}
	if err != nil {
		return nil, fmt.Errorf("look up idempotency key: %w", err)
	}
	r, err := scan(func(dest ...any) error { return tx.QueryRow(selectRecord+` WHERE id = ?`, []any{id}, dest...) })
	if err != nil {
		return nil, fmt.Errorf("read the request of an idempotency key: %w", err)
	}
	// The body is compared even when the request would run again: the same
	// key for another body is a mistake of the caller either way.
	if string(bodyHash) != string(key.BodyHash[:]) {
		return nil, fault.New(fault.Conflict, "CONFLICT",
			"the idempotency key was used with another body; use a new key for a new request")
	}
	if r.Ended() && (r.Status != Completed || r.Mode == ModeStream) {
		return nil, nil
	}
	return r, nil
}

const selectRecord = `SELECT id, user_id, session_id, status, mode, on_disconnect, agent_id, message, launch_id, attempt,
	created_at, completed_at, COALESCE(result, ''), reply, COALESCE(error, ''), COALESCE(error_code, ''), click FROM requests`

func scan(row func(dest ...any) error) (*Record, error) {
	var r Record
	var created int64
	var completed sql.NullInt64
	if err := row(&r.ID, &r.UserID, &r.SessionID, &r.Status, &r.Mode, &r.OnDisconnect, &r.AgentID, &r.Message, &r.LaunchID,
		&r.Attempt, &created, &completed, &r.Result, &r.Reply, &r.Error, &r.ErrorCode, &r.Click); err != nil {
		return nil, err
	}
	r.CreatedAt = time.UnixMilli(created).UTC()
	if completed.Valid {
		at := time.UnixMilli(completed.Int64).UTC()
		r.CompletedAt = &at
	}
	return &r, nil
}

// End is how a request ended.
type End struct {
	ID        string
	Status    string // Completed, Failed or Cancelled; or AwaitingClarification: then it ends later, with Settle
	AgentID   string // who answered; "" leaves what was asked for
	Result    string
	Reply     []byte
	Error     string
	ErrorCode string
	At        time.Time
}

// Finish ends an open request in the caller's commit. It reports false, and
// changes nothing, when the request has ended already.
func Finish(tx *store.Tx, e End) (bool, error) {
	if e.Status == AwaitingClarification {
		return ask(tx, e)
	}
	n, err := tx.Exec(`UPDATE requests SET status = ?, agent_id = CASE WHEN ? <> '' THEN ? ELSE agent_id END,
			completed_at = ?, result = ?, reply = ?, error = NULLIF(?, ''), error_code = NULLIF(?, '')
		WHERE id = ? AND completed_at IS NULL`,
		e.Status, e.AgentID, e.AgentID, e.At.UnixMilli(), e.Result, e.Reply, e.Error, e.ErrorCode, e.ID)
	if err != nil {
		return false, fmt.Errorf("end request %s: %w", e.ID, err)
	}
	return n == 1, nil
}

// Claim takes an open request of a fenced launch over. It reports false when
// the request has ended or a living launch has it.
func Claim(tx *store.Tx, id, launchID string) (bool, error) {
	n, err := tx.Exec(`UPDATE requests SET launch_id = ? WHERE id = ? AND completed_at IS NULL
		AND launch_id IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL)`, launchID, id)
	if err != nil {
		return false, fmt.Errorf("claim request %s: %w", id, err)
	}
	return n == 1, nil
}

// Retry counts another attempt at a request that this launch has claimed. It
// reports false when the request has ended meanwhile.
func Retry(tx *store.Tx, id, launchID string) (attempt int, ok bool, err error) {
	n, err := tx.Exec(`UPDATE requests SET attempt = attempt + 1
		WHERE id = ? AND completed_at IS NULL AND launch_id = ?`, id, launchID)
	if err == nil && n == 1 {
		err = tx.QueryRow(`SELECT attempt FROM requests WHERE id = ?`, []any{id}, &attempt)
	}
	if err != nil {
		return 0, false, fmt.Errorf("count an attempt at request %s: %w", id, err)
	}
	return attempt, n == 1, nil
}

// The index is named because the planner would rather read all of a user's
// requests than the few that are open.
const selectRivals = `SELECT EXISTS (SELECT 1 FROM requests AS o INDEXED BY requests_open
		WHERE o.completed_at IS NULL AND o.rid < r.rid AND o.launch_id <> r.launch_id AND o.status <> 'awaiting_clarification'
		  AND o.user_id = r.user_id AND o.session_id = r.session_id)
	FROM requests AS r WHERE r.id = ?`

// Rivals tells whether an older request of the same session is open in the
// hands of another launch.
func Rivals(ctx context.Context, db *store.DB, id string) (found bool, err error) {
	if err := db.QueryRow(ctx, selectRivals, []any{id}, &found); err != nil {
		return false, fmt.Errorf("look for rivals of request %s: %w", id, err)
	}
	return found, nil
}

// Orphans returns the ids and modes of open requests whose launch is fenced,
// oldest first.
func Orphans(ctx context.Context, db *store.DB) ([]Record, error) {
	return list(db.Query(ctx, selectRecord+` WHERE completed_at IS NULL
		AND launch_id IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL) ORDER BY rid`))
}

// Get returns one record; sql.ErrNoRows becomes the fault REQUEST_NOT_FOUND.
func Get(ctx context.Context, db *store.DB, id string) (*Record, error) {
	r, err := scan(func(dest ...any) error { return db.QueryRow(ctx, selectRecord+` WHERE id = ?`, []any{id}, dest...) })
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fault.Errorf(fault.NotFound, "REQUEST_NOT_FOUND", "no request with id %q", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read request %s: %w", id, err)
	}
	return r, nil
}

// ByKey returns the id of the last request that ran under a key, "" when none did.
func ByKey(ctx context.Context, db *store.DB, scope [32]byte) (string, error) {
	var id string
	err := db.QueryRow(ctx, selectKeyed, []any{scope[:]}, &id, new([]byte))
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, err
}

// MaxList bounds List; the newest come first.
const MaxList = 1000

// The texts of a thousand turns may be more than the process has memory for.
const selectListed = `SELECT id, user_id, session_id, status, mode, on_disconnect, agent_id, '', launch_id, attempt,
	created_at, completed_at, '', NULL, COALESCE(error, ''), COALESCE(error_code, ''), NULL FROM requests`

// List returns the records of a user, of everybody when userID is "". They are
// without Message, Click, Result and Reply.
func List(ctx context.Context, db *store.DB, userID string) ([]Record, error) {
	if userID == "" {
		return list(db.Query(ctx, selectListed+` ORDER BY rid DESC LIMIT ?`, MaxList))
	}
	return list(db.Query(ctx, selectListed+` WHERE user_id = ? ORDER BY rid DESC LIMIT ?`, userID, MaxList))
}

func list(rows *sql.Rows, err error) ([]Record, error) {
	if err != nil {
		return nil, fmt.Errorf("list requests: %w", err)
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		r, err := scan(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("list requests: %w", err)
		}
		out = append(out, *r)
	}
	return out, rows.Err()
}

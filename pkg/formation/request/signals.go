package request

import (
	"context"
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// The signals that one living launch gives another about a turn in the other's
// hands.
const (
	SignalCancel = "cancel" // the record says cancelled: stop
	SignalLeft   = "left"   // the last reader over there has gone
	signalReader = "reader" // somebody reads along over there
)

// Signal is one thing to heed.
type Signal struct {
	SID       int64
	RequestID string
	Kind      string // SignalCancel or SignalLeft
}

// Tell signals whoever has a request in hand, in the caller's commit, unless
// that is the caller.
func Tell(tx *store.Tx, requestID, kind, self string) error {
	if _, err := tx.Exec(`INSERT INTO signals (launch_id, request_id, kind)
		SELECT launch_id, id, ? FROM requests WHERE id = ? AND launch_id NOT IN ('', ?)`, kind, requestID, self); err != nil {
		return fmt.Errorf("signal %s of %s: %w", kind, requestID, err)
	}
	return nil
}

// Signals returns what is told to a launch, in order.
func Signals(ctx context.Context, db *store.DB, launchID string) ([]Signal, error) {
	rows, err := db.Query(ctx, `SELECT sid, request_id, kind FROM signals
		WHERE launch_id = ? AND kind <> ? ORDER BY sid`, launchID, signalReader)
	if err != nil {
		return nil, fmt.Errorf("read signals: %w", err)
	}
	defer rows.Close()
	var out []Signal
	for rows.Next() {
		var s Signal
		if err := rows.Scan(&s.SID, &s.RequestID, &s.Kind); err != nil {
			return nil, fmt.Errorf("read signals: %w", err)
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// Heeded removes signals in the caller's commit, and those that nobody is left
// to heed.
func Heeded(tx *store.Tx, signals []Signal) error {
	for i := range signals {
		if _, err := tx.Exec(`DELETE FROM signals WHERE sid = ?`, signals[i].SID); err != nil {
			return fmt.Errorf("remove signals: %w", err)
		}
	}
	return dropUnheeded(tx)
}

// dropUnheeded removes what was told to launches that have ended.
func dropUnheeded(tx *store.Tx) error {
	if _, err := tx.Exec(`DELETE FROM signals WHERE launch_id IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL)`); err != nil {
		return fmt.Errorf("remove signals: %w", err)
	}
	return nil
}

// Join notes a reader of a turn in another launch's hands, in the caller's
// commit; Part takes the note back.
func Join(tx *store.Tx, requestID string) (sid int64, err error) {
	if err := tx.QueryRow(`INSERT INTO signals (launch_id, request_id, kind)
		SELECT launch_id, id, ? FROM requests WHERE id = ? RETURNING sid`, []any{signalReader, requestID}, &sid); err != nil {
		return 0, fmt.Errorf("note a reader of %s: %w", requestID, err)
	}
	return sid, nil
}

// Part removes the note of a reader and tells the turn's launch.
func Part(tx *store.Tx, sid int64, requestID, self string) error {
	if _, err := tx.Exec(`DELETE FROM signals WHERE sid = ?`, sid); err != nil {
		return fmt.Errorf("remove a reader of %s: %w", requestID, err)
	}
	return Tell(tx, requestID, SignalLeft, self)
}

// ReadElsewhere tells whether a turn has readers in other launches.
func ReadElsewhere(ctx context.Context, db *store.DB, requestID string) (found bool, err error) {
	if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM signals WHERE request_id = ? AND kind = ?)`,
		[]any{requestID, signalReader}, &found); err != nil {
		return false, fmt.Errorf("look for readers of %s: %w", requestID, err)
	}
	return found, nil
}

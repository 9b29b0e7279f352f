package request

import (
	"context"
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// SaveStep records a finished step of a turn in the caller's commit. The same
// step twice keeps the first: what was done is done.
func SaveStep(tx *store.Tx, requestID, step string, payload []byte) error {
	if _, err := tx.Exec(`INSERT INTO journal (request_id, step, payload) VALUES (?, ?, ?)
		ON CONFLICT (request_id, step) DO NOTHING`, requestID, step, payload); err != nil {
		return fmt.Errorf("journal step %s of %s: %w", step, requestID, err)
	}
	return nil
}

// DropSteps forgets the journal of an ended turn in the caller's commit.
func DropSteps(tx *store.Tx, requestID string) error {
	if _, err := tx.Exec(`DELETE FROM journal WHERE request_id = ?`, requestID); err != nil {
		return fmt.Errorf("drop journal of %s: %w", requestID, err)
	}
	return nil
}

// Steps returns the finished steps of a turn.
func Steps(ctx context.Context, db *store.DB, requestID string) (map[string][]byte, error) {
	rows, err := db.Query(ctx, `SELECT step, payload FROM journal WHERE request_id = ?`, requestID)
	if err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", requestID, err)
	}
	defer rows.Close()
	steps := make(map[string][]byte)
	for rows.Next() {
		var step string
		var payload []byte
		if err := rows.Scan(&step, &payload); err != nil {
			return nil, fmt.Errorf("read journal of %s: %w", requestID, err)
		}
		steps[step] = payload
	}
	return steps, rows.Err()
}

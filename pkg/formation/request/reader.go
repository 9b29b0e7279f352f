package request

import (
	"context"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/store"
)

// Reader reads records for the doors, which know no store.
type Reader struct{ DB *store.DB }

// Get returns one record, as Get does.
func (r Reader) Get(ctx context.Context, id string) (*Record, error) { return Get(ctx, r.DB, id) }

// List returns the records of a user, as List does.
func (r Reader) List(ctx context.Context, userID string) ([]Record, error) {
	return List(ctx, r.DB, userID)
}

// Asked returns when requests began that an agent has answered since a time,
// oldest first. Those that its rate limits refused are not among them.
func (r Reader) Asked(ctx context.Context, agentID string, since time.Time) ([]time.Time, error) {
	rows, err := r.DB.Query(ctx, `SELECT created_at FROM requests
		WHERE agent_id = ? AND created_at >= ? AND completed_at IS NOT NULL AND COALESCE(error_code, '') <> 'RATE_LIMITED'
		ORDER BY rid`, agentID, since.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("read what agent %s answered: %w", agentID, err)
	}
	defer rows.Close()
	var out []time.Time
	for rows.Next() {
		var at int64
		if err := rows.Scan(&at); err != nil {
			return nil, fmt.Errorf("read what agent %s answered: %w", agentID, err)
		}
		out = append(out, time.UnixMilli(at))
	}
	return out, rows.Err()
}

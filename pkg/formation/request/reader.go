package request

import (
	"context"
	"fmt"

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

// Count returns how many records are kept and how many of them are open.
func (r Reader) Count(ctx context.Context) (total, active int, err error) {
	err = r.DB.QueryRow(ctx, `SELECT count(*), count(*) - count(completed_at) FROM requests`, nil, &total, &active)
	if err != nil {
		return 0, 0, fmt.Errorf("count requests: %w", err)
	}
	return total, active, nil
}

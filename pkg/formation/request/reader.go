package request

import (
	"context"

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

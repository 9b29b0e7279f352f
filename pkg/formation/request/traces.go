package request

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// SaveTrace keeps the spans of a turn in the commit that ends it. The last one
// stays, and a request that is gone gets none.
func SaveTrace(tx *store.Tx, requestID string, trace []byte) error {
	if _, err := tx.Exec(`INSERT INTO request_traces (rid, trace) SELECT rid, ? FROM requests WHERE id = ?
		ON CONFLICT (rid) DO UPDATE SET trace = excluded.trace`, trace, requestID); err != nil {
		return fmt.Errorf("store the trace of %s: %w", requestID, err)
	}
	return nil
}

// Trace returns the spans of an ended turn as they were stored, nil when there
// are none.
func Trace(ctx context.Context, db *store.DB, requestID string) ([]byte, error) {
	var trace []byte
	err := db.QueryRow(ctx, `SELECT trace FROM request_traces JOIN requests USING (rid) WHERE id = ?`, []any{requestID}, &trace)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the trace of %s: %w", requestID, err)
	}
	return trace, nil
}

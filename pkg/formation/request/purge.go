package request

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/store"
)

// purgeBatch bounds one commit of Purge, so that turns never wait long for it.
const purgeBatch = 200

// Purge removes requests that ended before the given time, with their frames
// and journal, the idempotency records of that age whose request is gone, and
// the oldest beyond MaxKeys, but none of an open request, and signals for
// processes that have ended. It returns how many requests went.
func Purge(ctx context.Context, db *store.DB, before time.Time) (int, error) {
	total := 0
	for after := int64(0); ; {
		ids, last, more, err := expired(ctx, db, after, before)
		if err != nil {
			return total, err
		}
		if len(ids) > 0 {
			if err := db.Write(ctx, func(tx *store.Tx) error { return remove(tx, ids) }); err != nil {
				return total, fmt.Errorf("purge requests: %w", err)
			}
			total += len(ids)
		}
		if !more {
			break
		}
		after = last
	}
	return total, db.Write(ctx, func(tx *store.Tx) error {
		if err := dropUnheeded(tx); err != nil {
			return err
		}
		if _, err := tx.Exec(`DELETE FROM idempotency WHERE created_at < ? AND NOT EXISTS
			(SELECT 1 FROM requests AS r WHERE r.id = request_id AND r.created_at = idempotency.created_at)`, before.UnixMilli()); err != nil {
			return err
		}
		// Without its key, an open request would be made a second time.
		_, err := tx.Exec(`DELETE FROM idempotency WHERE created_at <
			COALESCE((SELECT created_at FROM idempotency ORDER BY created_at DESC LIMIT 1 OFFSET ?), 0)
			AND request_id NOT IN (SELECT id FROM requests WHERE completed_at IS NULL)`, MaxKeys-1)
		return err
	})
}

// expired reads one batch in the order of acceptance. A request can't end
// before it began, so the first one that began later ends the search, unless it
// was accepted while the clock was ahead: those after it were not.
func expired(ctx context.Context, db *store.DB, after int64, before time.Time) (ids []string, last int64, more bool, err error) {
	rows, err := db.Query(ctx, `SELECT rid, id, created_at, COALESCE(completed_at, 9223372036854775807)
		FROM requests WHERE rid > ? ORDER BY rid LIMIT ?`, after, purgeBatch)
	if err != nil {
		return nil, 0, false, fmt.Errorf("find expired requests: %w", err)
	}
	defer rows.Close()
	n, limit, now := 0, before.UnixMilli(), db.Now().UnixMilli()
	for rows.Next() {
		var id string
		var created, completed int64
		if err := rows.Scan(&last, &id, &created, &completed); err != nil {
			return nil, 0, false, fmt.Errorf("find expired requests: %w", err)
		}
		n++
		if created >= limit && created <= now {
			return ids, last, false, rows.Err()
		}
		if completed < limit {
			ids = append(ids, id)
		}
	}
	return ids, last, n == purgeBatch, rows.Err()
}

func remove(tx *store.Tx, ids []string) error {
	for _, id := range ids {
		if _, err := tx.Exec(`DELETE FROM request_traces WHERE rid = (SELECT rid FROM requests WHERE id = ?)`, id); err != nil {
			return err
		}
		if _, err := tx.Exec(`DELETE FROM requests WHERE id = ?`, id); err != nil {
			return err
		}
		if _, err := tx.Exec(`DELETE FROM stream_events WHERE request_id = ?`, id); err != nil {
			return err
		}
		if err := errors.Join(DropSteps(tx, id), DropFiles(tx, id)); err != nil {
			return err
		}
	}
	return nil
}

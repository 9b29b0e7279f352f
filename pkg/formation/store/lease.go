package store

import (
	"context"
	"fmt"
)

// TakeLease takes a lease that nobody holds, or whose holder is fenced, for
// this launch; one that it has already it takes anew. held is false while another living launch has it. The token
// rises with every taking.
func (db *DB) TakeLease(ctx context.Context, name string) (token int64, held bool, err error) {
	err = db.Write(ctx, func(tx *Tx) error {
		n, err := tx.Exec(`INSERT INTO leases (name, launch_id, token, taken_at) VALUES (?, ?, 1, ?)
			ON CONFLICT (name) DO UPDATE SET launch_id = excluded.launch_id, token = token + 1, taken_at = excluded.taken_at
			WHERE launch_id = excluded.launch_id OR NOT EXISTS (SELECT 1 FROM launches WHERE id = leases.launch_id AND fenced_at IS NULL)`,
			name, db.cfg.LaunchID, db.cfg.Now().UnixMilli())
		if held = n == 1; err != nil || !held {
			return err
		}
		return tx.QueryRow(`SELECT token FROM leases WHERE name = ?`, []any{name}, &token)
	})
	if err != nil {
		return 0, false, fmt.Errorf("take lease %s: %w", name, err)
	}
	return token, held, nil
}

// ReleaseLease gives back what TakeLease took. It changes nothing when another
// launch has taken it since.
func (db *DB) ReleaseLease(ctx context.Context, name string, token int64) error {
	err := db.Write(ctx, func(tx *Tx) error {
		_, err := tx.Exec(`UPDATE leases SET launch_id = '' WHERE name = ? AND launch_id = ? AND token = ?`,
			name, db.cfg.LaunchID, token)
		return err
	})
	if err != nil {
		return fmt.Errorf("release lease %s: %w", name, err)
	}
	return nil
}

package store

import (
	"context"
	"fmt"
)

// Checkpoints copy committed pages from the log into the database and sync the
// disk. SQLite does that inside the commit that crosses a limit, which then
// stalls every turn for as long as the disk takes. Here a goroutine does it on
// a connection of its own while commits go on; the writer only finishes what
// came meanwhile, and only when the log has grown so far that it must start
// over.
const (
	// Writes between two checkpoints, some tens of MiB of log: fewer make a
	// process that was killed read a longer log at its next start, more sync
	// the disk so often that commits wait for it.
	checkpointWrites = 4000
	logPages         = 4 << 10 // 16 MiB: the log starts over after this
	checkpointSQL    = "PRAGMA wal_checkpoint(PASSIVE)"
)

// checkpointer copies pages whenever the writer asks, until Close.
func (db *DB) checkpointer(ctx context.Context) {
	defer close(db.checked)
	for range db.check {
		pages, err := checkpoint(ctx, db)
		if err != nil {
			db.cfg.Log.Warn().Err(err).Msg("checkpoint the store")
			continue
		}
		if pages > logPages {
			db.finish.Store(true)
		}
	}
}

// checkpoint copies what it can and returns the length of the log in pages.
func checkpoint(ctx context.Context, db *DB) (pages int, err error) {
	pool := openPool(db.cfg.Path, readerCacheKiB, "rw", nil)
	defer pool.Close()
	var busy, copied int
	if err := pool.QueryRowContext(ctx, checkpointSQL).Scan(&busy, &pages, &copied); err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	return pages, nil
}

// count asks for a checkpoint every so many writes. It runs in the writer,
// between two commits.
func (db *DB) count(ctx context.Context, writes int) {
	if db.writes += writes; db.writes >= checkpointWrites {
		db.writes = 0
		select {
		case db.check <- struct{}{}:
		default: // one is asked for already
		}
	}
	if !db.finish.CompareAndSwap(true, false) {
		return
	}
	// Nothing is written meanwhile, so this copies the rest, and the next
	// commit begins the log anew.
	if _, err := db.write.ExecContext(ctx, checkpointSQL); err != nil {
		db.cfg.Log.Warn().Err(err).Msg("finish a checkpoint of the store")
	}
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// fenceLaunch gives an unknown id a row too: its process may come late.
const fenceLaunch = `INSERT INTO launches (id, started_at, fenced_at) VALUES (?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET fenced_at = COALESCE(fenced_at, excluded.fenced_at)`

// register writes the launch row and the fences in one commit, before
// anything else of this process is written.
func (db *DB) register(ctx context.Context) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	now := db.cfg.Now().UnixMilli()
	if _, err := tx.ExecContext(ctx, `INSERT INTO launches (id, started_at, guarded) VALUES (?, ?, ?)
		ON CONFLICT (id) DO NOTHING`, db.cfg.LaunchID, now, db.alive.guarded()); err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	if db.cfg.FenceOthers {
		if _, err := tx.ExecContext(ctx, `UPDATE launches SET fenced_at = ? WHERE fenced_at IS NULL AND id <> ?`, now, db.cfg.LaunchID); err != nil {
			return fmt.Errorf("fence launches: %w", err)
		}
	}
	_, dead, err := db.others(tx.QueryContext(ctx, selectOthers, db.cfg.LaunchID))
	if err != nil {
		return err
	}
	for _, id := range append(dead, db.cfg.Fence...) {
		if id == db.cfg.LaunchID {
			continue
		}
		if _, err := tx.ExecContext(ctx, fenceLaunch, id, now, now); err != nil {
			return fmt.Errorf("fence launch %s: %w", id, err)
		}
	}
	var alive, mine int64
	if err := tx.QueryRowContext(ctx, selectLaunches, db.cfg.LaunchID).Scan(&alive, &mine); err != nil {
		return fmt.Errorf("count launches: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	db.meet(alive - mine)
	return nil
}

// Fence makes launches that have ended unable to commit ever again. This
// launch's own id is passed over.
func (db *DB) Fence(ctx context.Context, launchIDs []string) error {
	return db.Write(ctx, func(tx *Tx) error {
		now := db.cfg.Now().UnixMilli()
		for _, id := range launchIDs {
			if id == db.cfg.LaunchID {
				continue
			}
			if _, err := tx.Exec(fenceLaunch, id, now, now); err != nil {
				return fmt.Errorf("fence launch %s: %w", id, err)
			}
		}
		return nil
	})
}

// Retire is the last write of a launch: it fences itself, so that a sibling
// takes over what it left open without being told.
func (db *DB) Retire(ctx context.Context) error {
	return db.Write(ctx, func(tx *Tx) error {
		now := db.cfg.Now().UnixMilli()
		_, err := tx.Exec(fenceLaunch, db.cfg.LaunchID, now, now)
		return err
	})
}

// LaunchID returns the identity under which this process writes.
func (db *DB) LaunchID() string { return db.cfg.LaunchID }

// Fenced is closed when a commit of this launch was refused because another
// replaced it.
func (db *DB) Fenced() <-chan struct{} { return db.fenced }

// Siblings tells whether other launches are alive, as of the last commit.
func (db *DB) Siblings() bool { return db.siblings.Load() > 0 }

// Met receives a value when a sibling has appeared; there is one receiver.
func (db *DB) Met() <-chan struct{} { return db.met }

// Look brings Siblings up to date and proves that this launch can commit.
func (db *DB) Look(ctx context.Context) error {
	return db.Write(ctx, func(*Tx) error { return nil })
}

// Survey returns the other launches that are alive. Those whose process has
// ended without anybody saying so are fenced first.
func (db *DB) Survey(ctx context.Context) (alive []string, err error) {
	alive, dead, err := db.others(db.Query(ctx, selectOthers, db.cfg.LaunchID))
	if err != nil {
		return nil, err
	}
	if len(dead) > 0 {
		if err := db.Fence(ctx, dead); err != nil {
			return nil, err
		}
	}
	db.meet(int64(len(alive)))
	return alive, nil
}

// checkLaunch refuses a fenced launch and counts the others. It runs in the
// transaction that it is for: that holds SQLite's write lock from its begin to
// its commit, so no fence can come between this look and the commit.
func (db *DB) checkLaunch(ctx context.Context, tx *sql.Tx) (siblings bool, err error) {
	var alive, mine int64
	if err := tx.StmtContext(ctx, db.launches).QueryRowContext(ctx, db.cfg.LaunchID).Scan(&alive, &mine); err != nil {
		return false, fmt.Errorf("check fence: %w", err)
	}
	if mine == 0 {
		db.isFenced()
		return false, ErrFenced
	}
	db.meet(alive - 1)
	return alive > 1, nil
}

func (db *DB) meet(siblings int64) {
	if db.siblings.Swap(siblings) == 0 && siblings > 0 {
		select {
		case db.met <- struct{}{}:
		default: // told already
		}
	}
}

func (db *DB) isFenced() { db.fenceOnce.Do(func() { close(db.fenced) }) }

const selectLaunches = `SELECT COUNT(*), COALESCE(MAX(id = ?), 0) FROM launches WHERE fenced_at IS NULL`

// CheckFence returns ErrFenced when a newer launch has replaced this one.
func (db *DB) CheckFence(ctx context.Context) error {
	var alive, mine int64
	if err := db.QueryRow(ctx, selectLaunches, []any{db.cfg.LaunchID}, &alive, &mine); err != nil {
		return fmt.Errorf("check fence: %w", err)
	}
	if mine == 0 {
		db.isFenced()
		return ErrFenced
	}
	return nil
}

// guard is the commit hook of the writing connection. The store's own commits
// were checked when they began; those of the job engine, which brings its own
// transactions, are checked here, inside their commit.
type guard struct {
	db   *DB
	life context.Context //nolint:containedctx // a hook gets none
	// on is set once the launch is registered, checked by the store's writer in
	// each of its transactions. Both are owned by who holds the connection.
	on, checked bool
	look        *sql.DB // a connection of its own, since a hook must not use the one that called it
}

// commit returns what SQLite wants of a hook: 0 goes on, anything else makes a
// rollback of the commit.
func (g *guard) commit() int {
	if !g.on {
		return 0
	}
	if g.checked {
		g.checked = false
		return 0
	}
	if err := g.check(); err != nil {
		g.db.cfg.Log.Warn().Err(err).Msg("refused a commit of the job engine")
		if errors.Is(err, ErrFenced) {
			g.db.isFenced()
		}
		return 1
	}
	return 0
}

func (g *guard) check() error {
	if g.look == nil {
		g.look = openPool(g.db.cfg.Path, readerCacheKiB, "rw", nil)
		g.look.SetMaxOpenConns(1)
	}
	var alive, mine int64
	if err := g.look.QueryRowContext(g.life, selectLaunches, g.db.cfg.LaunchID).Scan(&alive, &mine); err != nil {
		return fmt.Errorf("check fence: %w", err)
	}
	if mine == 0 {
		return ErrFenced
	}
	return nil
}

func (g *guard) close() error {
	if g.look == nil {
		return nil
	}
	return g.look.Close()
}

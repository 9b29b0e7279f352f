package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
)

// opsQueue bounds how many writes wait; more callers block, which is the
// back-pressure of a slow disk. maxGroup bounds one commit.
const (
	opsQueue = 1024
	maxGroup = 256
)

type op struct {
	run  func(*Tx) error
	done func(error)
}

// Tx is the transaction of one commit. It is valid only inside the function
// that received it.
type Tx struct {
	db  *DB
	tx  *sql.Tx
	ctx context.Context //nolint:containedctx // lives as long as the transaction

	siblings bool
}

// Exec runs a statement that is prepared once and kept: query must be a constant.
func (t *Tx) Exec(query string, args ...any) (rows int64, err error) {
	stmt, err := t.db.writeStmt(t.ctx, t.tx, query)
	if err != nil {
		return 0, err
	}
	res, err := t.tx.StmtContext(t.ctx, stmt).ExecContext(t.ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// QueryRow scans at most one row into dest; sql.ErrNoRows when there is none.
func (t *Tx) QueryRow(query string, args []any, dest ...any) error {
	stmt, err := t.db.writeStmt(t.ctx, t.tx, query)
	if err != nil {
		return err
	}
	return t.tx.StmtContext(t.ctx, stmt).QueryRowContext(t.ctx, args...).Scan(dest...)
}

// Query reads several rows inside the transaction; the caller closes them.
func (t *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	stmt, err := t.db.writeStmt(t.ctx, t.tx, query)
	if err != nil {
		return nil, err
	}
	return t.tx.StmtContext(t.ctx, stmt).QueryContext(t.ctx, args...)
}

// Siblings tells whether other launches are alive. It is exact: a launch that
// comes or goes does so in a transaction of its own.
func (t *Tx) Siblings() bool { return t.siblings }

// SQL returns the transaction for the job engine, so that a job and what it
// belongs to commit together.
func (t *Tx) SQL() *sql.Tx { return t.tx }

// writeStmt returns the kept statement of query. Only the writer's goroutine
// comes here, so the map needs no lock.
func (db *DB) writeStmt(ctx context.Context, tx *sql.Tx, query string) (*sql.Stmt, error) {
	if stmt, ok := db.writeStmts[query]; ok {
		return stmt, nil
	}
	// A pool-level Prepare would wait for the only connection, which tx holds:
	// the first use is prepared for this transaction, the lasting statement
	// after it (keepStatements).
	stmt, err := tx.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare statement: %w", err)
	}
	db.fresh = append(db.fresh, query)
	return stmt, nil
}

// keepStatements prepares, between two transactions, what the last one used
// for the first time. A statement that can't be prepared is tried again later.
func (db *DB) keepStatements(ctx context.Context) {
	for _, query := range db.fresh {
		if _, ok := db.writeStmts[query]; ok {
			continue
		}
		if stmt, err := db.write.PrepareContext(ctx, query); err == nil {
			db.writeStmts[query] = stmt
		}
	}
	db.fresh = db.fresh[:0]
}

// Write runs fn in the next commit and returns when that commit is durable.
// Several writes share one commit. When one of them fails, the commit is taken
// back and each runs again alone, so fn must be safe to run twice and an error
// of fn never touches others. A cancelled ctx is checked before fn is queued,
// not after: what was handed over is decided by the commit.
func (db *DB) Write(ctx context.Context, fn func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	res := make(chan error, 1)
	db.Submit(fn, func(err error) { res <- err })
	return <-res
}

// Submit queues fn and returns at once; done is called from the writer when
// the commit is durable or has failed. done must not block or write.
func (db *DB) Submit(fn func(*Tx) error, done func(error)) {
	db.mu.RLock()
	if db.closed {
		db.mu.RUnlock()
		done(ErrClosed)
		return
	}
	db.ops <- op{run: fn, done: done}
	db.mu.RUnlock()
}

// writer is the one goroutine that commits. It takes whatever is queued into
// one transaction: under load the cost of a commit is shared, alone a write
// waits for nobody.
func (db *DB) writer(ctx context.Context) {
	defer close(db.stopped)
	group := make([]op, 0, maxGroup)
	for first := range db.ops {
		group = append(group[:0], first)
		group = db.gather(group)
		if err := db.commit(ctx, group); err != nil {
			db.commitAlone(ctx, group, err)
		} else {
			for _, o := range group {
				o.done(nil)
			}
		}
		db.count(ctx, len(group))
	}
}

func (db *DB) gather(group []op) []op {
	// Whoever is about to write goes first: under load that fills the group,
	// and alone it costs nothing.
	runtime.Gosched()
	for len(group) < maxGroup {
		select {
		case o, ok := <-db.ops:
			if !ok {
				return group
			}
			group = append(group, o)
		default:
			return group
		}
	}
	return group
}

// commitAlone gives each write of a failed group its own commit, so that only
// the culprit fails.
func (db *DB) commitAlone(ctx context.Context, group []op, groupErr error) {
	if len(group) == 1 || errors.Is(groupErr, ErrFenced) {
		for i := range group {
			group[i].done(groupErr)
		}
		return
	}
	for i := range group {
		group[i].done(db.commit(ctx, group[i:i+1]))
	}
}

func (db *DB) commit(ctx context.Context, group []op) (err error) {
	if db.Siblings() {
		defer db.alive.passGate()()
	}
	tx, err := db.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", explain(err))
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("write panicked: %v", r)
		}
		if err != nil {
			// SQLite has rolled back by itself after some errors, a full disk
			// for one; then this one fails and tells nothing.
			_ = tx.Rollback()
			err = explain(err)
		}
		if len(db.fresh) > 0 {
			db.keepStatements(ctx)
		}
	}()
	siblings, err := db.checkLaunch(ctx, tx)
	if err != nil {
		return err
	}
	t := &Tx{db: db, tx: tx, ctx: ctx, siblings: siblings}
	for _, o := range group {
		if err := o.run(t); err != nil {
			return err
		}
	}
	db.guard.checked = true
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// busyTries is how often a commit waits for SQLite's write lock, ten seconds
// each: a sibling that hangs in its commit is killed by its supervisor before.
const busyTries = 6

func (db *DB) begin(ctx context.Context) (*sql.Tx, error) {
	for try := 1; ; try++ {
		tx, err := db.write.BeginTx(ctx, nil)
		if err == nil || !isBusy(err) || try == busyTries {
			return tx, err
		}
		db.cfg.Log.Warn().Int("try", try).Msg("another process holds the store")
	}
}

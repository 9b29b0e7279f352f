// Package store opens the formation's database and owns every commit to it:
// one writer with group commit, a small pool of readers, embedded migrations
// and the fence that keeps a replaced process from writing.
//
// Rooms keep their own SQL and hand it to Write, Submit or Query; they never
// see a driver. A write function may run twice (see Write), so it must only
// touch the transaction and variables it assigns afresh.
//
// SQLite runs in WAL mode with synchronous=NORMAL: a commit survives the death
// of the process at any moment; a power cut may take the last commits back,
// never half of one.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver behind "sqlite3"
	"github.com/rs/zerolog"
)

// Sizes of the two connection pools, in KiB of page cache and connections.
// SQLite has one writer at a time, so one connection writes; readers are few
// because the hot path reads little and each connection costs memory.
const (
	writerCacheKiB = 4096
	readerCacheKiB = 1024
	maxReaders     = 4
	readerIdle     = 30 * time.Second
	busyTimeout    = 10 * time.Second
	walLimitBytes  = 64 << 20 // a longer log file is cut when it starts over
)

// ErrFenced tells that another launch replaced this process: it must not
// write any more, and exits.
var ErrFenced = errors.New("store: this launch was replaced by a newer one")

// ErrClosed is returned for writes after Close.
var ErrClosed = errors.New("store: closed")

// Config says what to open.
type Config struct {
	Path     string // file of the database; its directory exists
	LaunchID string // identity of this process in the launches table
	// Fence lists launches that must never commit again. FenceOthers fences
	// every launch but this one, for a process that knows it is alone.
	Fence       []string
	FenceOthers bool
	Log         zerolog.Logger
	Now         func() time.Time // time.Now when nil
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	cfg     Config
	write   *sql.DB
	read    *sql.DB
	ops     chan op
	stopped chan struct{} // closed when the writer has ended
	fence   *sql.Stmt

	check   chan struct{} // capacity 1: a checkpoint is wanted
	checked chan struct{} // closed when the checkpointer has ended
	finish  atomic.Bool   // the writer is to finish a checkpoint

	// mu guards the fields that follow.
	mu     sync.RWMutex
	closed bool

	// Owned by the writer's goroutine.
	writeStmts map[string]*sql.Stmt
	fresh      []string // queries to keep after this transaction
	writes     int      // since the last checkpoint

	stmtMu    sync.Mutex // guards readStmts
	readStmts map[string]*sql.Stmt
}

// Open opens the database, migrates it, registers the launch and starts the writer.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	write, err := openPool(cfg.Path, writerCacheKiB, "rwc")
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", cfg.Path, err)
	}
	write.SetMaxOpenConns(1)
	write.SetMaxIdleConns(1)
	db := &DB{
		cfg: cfg, write: write,
		ops: make(chan op, opsQueue), stopped: make(chan struct{}),
		check: make(chan struct{}, 1), checked: make(chan struct{}),
		writeStmts: make(map[string]*sql.Stmt), readStmts: make(map[string]*sql.Stmt),
	}
	if err := db.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare store %s: %w", cfg.Path, err), write.Close())
	}
	life := context.WithoutCancel(ctx) // the store's, which ends with Close
	go db.writer(life)
	go db.checkpointer(life)
	return db, nil
}

func (db *DB) prepare(ctx context.Context) error {
	if err := migrate(ctx, db.write); err != nil {
		return err
	}
	if err := db.register(ctx); err != nil {
		return err
	}
	var err error
	if db.fence, err = db.write.PrepareContext(ctx, `SELECT fenced_at FROM launches WHERE id = ?`); err != nil {
		return fmt.Errorf("prepare fence: %w", err)
	}
	// Read-write mode: a WAL reader needs the shared-memory file, and query_only
	// keeps it from writing.
	if db.read, err = openPool(db.cfg.Path, readerCacheKiB, "rw"); err != nil {
		return err
	}
	db.read.SetMaxOpenConns(maxReaders)
	db.read.SetMaxIdleConns(1)
	db.read.SetConnMaxIdleTime(readerIdle)
	return nil
}

func openPool(path string, cacheKiB int, mode string) (*sql.DB, error) {
	q := url.Values{}
	q.Set("mode", mode)
	q.Set("_journal_mode", "WAL")
	q.Set("_synchronous", "NORMAL")
	q.Set("_foreign_keys", "on")
	q.Set("_busy_timeout", fmt.Sprint(busyTimeout.Milliseconds()))
	q.Set("_txlock", "immediate")
	q.Set("_cache_size", fmt.Sprint(-cacheKiB))
	if mode != "rwc" {
		q.Set("_query_only", "on")
	}
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	return sql.Open("sqlite3", dsn.String())
}

// register writes the launch row and the fences in one commit, before
// anything else of this process is written.
func (db *DB) register(ctx context.Context) error {
	for _, pragma := range []string{
		"PRAGMA wal_autocheckpoint = 0", // see checkpointer
		fmt.Sprintf("PRAGMA journal_size_limit = %d", walLimitBytes),
	} {
		if _, err := db.write.ExecContext(ctx, pragma); err != nil {
			return fmt.Errorf("%s: %w", pragma, err)
		}
	}
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	now := db.cfg.Now().UnixMilli()
	if _, err := tx.ExecContext(ctx, `INSERT INTO launches (id, started_at) VALUES (?, ?)
		ON CONFLICT (id) DO NOTHING`, db.cfg.LaunchID, now); err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	if db.cfg.FenceOthers {
		if _, err := tx.ExecContext(ctx, `UPDATE launches SET fenced_at = ? WHERE fenced_at IS NULL AND id <> ?`, now, db.cfg.LaunchID); err != nil {
			return fmt.Errorf("fence launches: %w", err)
		}
	}
	for _, id := range db.cfg.Fence {
		if _, err := tx.ExecContext(ctx, fenceLaunch, id, now, now); err != nil {
			return fmt.Errorf("fence launch %s: %w", id, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("register launch: %w", err)
	}
	return nil
}

// fenceLaunch gives an unknown id a row too: its process may come late.
const fenceLaunch = `INSERT INTO launches (id, started_at, fenced_at) VALUES (?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET fenced_at = COALESCE(fenced_at, excluded.fenced_at)`

// Fence makes launches that have ended unable to commit ever again.
func (db *DB) Fence(ctx context.Context, launchIDs []string) error {
	return db.Write(ctx, func(tx *Tx) error {
		now := db.cfg.Now().UnixMilli()
		for _, id := range launchIDs {
			if _, err := tx.Exec(fenceLaunch, id, now, now); err != nil {
				return fmt.Errorf("fence launch %s: %w", id, err)
			}
		}
		return nil
	})
}

// LaunchID returns the identity under which this process writes.
func (db *DB) LaunchID() string { return db.cfg.LaunchID }

// Now returns the store's clock.
func (db *DB) Now() time.Time { return db.cfg.Now() }

// Pool returns the writer's pool of one connection, for the job engine, which
// brings its own SQL. Nobody else may use it.
func (db *DB) Pool() *sql.DB { return db.write }

// Close commits what is queued, ends the writer and closes all connections.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		<-db.stopped
		return nil
	}
	db.closed = true
	close(db.ops)
	db.mu.Unlock()
	<-db.stopped
	close(db.check)
	<-db.checked
	return errors.Join(db.read.Close(), db.write.Close())
}

// Query runs a read on the reader pool. The statement is prepared once and
// kept, so query must be a constant.
func (db *DB) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := db.readStmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// QueryRow is Query for at most one row; it scans into dest and returns
// sql.ErrNoRows when there is none.
func (db *DB) QueryRow(ctx context.Context, query string, args []any, dest ...any) error {
	stmt, err := db.readStmt(ctx, query)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}

func (db *DB) readStmt(ctx context.Context, query string) (*sql.Stmt, error) {
	db.stmtMu.Lock()
	defer db.stmtMu.Unlock()
	if stmt, ok := db.readStmts[query]; ok {
		return stmt, nil
	}
	stmt, err := db.read.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare query: %w", err)
	}
	db.readStmts[query] = stmt
	return stmt, nil
}

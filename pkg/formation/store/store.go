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
	"sync"
	"sync/atomic"
	"time"

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
	// Progress is told what takes long while the store is opened; nil is nobody.
	Progress func(message string)
	Log      zerolog.Logger
	Now      func() time.Time // time.Now when nil
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	cfg     Config
	write   *sql.DB
	read    *sql.DB
	ops     chan op
	stopped chan struct{} // closed when the writer has ended
	alive   *liveness
	guard   *guard

	launches  *sql.Stmt     // selectLaunches on the writer
	siblings  atomic.Int64  // other living launches, as of the last commit
	met       chan struct{} // capacity 1: there was none, and now is
	fenced    chan struct{} // closed by fenceOnce
	fenceOnce sync.Once

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

// Open opens the database, migrates it, registers the launch and starts the
// writer. A store of a newer build is the fault HealthCheckFailed.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	all, err := loadMigrations()
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, all)
}

func open(ctx context.Context, cfg Config, all []migration) (*DB, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	life := context.WithoutCancel(ctx) // the store's, which ends with Close
	db := &DB{
		cfg: cfg,
		ops: make(chan op, opsQueue), stopped: make(chan struct{}),
		met: make(chan struct{}, 1), fenced: make(chan struct{}),
		check: make(chan struct{}, 1), checked: make(chan struct{}),
		writeStmts: make(map[string]*sql.Stmt), readStmts: make(map[string]*sql.Stmt),
	}
	db.guard = &guard{db: db, life: life}
	var err error
	if db.alive, err = openLiveness(cfg.Path, cfg.LaunchID); err != nil {
		return nil, fmt.Errorf("open store %s: %w", cfg.Path, err)
	}
	if err := db.prepare(ctx, all); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare store %s: %w", cfg.Path, explain(err)), db.closeFiles())
	}
	go db.writer(life)
	go db.checkpointer(life)
	return db, nil
}

func (db *DB) prepare(ctx context.Context, all []migration) (err error) {
	db.write = openPool(db.cfg.Path, writerCacheKiB, "rwc", db.guard.commit)
	db.write.SetMaxOpenConns(1)
	db.write.SetMaxIdleConns(1)
	if err := db.migrate(ctx, all); err != nil {
		return err
	}
	if err := db.register(ctx); err != nil {
		return err
	}
	db.guard.on = true
	if db.launches, err = db.write.PrepareContext(ctx, selectLaunches); err != nil {
		return fmt.Errorf("prepare fence: %w", err)
	}
	// Read-write mode: a WAL reader needs the shared-memory file, and query_only
	// keeps it from writing.
	db.read = openPool(db.cfg.Path, readerCacheKiB, "rw", nil)
	db.read.SetMaxOpenConns(maxReaders)
	db.read.SetMaxIdleConns(1)
	db.read.SetConnMaxIdleTime(readerIdle)
	return nil
}

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
	return db.closeFiles()
}

// closeFiles closes what is open; the launch's lock goes last.
func (db *DB) closeFiles() error {
	var errs []error
	for _, pool := range []*sql.DB{db.read, db.write} {
		if pool != nil {
			errs = append(errs, pool.Close())
		}
	}
	return errors.Join(append(errs, db.guard.close(), db.alive.close())...)
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

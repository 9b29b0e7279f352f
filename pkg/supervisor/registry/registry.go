// Package registry is what the supervisor knows to be true after a crash:
// which formations are deployed, their versions, ports and desired states, and
// the chained record of every management call.
//
// It keeps one SQLite file with synchronous=FULL: when a method that changes
// something returns nil, the change survives the loss of power. A failed
// method changed nothing. deploy and httpapi import it.
package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
)

// readers is how many queries may run beside the one writer.
const readers = 4

// Config says where the registry lives.
type Config struct {
	// Path of the SQLite file; it is made with mode 0600 when missing.
	Path string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Registry is safe for concurrent use.
type Registry struct {
	write *sql.DB // one connection: SQLite has one writer anyway, and so nobody meets SQLITE_BUSY
	read  *sql.DB
	now   func() time.Time
}

// Open opens or creates the registry and brings its schema up to date. A file
// from a newer build is refused with a message that says so.
func Open(ctx context.Context, cfg Config) (*Registry, error) {
	f, err := os.OpenFile(cfg.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	r := &Registry{now: cfg.Now}
	if r.now == nil {
		r.now = time.Now
	}
	if r.write, err = openDB(cfg.Path, "_txlock=immediate"); err != nil {
		return nil, err
	}
	r.write.SetMaxOpenConns(1)
	if err := migrate(ctx, r.write); err != nil {
		return nil, errors.Join(err, r.write.Close())
	}
	if r.read, err = openDB(cfg.Path, "_query_only=true"); err != nil {
		return nil, errors.Join(err, r.write.Close())
	}
	r.read.SetMaxOpenConns(readers)
	return r, nil
}

func openDB(path, option string) (*sql.DB, error) {
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_foreign_keys=true&" + option
	db, err := sql.Open("sqlite3", dsn)
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return db, nil
}

// Close waits for running statements and closes the file.
func (r *Registry) Close() error {
	return errors.Join(r.read.Close(), r.write.Close())
}

// inTx runs fn in one transaction that holds the write lock from its start.
func (r *Registry) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := r.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (r *Registry) millis() int64 { return r.now().UnixMilli() }

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

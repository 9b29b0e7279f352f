package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// Before a migration changes a store that holds something, the whole of it is
// copied beside it. Snapshots are named for the schema that they come before:
// memory.db.pre-3 was made before the migration to schema 3.
const (
	snapshotMark  = ".pre-"
	keepSnapshots = 2
	snapshotStep  = 2048 // pages copied between two reports
)

// snapshot copies the store as it is now, consistently, while another process
// may go on writing to it.
func (db *DB) snapshot(ctx context.Context, to int) error {
	path := db.cfg.Path + snapshotMark + strconv.Itoa(to)
	partial := path + ".part"
	if err := os.Remove(partial); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := db.copyTo(ctx, partial); err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	if err := syncFile(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, path); err != nil {
		return err
	}
	if err := syncFile(filepath.Dir(path)); err != nil {
		return err
	}
	return db.dropSnapshots()
}

func (db *DB) copyTo(ctx context.Context, path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil { // readable by the owner alone from the start
		return err
	}
	conn, err := db.write.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A read transaction pins one state of the store for all steps; it begins
	// with its first read.
	if _, err := conn.ExecContext(ctx, "BEGIN DEFERRED"); err != nil {
		return err
	}
	defer conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") //nolint:errcheck // it has read only
	if _, err := schemaVersion(conn.QueryRowContext(ctx, "PRAGMA user_version")); err != nil {
		return err
	}
	return conn.Raw(func(raw any) error {
		source, ok := raw.(*sqlite3.SQLiteConn)
		if !ok {
			return fmt.Errorf("the driver's connection is a %T", raw)
		}
		opened, err := (&sqlite3.SQLiteDriver{}).Open(path)
		if err != nil {
			return err
		}
		defer opened.Close()
		target, ok := opened.(*sqlite3.SQLiteConn)
		if !ok {
			return fmt.Errorf("the driver's connection is a %T", opened)
		}
		return db.copyPages(ctx, target, source)
	})
}

func (db *DB) copyPages(ctx context.Context, target, source *sqlite3.SQLiteConn) error {
	b, err := target.Backup("main", source, "main")
	if err != nil {
		return err
	}
	for {
		done, err := b.Step(snapshotStep)
		if err == nil && !done {
			err = ctx.Err()
			db.cfg.Progress(fmt.Sprintf("copying the store before its migration: %d of %d pages", b.PageCount()-b.Remaining(), b.PageCount()))
		}
		if done || err != nil {
			return errors.Join(err, b.Finish())
		}
	}
}

// dropSnapshots removes all but the newest.
func (db *DB) dropSnapshots() error {
	numbers, err := db.snapshots()
	if err != nil {
		return err
	}
	for _, n := range numbers[:max(0, len(numbers)-keepSnapshots)] {
		if err := os.Remove(db.cfg.Path + snapshotMark + strconv.Itoa(n)); err != nil {
			return err
		}
	}
	return nil
}

// snapshots returns the numbers of the snapshots at hand, ascending.
func (db *DB) snapshots() ([]int, error) {
	entries, err := os.ReadDir(filepath.Dir(db.cfg.Path))
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), filepath.Base(db.cfg.Path)+snapshotMark)
		if n, err := strconv.Atoi(text); ok && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// usableSnapshot returns the name of the newest snapshot that a build of the
// given schema understands, "" when there is none.
func (db *DB) usableSnapshot(schema int) string {
	numbers, err := db.snapshots()
	if err != nil {
		return ""
	}
	for _, n := range slices.Backward(numbers) {
		path := db.cfg.Path + snapshotMark + strconv.Itoa(n)
		if have, err := schemaOf(path); err == nil && have <= schema {
			return filepath.Base(path)
		}
	}
	return ""
}

// schemaOf reads the user_version of a database file at rest; it stands at byte
// 60 of the header.
func schemaOf(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var version [4]byte
	if _, err := io.ReadFull(io.NewSectionReader(f, 60, 4), version[:]); err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint32(version[:])), nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// schemaVersion reads the number of the last migration.
func schemaVersion(row *sql.Row) (have int, err error) {
	if err := row.Scan(&have); err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return have, nil
}

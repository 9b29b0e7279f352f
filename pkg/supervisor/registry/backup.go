package registry

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-sqlite3"
)

// Copying databases stands here because the driver does: the supervisor opens
// SQLite files in no other room.

const (
	copyPages = 1000                  // copied between two looks at ctx
	copyWait  = 20 * time.Millisecond // while a writer holds the file
	copyStall = 30 * time.Second      // without progress
)

// sqliteMagic are the first bytes of every SQLite file that holds anything.
var sqliteMagic = []byte("SQLite format 3\x00")

// FindSQLite returns the SQLite files below dir, as sorted slash paths relative
// to it; a dir that does not exist has none. They are known by their content.
// Links are not followed, and names that are no UTF-8 are passed over.
func FindSQLite(dir string) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for databases: %w", err)
	}
	defer root.Close()
	var found []string
	err = fs.WalkDir(root.FS(), ".", func(rel string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err == nil && !utf8.ValidString(rel) { // no fs.FS goes there
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if is, err := isSQLite(root, rel); err != nil || !is {
			return err
		}
		found = append(found, rel)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for databases: %w", err)
	}
	slices.Sort(found)
	return found, nil
}

func isSQLite(root *os.Root, rel string) (bool, error) {
	f, err := root.Open(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, len(sqliteMagic))
	switch _, err := io.ReadFull(f, head); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return false, nil
	case err != nil:
		return false, err
	}
	return bytes.Equal(head, sqliteMagic), nil
}

// CopySQLite writes the content of the database src into the new file dst
// (0600), as it was at one moment after the call: every transaction that was
// committed before is in it. Other processes go on reading and writing src. dst
// is one file without journals. After an error dst does not exist.
func CopySQLite(ctx context.Context, src, dst string) (err error) {
	// SQLite would say "unable to open" for many reasons.
	if _, err := os.Stat(src); err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	f, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("copy database %s: %w", filepath.Base(src), err), os.Remove(dst))
		}
	}()
	if err := f.Close(); err != nil {
		return err
	}
	from, closeFrom, err := connect(ctx, src, "mode=rw&_query_only=true&_busy_timeout=5000")
	if err != nil {
		return err
	}
	defer closeFrom()
	to, closeTo, err := connect(ctx, dst, "mode=rw&_synchronous=FULL")
	if err != nil {
		return err
	}
	defer closeTo()
	if err := copyPagesOf(ctx, from, to); err != nil {
		return err
	}
	// The copy of a database in WAL mode would want a second file when it is read.
	var mode string
	if err := to.QueryRowContext(ctx, "PRAGMA journal_mode=DELETE").Scan(&mode); err != nil {
		return err
	}
	if mode != "delete" {
		return fmt.Errorf("the copy stays in journal mode %s", mode)
	}
	return nil
}

// Unreadable returns what SQLite has against the source of a copy: it is damaged,
// or no database at all, or another process keeps it to itself; "" when err is
// another one, as of the disk that is copied to.
func Unreadable(err error) string {
	serr, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return ""
	}
	switch serr.Code {
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB, sqlite3.ErrError, sqlite3.ErrBusy, sqlite3.ErrLocked:
		return serr.Error()
	default:
		return ""
	}
}

// connect opens the one connection to path.
func connect(ctx context.Context, path, options string) (*sql.Conn, func(), error) {
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+options)
	if err != nil {
		return nil, nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return conn, func() { _, _ = conn.Close(), db.Close() }, nil
}

// copyPagesOf runs the online backup inside one read transaction, so that a
// writer in another process does not make it begin again and again.
func copyPagesOf(ctx context.Context, from, to *sql.Conn) error {
	if _, err := from.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	var tables int
	if err := from.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	err := to.Raw(func(dst any) error {
		return from.Raw(func(src any) error {
			d, ok := dst.(*sqlite3.SQLiteConn)
			s, also := src.(*sqlite3.SQLiteConn)
			if !ok || !also {
				return errors.New("the driver is not the one that can copy")
			}
			b, err := d.Backup("main", s, "main")
			if err != nil {
				return err
			}
			return errors.Join(steps(ctx, b), b.Finish())
		})
	})
	_, end := from.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	return errors.Join(err, end)
}

// steps copies until all is copied. A step that meets a lock says nothing and
// copies nothing.
func steps(ctx context.Context, b *sqlite3.SQLiteBackup) error {
	tick := time.NewTicker(copyWait)
	defer tick.Stop()
	last, since := -1, time.Now()
	for {
		done, err := b.Step(copyPages)
		if err != nil || done {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if left := b.Remaining(); left != last {
			last, since = left, time.Now()
			continue
		}
		if time.Since(since) > copyStall {
			return fmt.Errorf("another process has kept it locked for %s", copyStall)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CheckSQLite reads a whole database that nobody writes to and returns the first
// thing that is wrong with it, "" when it is sound. The error is about the
// reading.
func CheckSQLite(ctx context.Context, path string) (problem string, err error) {
	// SQLite takes a file that is shorter than a page for an empty database.
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("check database: %w", err)
	}
	defer f.Close()
	head := make([]byte, len(sqliteMagic))
	switch n, err := io.ReadFull(f, head); {
	case n > 0 && !bytes.Equal(head, sqliteMagic):
		return "the file is not a database", nil
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("check database: %w", err)
	}
	conn, end, err := connect(ctx, path, "mode=ro&immutable=1")
	if err == nil {
		defer end()
		err = conn.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&problem)
	}
	var serr sqlite3.Error
	switch {
	case err == nil && problem == "ok":
		return "", nil
	case err == nil:
		return problem, nil
	case errors.As(err, &serr) && (serr.Code == sqlite3.ErrCorrupt || serr.Code == sqlite3.ErrNotADB):
		return serr.Error(), nil
	}
	return "", fmt.Errorf("check database: %w", err)
}

// Kept is one version that a registry's file names.
type Kept struct {
	ID      string // of the formation
	Dir     string // relative to the formation's directory
	SHA256  string // of its bundle
	Staged  bool   // its deploy or update is not committed
	Current bool
}

// Inventory reads the versions in a registry's file that no process has open,
// without changing its schema; it is meant for copies.
func Inventory(ctx context.Context, path string) ([]Kept, error) {
	conn, end, err := connect(ctx, path, "mode=ro&immutable=1")
	if err != nil {
		return nil, fmt.Errorf("read the registry: %w", err)
	}
	defer end()
	rows, err := conn.QueryContext(ctx,
		`SELECT f.id, v.dir, v.sha256, v.state = 'staged', v.serial IS f.current
		 FROM formations f JOIN versions v ON v.formation_id = f.id ORDER BY f.id, v.serial`)
	if err != nil {
		return nil, fmt.Errorf("read the registry: %w", err)
	}
	defer rows.Close()
	var all []Kept
	for rows.Next() {
		var k Kept
		if err := rows.Scan(&k.ID, &k.Dir, &k.SHA256, &k.Staged, &k.Current); err != nil {
			return nil, fmt.Errorf("read the registry: %w", err)
		}
		all = append(all, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the registry: %w", err)
	}
	return all, nil
}

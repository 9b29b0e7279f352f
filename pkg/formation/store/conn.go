package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/agentformation/service/pkg/fault"
)

const (
	busyTimeout   = 10 * time.Second
	walLimitBytes = 64 << 20 // a longer log file is cut when it starts over
)

// connector opens connections of one pool. It stands where a registered driver
// would, since a hook belongs to one store and a driver's name to the program.
type connector struct {
	driver *sqlite3.SQLiteDriver
	dsn    string
}

// Connect implements driver.Connector.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }

// Driver implements driver.Connector.
func (c connector) Driver() driver.Driver { return c.driver }

// openPool makes a pool over the database at path; onCommit is the commit hook
// of each connection, nil for none.
func openPool(path string, cacheKiB int, mode string, onCommit func() int) *sql.DB {
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
	c := connector{driver: &sqlite3.SQLiteDriver{}, dsn: dsn.String()}
	if onCommit != nil {
		c.driver.ConnectHook = func(conn *sqlite3.SQLiteConn) error {
			conn.RegisterCommitHook(onCommit)
			for _, pragma := range []string{
				"PRAGMA wal_autocheckpoint = 0", // see checkpointer
				fmt.Sprintf("PRAGMA journal_size_limit = %d", walLimitBytes),
			} {
				if _, err := conn.Exec(pragma, nil); err != nil {
					return fmt.Errorf("%s: %w", pragma, err)
				}
			}
			return nil
		}
	}
	return sql.OpenDB(c)
}

// explain gives an error of the database that people can do something about
// its words.
func explain(err error) error {
	se, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return err
	}
	noRoom := []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}
	if se.Code == sqlite3.ErrFull || slices.Contains(noRoom, se.SystemErrno) {
		return fault.Wrap(fault.Unavailable, "SERVICE_UNAVAILABLE",
			"the formation's disk is full: nothing was stored; free space, then try again", err)
	}
	return err
}

func isBusy(err error) bool {
	se, ok := errors.AsType[sqlite3.Error](err)
	return ok && se.Code == sqlite3.ErrBusy
}

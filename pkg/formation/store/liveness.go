package store

import (
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"
)

// liveness tells which launches have a living process. Each launch locks one
// byte of a file beside the database for as long as its store is open, and the
// kernel lets go of it with the process, however that ends. A stopped process
// (SIGSTOP) lives: only who may kill it can fence it.
//
// The byte's place is a hash of the launch id; the file stays empty.
type liveness struct {
	file *os.File // nil when the file system has no such locks: then nobody is known to be dead
}

// The places in the file: two for the gate (see gate.go), the rest for launches.
const (
	gateTurn    = 0
	gateWriter  = 1
	firstLaunch = 2
)

// openLiveness locks the byte of a launch. It comes before the launch's row is
// written, so that every row of a living launch has its lock.
func openLiveness(path, launchID string) (*liveness, error) {
	f, err := os.OpenFile(path+"-launches", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the launch locks: %w", err)
	}
	lock := launchLock(launchID)
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, errors.Join(fmt.Errorf("launch %s is running in another process", launchID), f.Close())
		}
		return &liveness{}, f.Close()
	}
	return &liveness{file: f}, nil
}

func launchLock(launchID string) unix.Flock_t {
	h := fnv.New64a()
	h.Write([]byte(launchID))
	return unix.Flock_t{Type: unix.F_WRLCK, Start: int64(h.Sum64()>>1) | firstLaunch, Len: 1}
}

// guarded tells whether this launch's death can be seen by others.
func (l *liveness) guarded() bool { return l.file != nil }

// dead tells that no process holds the lock of a guarded launch.
func (l *liveness) dead(launchID string) bool {
	if l.file == nil {
		return false
	}
	lock := launchLock(launchID)
	err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type == unix.F_UNLCK
}

func (l *liveness) close() error {
	if l.file == nil {
		return nil
	}
	// A process that is just being started may have the file too, and with it
	// the locks, until its program begins.
	all := unix.Flock_t{Type: unix.F_UNLCK}
	return errors.Join(unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &all), l.file.Close())
}

const selectOthers = `SELECT id, guarded FROM launches WHERE fenced_at IS NULL AND id <> ?`

// others tells the launches that live from those that have ended unfenced.
func (db *DB) others(rows *sql.Rows, err error) (alive, dead []string, _ error) {
	if err != nil {
		return nil, nil, fmt.Errorf("list launches: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var guarded bool
		if err := rows.Scan(&id, &guarded); err != nil {
			return nil, nil, fmt.Errorf("list launches: %w", err)
		}
		if guarded && db.alive.dead(id) {
			dead = append(dead, id)
		} else {
			alive = append(alive, id)
		}
	}
	return alive, dead, rows.Err()
}

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// lock is the proof that one supervisor owns a home directory. The kernel drops
// it when the process ends, however it ends.
type lock struct{ f *os.File }

// acquireLock takes <dir>/lock and writes our process number and the time into
// it. When another process has it, the error is fault.Conflict "AlreadyRunning"
// and names that process.
func acquireLock(dir string) (*lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory needs its search bit
		return nil, fmt.Errorf("close the run directory to others: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	return (&lock{f: f}).take(dir)
}

// take locks the file and writes who has it.
func (l *lock) take(dir string) (*lock, error) {
	f := l.f
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil, fault.Errorf(fault.Conflict, "AlreadyRunning",
			"another supervisor (process %d) runs on %s; stop it first or choose another home", holderOf(f), filepath.Dir(dir))
	}
	text := fmt.Sprintf("%d %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAt(f, text)); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock: %w", err), f.Close())
	}
	return l, nil
}

// holderOf reads the process number in a lock, 0 when there is none.
func holderOf(f *os.File) int {
	text := make([]byte, 64)
	n, _ := f.ReadAt(text, 0)
	word, _, _ := strings.Cut(string(text[:n]), " ")
	pid, _ := strconv.Atoi(word)
	return pid
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// release lets the next supervisor in. The file stays: removing it would let
// two processes lock two files of the same name.
func (l *lock) release() { filelock.Release(l.f) }

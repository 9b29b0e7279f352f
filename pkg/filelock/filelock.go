// Package filelock keeps processes apart that change the same files: one holds
// the lock file, the others wait for it.
//
// The lock is the kernel's: it ends with the process that holds it, however that
// ends, and the file stays. The rooms around the embedding process wait for it
// with Take; those with locks and messages of their own end them with Release.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// every is how often a lock that another process holds is tried again.
const every = 50 * time.Millisecond

// Take takes the lock file at path, made with mode when it is not there, and
// waits until ctx ends while another holds it. waiting is called before each
// pause; nil is told nothing. The lock is not reentrant: a second Take in one
// process waits, too.
func Take(ctx context.Context, path string, mode fs.FileMode, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { Release(f) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if waiting != nil {
			waiting()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// Release closes a file and frees the lock (flock) that it may have, at once.
// Closing alone would not: a process that is just being started has the file too
// until its program begins, and a lock goes with the last who has its file.
func Release(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // it can only be one that was never taken
	_ = f.Close()
}

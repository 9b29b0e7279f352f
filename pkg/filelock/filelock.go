// Package filelock keeps processes apart that change the same files: one holds
// the lock file, the others wait for it.
//
// The lock is the kernel's: it ends with the process that holds it, however that
// ends, and the file stays. The rooms around the embedding process import it.
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
			return func() {
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // a process that is just being started may have the file too
				_ = f.Close()
			}, nil
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

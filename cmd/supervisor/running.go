package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/filelock"
)

// running is the supervisor process that serves a home on this machine.
type running struct {
	pid int
	fd  int // its pidfd: a signal through it can't reach a later process of that number
}

// findRunning returns the supervisor that holds the lock of a home, and proves
// that it is that process: its number is in the lock's file, and it has the
// file open. The error is client.NameUnreachable when none runs.
func findRunning(dir string) (*running, error) {
	lock, err := os.Open(filepath.Join(dir, "run", "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noneRuns(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("look for the supervisor: %w", err)
	}
	defer filelock.Release(lock)
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return nil, noneRuns(dir)
	case !errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("look for the supervisor: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(lock, 64))
	if err != nil {
		return nil, fmt.Errorf("look for the supervisor: %w", err)
	}
	number, _, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 0 {
		return nil, fmt.Errorf("%s does not name the process that holds it", lock.Name())
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("look for process %d of the supervisor: %w", pid, err)
	}
	r := &running{pid: pid, fd: fd}
	if err := r.prove(lock); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func noneRuns(dir string) error {
	return &client.Error{Name: client.NameUnreachable, Message: "no supervisor runs on " + dir}
}

// prove looks for the lock among the files that the process has open.
func (r *running) prove(lock *os.File) error {
	info, err := lock.Stat()
	if err != nil {
		return fmt.Errorf("look for the supervisor: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", r.pid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("process %d is another user's: run this as the user that the supervisor runs as, or as root", r.pid)
	}
	if err != nil {
		return fmt.Errorf("look at process %d: %w", r.pid, err)
	}
	for _, e := range entries {
		open, err := os.Stat(filepath.Join(dir, e.Name()))
		if err == nil && os.SameFile(open, info) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not hold %s: it is not the supervisor, and was left alone", r.pid, lock.Name())
}

// signal sends a signal to exactly this process.
func (r *running) signal(s syscall.Signal) error {
	if err := unix.PidfdSendSignal(r.fd, s, nil, 0); err != nil {
		return fmt.Errorf("signal the supervisor, process %d: %w", r.pid, err)
	}
	return nil
}

// alive tells whether the process still is.
func (r *running) alive() bool { return unix.PidfdSendSignal(r.fd, 0, nil, 0) == nil }

func (r *running) close() error { return unix.Close(r.fd) }

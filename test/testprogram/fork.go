package testprogram

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Fork gives this process another descriptor of the file that it has open at
// path, until the test's end: a process that is being started has one of every
// file for a moment, until its program begins, and with it the file's locks.
func Fork(t testing.TB, path string) {
	t.Helper()
	const open = "/proc/self/fd"
	entries, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name, err := os.Readlink(filepath.Join(open, e.Name())); err != nil || name != path {
			continue
		}
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		second, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(second) })
		return
	}
	t.Fatalf("%s is not open", path)
}

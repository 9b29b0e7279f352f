// Package testports gives tests ports for what has to know its port before it
// listens. No two tests of this machine get the same one, and no client of
// theirs is given it by the system. What can listen on port 0 does not need it.
package testports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Blocks are taken below the ports that the system gives to clients, and below
// those of the end-to-end tests.
const (
	firstBlock = 10000
	blocks     = 1000
)

// BlockSize is the number of ports in a block.
const BlockSize = 10

// Block returns the first port of a block that no other test of this machine
// has, and whose ports are free; it stays taken until the test's end.
func Block(t testing.TB) int {
	t.Helper()
	path := filepath.Join(os.TempDir(), "testports-"+strconv.Itoa(os.Geteuid()))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // which gives the lock back
	for range blocks {
		n := rand.IntN(blocks)
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(n), Len: 1}
		if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock) != nil {
			continue
		}
		first := firstBlock + n*BlockSize
		if allFree(first) {
			return first
		}
		lock.Type = unix.F_UNLCK
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no block of ports is free")
	return 0
}

// Refusing returns an address at which connections are refused until the test's
// end. A port that was merely given back may be somebody else's by then.
func Refusing(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil { // and no one listens
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// allFree tries the ports. Nothing is forked meanwhile: a process that is being
// forked would hold them until it executes its program.
func allFree(first int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for port := first; port < first+BlockSize; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

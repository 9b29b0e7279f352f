package deploytest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Blocks of ports that rigs take: below those that the system gives to clients.
const (
	firstBlock = 10000
	blocks     = 2000
	blockSize  = 10
)

// takeBlock returns the first port of a block that no other rig of this machine
// has, and whose ports are free; it stays taken until the test's end.
func takeBlock(t testing.TB) int {
	t.Helper()
	path := filepath.Join(os.TempDir(), "deploytest-"+strconv.Itoa(os.Geteuid())+".ports")
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
		first := firstBlock + n*blockSize
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

func allFree(first int) bool {
	for port := first; port < first+blockSize; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// Package harness runs the real programs for tests that look from outside: it
// builds supervisor and formation-runtime once, starts them with homes and port
// ranges of their own, and speaks plain HTTP to them.
//
// It promises that nothing of a test is left behind: a process of a home that
// is still there at the end of its test is a failure, and is killed. Signatures,
// bundles and stream frames are made and read here independently of the
// product. The tests in test/e2e and test/chaos import it.
package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// Version is the version of the programs that a suite builds.
const Version = "1.2.3-e2e"

// atOnce bounds the supervisors of one suite: a start is processor time, and a
// crowd would only make every test wait for every other one.
const atOnce = 3

// The ports of all tests lie here, below those that the system gives to
// clients. Each home has one block of them.
const (
	firstPort = 20000
	lastPort  = 31999
	blockSize = 10
)

// Suite holds what all tests of a package share.
type Suite struct {
	root  string // of the repository
	bin   string // directory of the programs
	slots chan struct{}
	block atomic.Int64
}

// Open builds both programs, with the race detector when E2E_RACE is set. Close
// the suite after the tests.
func Open() (*Suite, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	bin, err := os.MkdirTemp("", "e2e-bin")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the programs: %w", err)
	}
	s := &Suite{root: root, bin: bin, slots: make(chan struct{}, atOnce)}
	s.block.Store(int64(os.Getpid()))
	stamp := "-s -w -X github.com/agentformation/service/pkg/version.Version=" + Version
	args := []string{"build", "-ldflags", stamp, "-o", bin + "/"}
	if os.Getenv("E2E_RACE") != "" {
		args = append(args, "-race")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/supervisor", "./cmd/formation-runtime")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the programs: %w\n%s", err, out), s.Close())
	}
	return s, nil
}

// Close removes the programs.
func (s *Suite) Close() error { return os.RemoveAll(s.bin) }

// Program returns the path of a program.
func (s *Suite) Program(name string) string { return filepath.Join(s.bin, name) }

// Root is the repository's directory.
func (s *Suite) Root() string { return s.root }

// repository finds the module above the directory that the test runs in.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the test's directory")
		}
		dir = up
	}
}

// claim returns the first and last port of a block that no other test has, also
// not one of another process: the port before the block is held as its flag until
// the cleanups that come to be registered later have run.
func (s *Suite) claim(tb testing.TB) (first, last int) {
	tb.Helper()
	const blocks = (lastPort - firstPort + 1) / blockSize
	for range blocks {
		flag := firstPort + int(s.block.Add(1)%blocks)*blockSize
		ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(flag))
		if err != nil {
			continue
		}
		tb.Cleanup(func() { ln.Close() })
		return flag + 1, flag + blockSize - 1
	}
	tb.Fatal("no block of ports is free")
	return 0, 0
}

// slot waits until another supervisor may run.
func (s *Suite) slot(tb testing.TB) {
	tb.Helper()
	select {
	case s.slots <- struct{}{}:
		tb.Cleanup(func() { <-s.slots })
	case <-tb.Context().Done():
		tb.Fatal("the test ended while it waited for its turn")
	}
}

package confine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/test/testprogram"
)

// settled is what a process does that was started by Start: it settles, as
// formation-runtime does, tells what it was told, and becomes its arguments.
func settled() {
	rest, err := Settle()
	if err == nil {
		fmt.Printf("told %d %v\n", rest.Memory, rest.CPU)
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "settle:", err)
	os.Exit(1)
}

// self is a command that runs a shell script after Settle.
func self(t *testing.T, script string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "/bin/sh", "-c", script)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "KEPT=kept"}
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// started runs a script in a process that was started by Start, and returns what
// it wrote after the line that settled wrote.
func started(t *testing.T, s *Spec, script string) string {
	t.Helper()
	cmd, out := self(t, script)
	if err := s.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	told, rest, _ := strings.Cut(out.String(), "\n")
	if want := fmt.Sprintf("told %d %v", s.Memory, s.CPU); told != want {
		t.Errorf("it was told %q, want %q", told, want)
	}
	return strings.TrimSpace(rest)
}

const showStatus = `grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status | tr -d ' \t' | tr '\n' ' '`

func TestStart_BeginsWithoutPrivilegesForGood(t *testing.T) {
	t.Parallel()
	s := keep()
	s.NoNewPrivs, s.NoCapabilities = true, true
	groups := staged(t, keep(), `grep -E '^(Uid|Gid|Groups):' /proc/self/status | tr -d ' \t' | tr '\n' ' '`)
	none := strings.Repeat("0", 16)
	want := groups + " CapInh:" + none + " CapPrm:" + none + " CapEff:" + none + " CapAmb:" + none + " NoNewPrivs:1"
	if got := started(t, s, showStatus); got != want {
		t.Errorf("status says\n%s\nwant\n%s", got, want)
	}
}

func TestStart_BeginsAsAnotherUserForGood(t *testing.T) {
	t.Parallel()
	needRoot(t)
	none := strings.Repeat("0", 16)
	want := "Uid:200123200123200123200123 Gid:200124200124200124200124 Groups:200125 " +
		"CapInh:" + none + " CapPrm:" + none + " CapEff:" + none + " CapAmb:" + none + " NoNewPrivs:1"
	s := &Spec{UID: 200123, GID: 200124, Groups: []int{200125}, NoNewPrivs: true, NoCapabilities: true}
	cmd, out := self(t, showStatus)
	cmd.Path = open(t, cmd.Path)
	if err := s.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), want) {
		t.Errorf("%v: status says\n%s\nwant\n%s", err, out, want)
	}
}

// open copies a program to where every user gets at it.
func open(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "confine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	to := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), testprogram.Copy(path, to)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestStart_LandlockHoldsFromTheFirstInstruction(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := keep()
	s.ReadOnly, s.ReadWrite = append(system(), path), []string{"/dev/null"}
	if got := started(t, s, `cat `+file+` 2>/dev/null || echo closed; sh -c 'cat `+file+`' 2>/dev/null || echo closed to its tools`); got != "closed\nclosed to its tools" {
		t.Errorf("the program says %q", got)
	}
	s.ReadOnly = system() // the program is not among it
	cmd, _ := self(t, "true")
	if err := s.Start(cmd); !errors.Is(err, unix.EACCES) {
		t.Errorf("a program that may not be read was started: %v", err)
	}
}

// The thread that starts a process is confined for good. No other may be.
func TestStart_LeavesNoThreadOfTheCallerConfined(t *testing.T) {
	t.Parallel()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := keep()
	s.NoNewPrivs, s.NoCapabilities = true, true
	s.ReadOnly, s.ReadWrite = append(system(), path), []string{"/dev/null"}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got := started(t, s, "echo ran"); got != "ran" {
				t.Errorf("the program says %q", got)
			}
		})
	}
	wg.Wait()
	for range 20 { // on as many threads as there are
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			text, err := os.ReadFile("/proc/thread-self/status")
			if err != nil || !strings.Contains(string(text), "NoNewPrivs:\t0\n") {
				t.Errorf("a thread is confined: %v\n%s", err, text)
			}
		})
	}
	wg.Wait()
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatal(err)
	}
	leader := "/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/status"
	if text, err := os.ReadFile(leader); err != nil || !strings.Contains(string(text), "NoNewPrivs:\t0\n") {
		t.Errorf("the main thread is confined: %v\n%s", err, text)
	}
}

func TestRunAlone_PassesTheMainThreadOver(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, got := unix.Gettid(), 0 // this one stands for the main thread
	run := func() { runAlone(own, func() { got = unix.Gettid() }) }
	run()
	if got == os.Getpid() {
		run() // it was the real one, which Go puts to sleep instead of ending it
	}
	if got == 0 || got == own {
		t.Errorf("it ran on thread %d, to be passed over was %d", got, own)
	}
	until(t, "the thread has ended", func() bool {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(got))
		return err != nil
	})
}

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// until waits for what the Go runtime or the kernel does.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestSettle_SetsResourceLimitsAndLeavesNothingInTheEnvironment(t *testing.T) {
	t.Parallel()
	s := keep()
	s.Rlimits = map[string]uint64{"nofile": 123, "core": 0}
	s.Memory, s.CPU = 64<<20, 1.5
	got := started(t, s, `ulimit -n; ulimit -Hn; ulimit -Hc; tr '\0' '\n' </proc/$$/environ | sort`)
	if want := "123\n123\n0\nKEPT=kept\nPATH=/usr/bin:/bin"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSettle_RefusesWhatItWouldNotDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"uid":-1,"gid":-1,"rlimits":{"as":1}}`: `unknown rlimit "as"`,
		`half`:                                   "settle within the limits",
	} {
		cmd, out := self(t, "echo ran")
		cmd.Env = append(cmd.Env, EnvRest+"="+text)
		if err := cmd.Run(); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %s; want an error with %q", text, err, out, want)
		}
	}
}

func TestStart_RefusesASignalForTheEndOfItsParent(t *testing.T) {
	t.Parallel()
	cmd, _ := self(t, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := keep().Start(cmd); err == nil {
		t.Errorf("started; it ended with %v", cmd.Wait())
	}
}

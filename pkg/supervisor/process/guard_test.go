package process_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// guard is a process.Guard that notes its calls and kills when told.
type guard struct {
	mu     sync.Mutex // guards what follows
	calls  []string
	kill   func(reason string)
	reason string // of the next Ended
	refuse error  // of the next Command
	unfit  error  // of the next Started

	started func(pid int) // called by Started, when set
	pid     int
}

func (g *guard) note(call string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, call)
}

func (g *guard) Command(cmd *exec.Cmd) error {
	g.note("command")
	cmd.Env = append(cmd.Env, "GUARDED=yes")
	return g.refuse
}

func (g *guard) Start(cmd *exec.Cmd) error {
	g.note("start")
	return cmd.Start()
}

func (g *guard) Started(pid int, kill func(string)) error {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil { // not even to be reaped
		g.note("too late:")
	}
	g.note("started")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kill = kill
	if g.started != nil {
		g.started(pid)
	}
	return g.unfit
}

func (g *guard) Ended() string {
	g.note("ended")
	g.mu.Lock()
	defer g.mu.Unlock()
	reason := g.reason
	g.reason = ""
	return reason
}

func (g *guard) Detach() { g.note("detached") }

// seen returns the calls since the last seen.
func (g *guard) seen() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	calls := g.calls
	g.calls = nil
	return strings.Join(calls, " ")
}

func TestGuard_GoesWithEachChildFromStartToEnd(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	g := &guard{}
	f.spec.Guard = g
	f.spec.Init = `test "$GUARDED" = yes`
	m := f.start()
	if got := g.seen(); got != "command start started ended command start started" {
		t.Errorf("init and start: %s", got)
	}
	if !slices.Contains(strings.Split(f.ask("/env"), "\n"), "GUARDED=yes") {
		t.Error("the child was not started as the guard wants it")
	}
	g.kill("out of memory, limit 512 MiB")
	if e := f.event(process.EventExited).Exit; e.Reason != "out of memory, limit 512 MiB" || e.Signal != "killed" {
		t.Errorf("exit %+v, want the guard's reason", e)
	}
	f.event(process.EventRunning)
	if got := g.seen(); got != "ended command start started" {
		t.Errorf("replacement: %s", got)
	}
	g.mu.Lock()
	g.reason = "too many processes, limit 64" // seen by the kernel: nobody called kill
	g.mu.Unlock()
	kill(t, m.Snapshot().PID)
	if e := f.event(process.EventExited).Exit; e.Reason != "too many processes, limit 64" {
		t.Errorf("exit %+v, want the guard's reason", e)
	}
	f.event(process.EventRunning)
	g.mu.Lock()
	g.reason = "out of memory, limit 512 MiB" // of a tool process
	g.mu.Unlock()
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := m.Snapshot().LastExit; e.Reason != "stopped" {
		t.Errorf("exit %+v, want stopped: the limit met a tool, not the child", e)
	}
	if got := g.seen(); got != "ended command start started ended" {
		t.Errorf("replacement and stop: %s", got)
	}
}

func TestGuard_ReasonOfADeathWhileLoadingIsTold(t *testing.T) {
	t.Parallel()
	f := setup(t, "exit-in-load")
	f.spec.Guard = &guard{reason: "out of memory, limit 512 MiB"}
	err := f.manager().Start(t.Context(), f.spec, nil)
	want := "Formation crashed during startup: out of memory, limit 512 MiB\nthe disk is on fire"
	if got := fault.From(err); got.Message != want {
		t.Errorf("start: %q, want %q", got.Message, want)
	}
}

func TestGuard_RefusalIsASpawnError(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	g := &guard{refuse: errors.New("the disk limit of 1 GiB is used up")}
	f.spec.Guard = g
	err := f.manager().Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Name != "SpawnError" || !strings.HasSuffix(got.Message, "the disk limit of 1 GiB is used up") {
		t.Errorf("start: %v", err)
	}
	if got := g.seen(); got != "command ended" {
		t.Errorf("calls: %s", got)
	}
}

func TestGuard_IsDoneBeforeAnythingIsAskedOfARecordedChild(t *testing.T) {
	t.Parallel()
	f := setup(t, "exit-in-load")
	g := &guard{unfit: errors.New("put the process into its cgroup: it is gone")}
	g.started = func(pid int) {
		records, err := filepath.Glob(filepath.Join(f.spec.RunDir, "launch-*.json"))
		if err != nil || len(records) != 1 {
			t.Errorf("run records %v, %v; want the child's", records, err)
			return
		}
		if text, err := os.ReadFile(records[0]); err != nil || !strings.Contains(string(text), fmt.Sprintf(`"pid":%d,`, pid)) {
			t.Errorf("the record is %s, %v; want that of %d", text, err, pid)
		}
		g.pid = pid
	}
	f.spec.Guard = g
	err := f.manager().Start(t.Context(), f.spec, nil)
	if got := fault.From(err); !strings.Contains(got.Message, "it is gone") || strings.Contains(got.Message, "the disk is on fire") {
		t.Errorf("start: %q, want the guard's error; a formation that was loaded has another", got.Message)
	}
	if err := syscall.Kill(g.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process that is not limited lives on: %v", err)
	}
	if got := g.seen(); got != "command start started ended" {
		t.Errorf("calls: %s", got)
	}
}

func TestGuard_InitThatCannotBeLimitedDoesNotGoOn(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	g := &guard{unfit: errors.New("it is gone")}
	g.started = func(pid int) { g.pid = pid }
	f.spec.Guard, f.spec.Init = g, "sleep 60"
	err := f.manager().Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Name != "SpawnError" || !strings.Contains(got.Message, "it is gone") {
		t.Errorf("start: %v", err)
	}
	if err := syscall.Kill(g.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the command lives on: %v", err)
	}
}

func TestGuard_InitThatExceedsALimitSaysSo(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Guard = &guard{reason: "out of memory, limit 512 MiB"}
	f.spec.Init = "kill -9 $$"
	err := f.manager().Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Message != "init failed (out of memory, limit 512 MiB)" {
		t.Errorf("start: %v", err)
	}
}

func TestGuard_AdoptedChildIsWatchedAndLeftAlone(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	first, second := &guard{}, &guard{}
	f.spec.Guard = first
	f.start()
	f.m.Close()
	if got := first.seen(); got != "command start started detached" {
		t.Errorf("close: %s", got)
	}
	f.spec.Guard = second
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); err != nil || !ok {
		t.Fatalf("adopt: %v, %v", ok, err)
	}
	second.kill("out of memory, limit 512 MiB")
	if e := f.event(process.EventExited).Exit; e.Reason != "out of memory, limit 512 MiB" {
		t.Errorf("exit %+v", e)
	}
	f.event(process.EventRunning)
	if got := second.seen(); got != "started ended command start started" {
		t.Errorf("adopted child and its replacement: %s", got)
	}
}

// tardy has no process to give until the time to become ready is over.
type tardy struct {
	guard
	over time.Duration
}

func (g *tardy) Start(*exec.Cmd) error {
	<-time.After(g.over)
	return errors.New("there is no room for a process")
}

func TestStart_WithoutAProcessByTheDeadlineIsAFailureAndNoInterruption(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.ReadyTimeout = 50 * time.Millisecond
	f.spec.Guard = &tardy{over: 2 * f.spec.ReadyTimeout}
	m := f.manager()
	if err := m.Start(t.Context(), f.spec, nil); fault.From(err).Name != "SpawnError" || !strings.Contains(fault.From(err).Message, "deadline has passed") {
		t.Fatalf("start: %v, want a SpawnError that tells of the deadline", err)
	}
	f.assertCrashed(m)
}

package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestWatch_KilledChildIsReplacedAndNoConnectionIsRefused(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	load := newLoad(f.spec.Socket.Addr().String(), 8)
	for range 5 {
		before := m.Snapshot()
		kill(t, before.PID)
		exit := f.event(process.EventExited).Exit
		if exit.Signal != "killed" || exit.Code != -1 || exit.Served <= 0 {
			t.Errorf("exit %+v, want killed after having served", exit)
		}
		after := f.event(process.EventRunning).Snapshot
		if after.PID == before.PID || after.RestartCount != before.RestartCount+1 {
			t.Errorf("after: %+v, before: %+v", after, before)
		}
		load.answered(t, 50)
	}
	load.stop()
	if n := load.refused.Load(); n > 0 {
		t.Errorf("%d connections were refused, the last: %v", n, load.last.Load())
	}
	if n := load.broken.Load(); n > 5*8 {
		t.Errorf("%d requests were cut; at most the 8 in flight at each of 5 kills may be", n)
	}
}

// load keeps asking over fresh connections, without any retry.
type load struct {
	addr                     string
	refused, broken, success atomic.Int64
	last                     atomic.Value
	end                      context.CancelFunc
	workers                  sync.WaitGroup
}

func newLoad(addr string, workers int) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{addr: addr, end: cancel}
	for range workers {
		l.workers.Go(func() {
			for ctx.Err() == nil {
				l.once()
			}
		})
	}
	return l
}

func (l *load) once() {
	conn, err := net.DialTimeout("tcp", l.addr, patience)
	if err != nil {
		l.refused.Add(1)
		l.last.Store(err.Error())
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		l.broken.Add(1)
		return
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		l.success.Add(1)
	}
}

// answered waits for n more answers.
func (l *load) answered(t *testing.T, n int64) {
	t.Helper()
	want := l.success.Load() + n
	eventually(t, "answers under load", func() bool { return l.success.Load() >= want })
}

func (l *load) stop() {
	l.end()
	l.workers.Wait()
}

func TestWatch_NextChildFencesTheDeadOne(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Fence = []string{"given"}
	m := f.start()
	if got := f.ask("/fence"); got != "given" {
		t.Errorf("first child fences %q, want only what was given", got)
	}
	dead := m.Snapshot().LaunchID
	kill(t, m.Snapshot().PID)
	second := f.event(process.EventRunning).Snapshot
	for second.LaunchID == dead {
		second = f.event(process.EventRunning).Snapshot
	}
	if got, want := f.ask("/fence"), "given "+dead; got != want {
		t.Errorf("second child fences %q, want %q", got, want)
	}
	if left := f.records(); len(left) != 1 || !strings.Contains(left[0], second.LaunchID) {
		t.Errorf("records %v, want only that of %s", left, second.LaunchID)
	}
}

func TestWatch_LaunchThatNeverLoadedStaysOnTheFenceList(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.mark("crash")
	m := f.manager()
	if err := m.Start(t.Context(), f.spec, nil); err == nil {
		t.Fatal("start: want a failure")
	}
	if got := f.records(); len(got) != 1 {
		t.Fatalf("records %v, want that of the dead launch", got)
	}
	f.unmark("crash")
	// Another supervisor, which knows the dead launch by its record only.
	f.m.Close()
	if err := f.manager().Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if got := f.ask("/fence"); len(got) != 16 {
		t.Errorf("fence list %q, want the dead launch", got)
	}
}

func TestWatch_HangIsKilledReplacedAndFenced(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(f *fixture, pid int){
		"process stopped": func(f *fixture, pid int) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				f.t.Fatal(err)
			}
		},
		"heartbeat stands still": func(f *fixture, _ int) { f.ask("/freeze") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			f.cfg.HealthInterval, f.cfg.HealthTimeout = time.Second, 3*time.Second
			m := f.start()
			before := m.Snapshot()
			hang(f, before.PID)
			if e := f.event(process.EventHung); !strings.HasPrefix(e.Exit.Reason, "hang: no heartbeat for 4s") {
				t.Errorf("reason %q", e.Exit.Reason)
			}
			awaitGone(t, before.PID)
			after := f.event(process.EventRunning).Snapshot
			if after.PID == before.PID {
				t.Errorf("still process %d", after.PID)
			}
			if got := f.ask("/fence"); !strings.Contains(got, before.LaunchID) {
				t.Errorf("fence list %q lacks the hung launch %s", got, before.LaunchID)
			}
		})
	}
}

func TestWatch_HealthIsRead(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.HealthInterval = 10 * time.Millisecond
	m := f.start()
	first := m.Snapshot().LastHealth
	eventually(t, "a later reading", func() bool { return m.Snapshot().LastHealth.After(first) })
	if h := m.Snapshot().Healthy; h == nil || !*h {
		t.Errorf("healthy %v, want true", h)
	}
}

func TestWatch_GivesUpAfterTooManyFailures(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.Policy = process.Policy{Max: 3, Base: time.Millisecond, Window: time.Hour, Healthy: time.Hour}
	notify, told := f.cfg.Notify, make(chan struct{})
	f.cfg.Notify = func(e process.Event) {
		notify(e)
		if e.Kind == process.EventCrashed { // the owner takes its time
			<-told
		}
	}
	m := f.start()
	f.mark("crash")
	kill(t, m.Snapshot().PID)
	e := f.event(process.EventCrashed)
	if e.Exit.Code != 7 || strings.Join(e.Exit.Stderr, "") != "the disk is on fire" {
		t.Errorf("exit %+v, want code 7 with its last line", e.Exit)
	}
	if e.Snapshot.RestartCount != 2 {
		t.Errorf("%d restarts before giving up at the 3rd failure, want 2", e.Snapshot.RestartCount)
	}
	f.assertCrashed(m)
	f.unmark("crash")
	time.AfterFunc(50*time.Millisecond, func() { close(told) })
	if err := m.Start(t.Context(), f.spec, nil); err != nil { // whoever sees it crashed may start it
		t.Fatal(err)
	}
	if f.spec.Socket.Serving() {
		t.Error("the supervisor still answers beside the new child")
	}
	f.pid()
}

func TestWatch_LongOutageIsAnsweredUntilAChildServes(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.OutageLimit = 20 * time.Millisecond
	m := f.start()
	f.mark("wait")
	kill(t, m.Snapshot().PID)
	f.event(process.EventRestarting)
	code, body, err := f.get("/")
	if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(body, "SERVICE_UNAVAILABLE") {
		t.Errorf("during the outage: %d %q %v", code, body, err)
	}
	if s := m.Snapshot(); s.Status != process.StatusRestarting {
		t.Errorf("status %s, want restarting", s.Status)
	}
	f.unmark("wait")
	f.event(process.EventRunning)
	if got, want := f.pid(), m.Snapshot().PID; got != want {
		t.Errorf("answered by %d, want %d", got, want)
	}
}

func TestWatch_ToolProcessesDieWithTheChild(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	tool, err := strconv.Atoi(f.ask("/tool"))
	if err != nil {
		t.Fatal(err)
	}
	if !alive(tool) {
		t.Fatal("the tool process did not start")
	}
	kill(t, m.Snapshot().PID)
	awaitGone(t, tool)
	f.event(process.EventRestarting)
}

func TestStop_KillsAChildThatDoesNotObey(t *testing.T) {
	t.Parallel()
	f := setup(t, "deaf")
	f.spec.DrainTimeout, f.spec.KillTimeout = 100*time.Millisecond, 100*time.Millisecond
	m := f.start()
	tool, err := strconv.Atoi(f.ask("/tool"))
	if err != nil {
		t.Fatal(err)
	}
	pid := m.Snapshot().PID
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid)
	awaitGone(t, tool)
	s := m.Snapshot()
	if s.Status != process.StatusStopped || !strings.HasPrefix(s.LastExit.Reason, "killed") {
		t.Errorf("snapshot %+v, exit %+v; want stopped by a kill", s, s.LastExit)
	}
	if !f.refused() {
		t.Error("the port still accepts")
	}
}

func TestStop_HungChildIsEndedAndThePortClosed(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.HealthTimeout = 200 * time.Millisecond // of the question at the stop
	f.cfg.HealthInterval = time.Hour
	f.spec.DrainTimeout, f.spec.KillTimeout = 100*time.Millisecond, 100*time.Millisecond
	m := f.start()
	pid := m.Snapshot().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid)
	if !f.refused() {
		t.Error("the port still accepts")
	}
}

func TestStop_ChildWithoutControlIsEndedBySIGTERM(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.HealthTimeout, f.cfg.HealthInterval = 200*time.Millisecond, time.Hour
	f.spec.DrainTimeout = patience
	m := f.start()
	f.ask("/mute")
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := m.Snapshot().LastExit; e.Code != 0 || e.Reason != "stopped" {
		t.Errorf("exit %+v, want an orderly end by SIGTERM", e)
	}
}

func TestStop_EndsACrashedFormationsAnswering(t *testing.T) {
	t.Parallel()
	f := setup(t, "exit-in-load")
	m := f.manager()
	if err := m.Start(t.Context(), f.spec, nil); err == nil {
		t.Fatal("start: want a failure")
	}
	f.assertCrashed(m)
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := m.Snapshot(); s.Status != process.StatusStopped || s.LastExit == nil {
		t.Errorf("snapshot %+v, want stopped, with the last exit kept", s)
	}
	if !f.refused() {
		t.Error("the port still accepts")
	}
}

func TestStop_InterruptsAStart(t *testing.T) {
	t.Parallel()
	f := setup(t, "stuck")
	m := f.manager()
	loading := make(chan struct{})
	var once sync.Once
	started := make(chan error, 1)
	go func() {
		started <- m.Start(t.Context(), f.spec, func(stage, _ string, _, _ int) {
			if stage == "health_check" {
				once.Do(func() { close(loading) })
			}
		})
	}()
	<-loading
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-started; fault.KindOf(err) != fault.Canceled {
		t.Errorf("start: %v, want canceled", err)
	}
	if s := m.Snapshot(); s.Status != process.StatusStopped {
		t.Errorf("status %s, want stopped", s.Status)
	}
	if !f.refused() {
		t.Error("the port still accepts")
	}
}

// A stop that comes while a restart still ends the old child finds no start that
// it could interrupt: the start must not come afterwards.
func TestStop_InterruptsARestartThatHasNotStartedYet(t *testing.T) {
	t.Parallel()
	for name, patient := range map[string]bool{"and waits": true, "and leaves": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			f.spec.DrainTimeout = patience
			m := f.start()
			work := f.open() // which the old child finishes first
			next := f.spec
			next.Env = specIn(f.home, "stuck").Env
			next.ReadyTimeout = 10 * patience
			restarted, stopped := make(chan error, 1), make(chan error, 1)
			go func() { restarted <- m.Restart(t.Context(), next, nil) }()
			eventually(t, "the old child ends", func() bool { return m.Snapshot().Status == process.StatusStopping })
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			go func() { stopped <- m.Stop(ctx) }()
			eventually(t, "the port is closed", f.refused)
			if !patient {
				leave()
				if err := <-stopped; !errors.Is(err, context.Canceled) {
					t.Errorf("stop: %v", err)
				}
			}
			work.finish()
			select {
			case err := <-restarted:
				if fault.KindOf(err) != fault.Canceled {
					t.Errorf("restart: %v, want canceled", err)
				}
			case <-time.After(patience):
				t.Fatal("the restart goes on")
			}
			if patient {
				if err := <-stopped; err != nil {
					t.Errorf("stop: %v", err)
				}
			}
			if s := m.Snapshot(); s.Status != process.StatusStopped || s.PID != 0 {
				t.Errorf("status %s, process %d, want stopped", s.Status, s.PID)
			}
			if !f.refused() {
				t.Error("the port accepts again")
			}
			// What is asked for afterwards is another matter.
			if err := m.Start(t.Context(), f.spec, nil); err != nil {
				t.Errorf("start afterwards: %v", err)
			}
		})
	}
}

func TestStop_DuringBackOffEndsTheTrying(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.cfg.Policy = process.Policy{Base: time.Hour, MaxDelay: time.Hour}
	f.cfg.Rand = func() float64 { return 0 }
	m := f.start()
	f.mark("crash")
	kill(t, m.Snapshot().PID)
	for f.event(process.EventRestarting).Delay == 0 { // the first comes at once
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := m.Snapshot(); s.Status != process.StatusStopped {
		t.Errorf("status %s, want stopped", s.Status)
	}
}

func TestStop_WithoutAStartDoesNothing(t *testing.T) {
	t.Parallel()
	m := process.NewManager(process.ManagerConfig{})
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Close()
}

func TestRestart_KeepsThePortOpen(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	before := m.Snapshot()
	load := newLoad(f.spec.Socket.Addr().String(), 4)
	load.answered(t, 20)
	var stages []string
	if err := m.Restart(t.Context(), f.spec, func(stage, _ string, _, _ int) { stages = append(stages, stage) }); err != nil {
		t.Fatal(err)
	}
	load.answered(t, 20)
	load.stop()
	if n := load.refused.Load(); n > 0 {
		t.Errorf("%d connections were refused: %v", n, load.last.Load())
	}
	after := m.Snapshot()
	if after.PID == before.PID || after.RestartCount != before.RestartCount+1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if len(stages) < 3 || stages[0] != "stopping" || stages[1] != "spawning" {
		t.Errorf("stages %v", stages)
	}
}

func TestManager_OneFormationsStartDoesNotHoldAnother(t *testing.T) {
	t.Parallel()
	slow, quick := setup(t, "stuck"), setup(t, "ok")
	m := slow.manager()
	ctx, cancel := context.WithCancelCause(t.Context())
	loading := make(chan struct{}, 100)
	started := make(chan error, 1)
	go func() {
		started <- m.Start(ctx, slow.spec, func(string, string, int, int) { loading <- struct{}{} })
	}()
	<-loading
	quick.start()
	quick.pid()
	select {
	case err := <-started:
		t.Errorf("the stuck start ended: %v", err)
	default:
	}
	cancel(errors.New("enough"))
	if err := <-started; fault.KindOf(err) != fault.Canceled {
		t.Errorf("start: %v, want canceled", err)
	}
}

package process_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// version returns the fixture's spec with a directory of its own and a child that
// plays mode.
func (f *fixture) version(name, mode string) process.Spec {
	f.t.Helper()
	spec := specIn(f.home, mode)
	spec.Socket = f.spec.Socket
	spec.Dir = filepath.Join(f.home, name)
	spec.LameDuck = 200 * time.Millisecond
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	return spec
}

// updatable starts version 1 of a formation.
func updatable(t *testing.T) *fixture {
	t.Helper()
	f := setup(t, "ok")
	f.cfg.HealthInterval = 20 * time.Millisecond
	f.spec = f.version("v1", "ok")
	f.start()
	f.event(process.EventRunning)
	return f
}

// update is an update in progress.
type update struct {
	f       *fixture
	cancel  context.CancelFunc
	ended   chan error
	commits atomic.Int32
	stages  []string // readable when ended has been read
}

// update begins one and returns at once.
func (f *fixture) update(spec process.Spec, o process.UpdateOptions) *update {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	u := &update{f: f, cancel: cancel, ended: make(chan error, 1)}
	f.t.Cleanup(cancel)
	commit := o.Commit
	o.Commit = func(ctx context.Context) error {
		u.commits.Add(1)
		if commit != nil {
			return commit(ctx)
		}
		return nil
	}
	o.Spawning, o.Stopping = "spawning_staging", "stopping_old"
	o.Progress = func(stage, _ string, attempt, attempts int) {
		if attempt > attempts {
			f.t.Errorf("stage %s: %d of %d", stage, attempt, attempts)
		}
		if len(u.stages) == 0 || u.stages[len(u.stages)-1] != stage {
			u.stages = append(u.stages, stage)
		}
	}
	go func() { u.ended <- f.m.Update(ctx, spec, o) }()
	return u
}

// wait returns the update's result.
func (u *update) wait() error {
	u.f.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-u.ended:
		return err
	case <-timer.C:
		u.f.t.Fatal("the update does not end")
		return nil
	}
}

// committed fails the test unless the update was committed n times.
func (u *update) committed(n int32) {
	u.f.t.Helper()
	if got := u.commits.Load(); got != n {
		u.f.t.Errorf("committed %d times, want %d", got, n)
	}
}

// stream is a long answer of whichever child serves now.
type stream struct {
	f    *fixture
	body *bufio.Reader
	resp *http.Response
}

// open begins a stream that lasts until the marker "hold" goes.
func (f *fixture) open() *stream {
	f.t.Helper()
	f.mark("hold")
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + f.spec.Socket.Addr().String() + "/stream")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	s := &stream{f: f, resp: resp, body: bufio.NewReader(resp.Body)}
	if _, err := s.body.ReadByte(); err != nil {
		f.t.Fatal(err)
	}
	return s
}

// finish lets the stream end and fails the test when it was cut.
func (s *stream) finish() {
	s.f.t.Helper()
	s.f.unmark("hold")
	rest, err := io.ReadAll(s.body)
	if err != nil || !strings.HasSuffix(string(rest), "end") {
		s.f.t.Errorf("the stream was cut: %v", err)
	}
}

// assertServes checks that the child of a snapshot answers and is the one shown.
func (f *fixture) assertServes(want process.Snapshot) {
	f.t.Helper()
	got := f.m.Snapshot()
	if got.Status != process.StatusRunning || got.PID != want.PID || got.LaunchID != want.LaunchID {
		f.t.Errorf("snapshot %+v, want running process %d, launch %s", got, want.PID, want.LaunchID)
	}
	if pid := f.pid(); pid != want.PID {
		f.t.Errorf("answered by %d, want %d", pid, want.PID)
	}
}

// assertOnlyRecord checks that the run directory knows one launch.
func (f *fixture) assertOnlyRecord(launch string) {
	f.t.Helper()
	if left := f.records(); len(left) != 1 || !strings.Contains(left[0], launch) {
		f.t.Errorf("records %v, want only that of %s", left, launch)
	}
}

func TestUpdate_SwitchesWithoutAGap(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	old := f.m.Snapshot()
	s := f.open()
	load := newLoad(f.spec.Socket.Addr().String(), 8)
	load.answered(t, 50)
	u := f.update(f.version("v2", "ok"), process.UpdateOptions{
		Probation: 300 * time.Millisecond,
		Commit: func(context.Context) error {
			if !alive(old.PID) {
				t.Error("the old child does not stand by until the commit")
			}
			return nil
		},
	})
	next := f.event(process.EventRunning).Snapshot
	f.event(process.EventUpdated)
	load.answered(t, 50)
	s.finish()
	if err := u.wait(); err != nil {
		t.Fatal(err)
	}
	if alive(old.PID) {
		t.Error("the old child lives when the update has returned")
	}
	load.answered(t, 50)
	load.stop()
	if r, b := load.refused.Load(), load.broken.Load(); r > 0 || b > 0 {
		t.Errorf("%d connections refused, %d requests cut: %v", r, b, load.last.Load())
	}
	f.assertServes(next)
	u.committed(1)
	if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
		t.Errorf("the new child runs in %s, want %s", got, want)
	}
	if got := f.ask("/dead"); got != old.LaunchID {
		t.Errorf("the new child fenced %q, want %q", got, old.LaunchID)
	}
	f.assertOnlyRecord(next.LaunchID)
	if want := []string{"spawning_staging", "health_check", "swapping", "stopping_old"}; !slices.Equal(u.stages, want) {
		t.Errorf("stages %v, want %v", u.stages, want)
	}
	if n := f.m.Snapshot().RestartCount; n != old.RestartCount {
		t.Errorf("an update counts as %d restarts", n)
	}
	// From now on it is the new version that is restarted.
	kill(t, next.PID)
	f.event(process.EventRunning)
	if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
		t.Errorf("restarted in %s, want %s", got, want)
	}
}

func TestUpdate_NewChildThatNeverServesChangesNothing(t *testing.T) {
	t.Parallel()
	for mode, c := range map[string]struct{ name, message string }{
		"exit-in-load":   {"HealthCheckFailed", "Formation crashed during startup: the disk is on fire"},
		"panic-at-start": {"HealthCheckFailed", "panic: runtime error"},
		"secrets":        {"SecretsError", "secret API_KEY is missing"},
		"stuck":          {"HealthCheckFailed", "did not become ready within 3s"},
		"will-not-serve": {"", "it can't serve"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := updatable(t)
			old := f.m.Snapshot()
			spec := f.version("v2", mode)
			if mode == "stuck" {
				spec.ReadyTimeout = 3 * time.Second
			}
			u := f.update(spec, process.UpdateOptions{Probation: time.Hour})
			err := u.wait()
			if got := fault.From(err); got.Name != c.name || !strings.Contains(got.Message, c.message) {
				t.Errorf("update: %v; want %s: %s", err, c.name, c.message)
			}
			f.assertServes(old)
			u.committed(0)
			if e := f.m.Snapshot().LastExit; e != nil {
				t.Errorf("the failure of a new child became the formation's last exit: %+v", e)
			}
			if err := f.m.Update(t.Context(), f.version("v3", "ok"), process.UpdateOptions{}); err != nil {
				t.Errorf("the next update: %v", err)
			}
			f.assertOnlyRecord(f.m.Snapshot().LaunchID)
		})
	}
}

func TestUpdate_NewChildThatFailsItsProbationBringsTheOldBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail    func(f *fixture, pid int)
		message string
		dies    bool
	}{
		"crash":  {nil, "after the switch: exit code 9: the roof falls in", true},
		"killed": {func(f *fixture, pid int) { kill(f.t, pid) }, "after the switch: signal: killed", true},
		"hang": {func(f *fixture, pid int) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				f.t.Error(err)
			}
		}, "after the switch: hang: it did not answer for 3s", true},
		"unwell": {func(f *fixture, _ int) { f.ask("/unwell") }, "after the switch: it is not ready any more: the disk is full", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			f.cfg.HealthInterval = patience
			if name == "hang" {
				f.cfg.HealthTimeout = 3 * time.Second
			}
			f.spec = f.version("v1", "ok")
			f.start()
			old := f.event(process.EventRunning).Snapshot
			mode := "ok"
			if c.fail == nil {
				mode = "dies-late"
			}
			load := newLoad(f.spec.Socket.Addr().String(), 4)
			spec := f.version("v2", mode)
			spec.NotReady = fault.Invalid
			u := f.update(spec, process.UpdateOptions{Probation: time.Hour})
			next := f.event(process.EventRunning).Snapshot
			if c.fail != nil {
				c.fail(f, next.PID)
			}
			back := f.event(process.EventRolledBack)
			err := u.wait()
			if got := fault.From(err); got.Kind != fault.Invalid || got.Name != "HealthCheckFailed" || !strings.Contains(plainKill(got.Message), c.message) {
				t.Errorf("update: %v; want HealthCheckFailed %q", err, c.message)
			}
			load.answered(t, 20)
			load.stop()
			if n := load.refused.Load(); n > 0 {
				t.Errorf("%d connections were refused: %v", n, load.last.Load())
			}
			if alive(next.PID) {
				t.Error("the new child lives when the update has returned")
			}
			f.assertServes(old)
			if back.Snapshot.PID != old.PID || back.Exit.Reason == "" {
				t.Errorf("event %+v, want the old child shown and a reason", back)
			}
			if last := f.m.Snapshot().LastExit; c.dies != (last != nil) {
				t.Errorf("last exit %+v, want one only when the new child died", last)
			}
			u.committed(0)
			if got := f.ask("/dead"); got != next.LaunchID {
				t.Errorf("the old child fenced %q, want %q", got, next.LaunchID)
			}
			f.assertOnlyRecord(old.LaunchID)
			// The old version is supervised as before.
			kill(t, old.PID)
			f.event(process.EventRunning)
			if got, want := f.ask("/dir"), filepath.Join(f.home, "v1"); got != want {
				t.Errorf("restarted in %s, want %s", got, want)
			}
		})
	}
}

func TestUpdate_FailedCommitBringsTheOldBackAndCutsNothing(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	old := f.m.Snapshot()
	var s *stream
	u := f.update(f.version("v2", "ok"), process.UpdateOptions{
		Probation: 10 * time.Millisecond,
		Commit: func(context.Context) error {
			s = f.open() // on the new child
			return errors.New("the registry is full")
		},
	})
	next := f.event(process.EventRunning).Snapshot
	f.event(process.EventRolledBack)
	f.assertServes(old)
	s.finish()
	if err := u.wait(); err == nil || err.Error() != "the registry is full" {
		t.Errorf("update: %v", err)
	}
	if alive(next.PID) {
		t.Error("the new child lives when the update has returned")
	}
	if got := f.ask("/dead"); got != next.LaunchID {
		t.Errorf("the old child fenced %q, want %q", got, next.LaunchID)
	}
}

func TestUpdate_CancelBeforeTheCommitAbandonsIt(t *testing.T) {
	t.Parallel()
	for name, probation := range map[string]bool{"while loading": false, "on probation": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := updatable(t)
			old := f.m.Snapshot()
			if !probation {
				f.mark("v2/wait")
			}
			u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: time.Hour})
			if probation {
				f.event(process.EventRunning)
			} else {
				eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
			}
			u.cancel()
			if err := u.wait(); fault.KindOf(err) != fault.Canceled {
				t.Errorf("update: %v, want canceled", err)
			}
			f.assertServes(old)
			u.committed(0)
		})
	}
}

func TestUpdate_CancelAfterTheCommitDoesNothing(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	var u *update
	commit := make(chan struct{})
	u = f.update(f.version("v2", "ok"), process.UpdateOptions{Commit: func(ctx context.Context) error {
		<-commit
		u.cancel()
		return ctx.Err()
	}})
	next := f.event(process.EventRunning).Snapshot
	close(commit)
	if err := u.wait(); err != nil {
		t.Errorf("update: %v", err)
	}
	f.assertServes(next)
}

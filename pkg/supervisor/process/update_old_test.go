package process_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestUpdate_OldChildThatDiesMeanwhile(t *testing.T) {
	t.Parallel()
	t.Run("is replaced until the new one is ready", func(t *testing.T) {
		t.Parallel()
		f := updatable(t)
		old := f.m.Snapshot()
		spec := f.version("v2", "ok")
		f.mark("v2/wait")
		u := f.update(spec, process.UpdateOptions{})
		eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
		kill(t, old.PID)
		again := f.event(process.EventRunning).Snapshot
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v1"); got != want || again.PID == old.PID {
			t.Errorf("replaced by a child in %s, want %s", got, want)
		}
		f.unmark("v2/wait")
		f.event(process.EventUpdated)
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
		if got := f.ask("/dir"); got != spec.Dir {
			t.Errorf("in the end %s serves, want %s", got, spec.Dir)
		}
		if got := f.ask("/dead"); got != again.LaunchID {
			t.Errorf("the new child fenced %q, want %q; the first was fenced by its successor", got, again.LaunchID)
		}
		f.assertOnlyRecord(f.m.Snapshot().LaunchID)
	})
	t.Run("and cannot be replaced: the new one takes over when ready", func(t *testing.T) {
		t.Parallel()
		f := setup(t, "ok")
		f.cfg.Policy = process.Policy{Base: time.Hour, MaxDelay: time.Hour}
		f.spec = f.version("v1", "ok")
		f.start()
		old := f.event(process.EventRunning).Snapshot
		f.mark("v2/wait")
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: 50 * time.Millisecond})
		eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
		f.mark("v1/crash")
		kill(t, old.PID)
		for f.event(process.EventRestarting).Delay == 0 { // the first restart comes at once and crashes
		}
		f.unmark("v2/wait")
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
			t.Errorf("in the end %s serves, want %s", got, want)
		}
	})
	t.Run("while its replacement hangs in loading", func(t *testing.T) {
		t.Parallel()
		f := updatable(t)
		f.mark("v2/wait")
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{})
		eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
		f.mark("v1/wait")
		kill(t, f.m.Snapshot().PID)
		f.event(process.EventRestarting)
		f.unmark("v2/wait")
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
			t.Errorf("in the end %s serves, want %s", got, want)
		}
	})
	t.Run("given up for good: the new one takes over when ready", func(t *testing.T) {
		t.Parallel()
		f := setup(t, "ok")
		f.cfg.Policy = process.Policy{Max: 2, Base: time.Millisecond, Window: time.Hour, Healthy: time.Hour}
		f.spec = f.version("v1", "ok")
		f.start()
		f.mark("v2/wait")
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{})
		eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
		f.mark("v1/crash")
		kill(t, f.m.Snapshot().PID)
		f.event(process.EventCrashed)
		f.unmark("v2/wait")
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
			t.Errorf("in the end %s serves, want %s", got, want)
		}
	})
	t.Run("on standby: nothing happens", func(t *testing.T) {
		t.Parallel()
		f := updatable(t)
		old := f.m.Snapshot()
		commit := make(chan struct{})
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{
			Probation: time.Second,
			Commit:    func(context.Context) error { <-commit; return nil },
		})
		next := f.event(process.EventRunning).Snapshot
		kill(t, old.PID)
		awaitGone(t, old.PID)
		f.assertServes(next)
		close(commit)
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
		f.assertServes(next)
		if got := f.ask("/dead"); got != old.LaunchID {
			t.Errorf("the new child fenced %q, want %q", got, old.LaunchID)
		}
	})
	t.Run("on standby, and then the new one too: the old version is launched", func(t *testing.T) {
		t.Parallel()
		f := updatable(t)
		old := f.m.Snapshot()
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: time.Hour})
		next := f.event(process.EventRunning).Snapshot
		kill(t, old.PID)
		awaitGone(t, old.PID)
		kill(t, next.PID)
		if err := u.wait(); fault.NameOf(err) != "HealthCheckFailed" {
			t.Errorf("update: %v, want HealthCheckFailed", err)
		}
		f.event(process.EventRunning)
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v1"); got != want {
			t.Errorf("in the end %s serves, want %s", got, want)
		}
		fenced := f.ask("/fence") + " " + f.ask("/dead")
		if !strings.Contains(fenced, old.LaunchID) || !strings.Contains(fenced, next.LaunchID) {
			t.Errorf("fenced %q, want %s and %s", fenced, old.LaunchID, next.LaunchID)
		}
		f.assertOnlyRecord(f.m.Snapshot().LaunchID)
	})
	t.Run("on standby, before an unhealthy new one: the old version is launched", func(t *testing.T) {
		t.Parallel()
		f := updatable(t)
		old := f.m.Snapshot()
		u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: time.Hour})
		next := f.event(process.EventRunning).Snapshot
		kill(t, old.PID)
		awaitGone(t, old.PID)
		f.ask("/unwell")
		if err := u.wait(); fault.NameOf(err) != "HealthCheckFailed" {
			t.Errorf("update: %v, want HealthCheckFailed", err)
		}
		awaitGone(t, next.PID)
		f.event(process.EventRunning)
		if got, want := f.ask("/dir"), filepath.Join(f.home, "v1"); got != want {
			t.Errorf("in the end %s serves, want %s", got, want)
		}
	})
}

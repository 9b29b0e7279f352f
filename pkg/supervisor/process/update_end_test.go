package process_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestUpdate_StopEndsBothChildren(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"loading", "probation", "draining"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			f := updatable(t)
			old := f.m.Snapshot()
			probation, end := time.Hour, fault.Canceled
			var s *stream
			switch when {
			case "loading":
				f.mark("v2/wait")
			case "draining":
				s = f.open()
				probation, end = 0, fault.Internal // none
			}
			u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: probation})
			if when == "loading" {
				eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
			} else {
				f.event(process.EventRunning)
			}
			if s != nil {
				f.event(process.EventUpdated)
			}
			next := f.m.Snapshot()
			stopped := make(chan error, 1)
			go func() { stopped <- f.m.Stop(t.Context()) }()
			eventually(t, "the port is closed", f.refused)
			if s != nil {
				s.finish()
			}
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			if alive(old.PID) || alive(next.PID) {
				t.Error("a child lives after the stop")
			}
			err := u.wait()
			if when == "draining" && err != nil || when != "draining" && fault.KindOf(err) != end {
				t.Errorf("update: %v", err)
			}
			if got := f.m.Snapshot(); got.Status != process.StatusStopped || got.PID != 0 {
				t.Errorf("snapshot %+v, want stopped", got)
			}
		})
	}
}

func TestUpdate_CloseLeavesBothToTheNextSupervisor(t *testing.T) {
	t.Parallel()
	for name, current := range map[string]string{"not committed": "v1", "committed": "v2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := updatable(t)
			old := f.m.Snapshot()
			s := f.open()
			probation := time.Hour
			if current == "v2" {
				probation = 0
			}
			u := f.update(f.version("v2", "ok"), process.UpdateOptions{Probation: probation})
			next := f.event(process.EventRunning).Snapshot
			if current == "v2" {
				f.event(process.EventUpdated)
			}
			f.m.Close()
			if err := u.wait(); (err == nil) != (current == "v2") {
				t.Errorf("update: %v", err)
			}
			if !alive(old.PID) || !alive(next.PID) {
				t.Fatal("closing the manager ended a child that had served")
			}
			keep, lose := old, next
			if current == "v2" {
				keep, lose = next, old
			}
			spec := f.version(current, "ok")
			m := f.manager()
			if ok, err := m.Adopt(t.Context(), spec); err != nil || !ok {
				t.Fatalf("adopt: %v, %v", ok, err)
			}
			f.assertServes(keep)
			s.finish()
			awaitGone(t, lose.PID)
			eventually(t, "the other launch is fenced", func() bool { return f.ask("/dead") == lose.LaunchID })
			eventually(t, "its record is removed", func() bool { return len(f.records()) == 1 })
			f.assertServes(keep)
		})
	}
}

func TestUpdate_CloseWhileLoadingKillsTheNewChild(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	old := f.m.Snapshot()
	f.mark("v2/wait")
	u := f.update(f.version("v2", "ok"), process.UpdateOptions{})
	eventually(t, "the new child is launched", func() bool { return len(f.records()) == 2 })
	f.m.Close()
	if err := u.wait(); fault.KindOf(err) != fault.Canceled {
		t.Errorf("update: %v, want canceled", err)
	}
	if err := f.m.Start(t.Context(), f.spec, nil); fault.KindOf(err) != fault.Canceled {
		t.Errorf("start after close: %v, want canceled", err)
	}
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); err != nil || !ok {
		t.Fatalf("adopt: %v, %v", ok, err)
	}
	f.assertServes(old)
}

func TestUpdate_RestartWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	commit := make(chan struct{})
	u := f.update(f.version("v2", "ok"), process.UpdateOptions{Commit: func(context.Context) error {
		<-commit
		return nil
	}})
	f.event(process.EventRunning)
	restarted := make(chan error, 1)
	spec := f.version("v2", "ok")
	go func() { restarted <- f.m.Restart(t.Context(), spec, nil) }()
	close(commit)
	if err := u.wait(); err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if got := f.ask("/dir"); got != spec.Dir {
		t.Errorf("%s serves, want %s", got, spec.Dir)
	}
}

func TestUpdate_OfWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"never started", "stopped", "crashed"} {
		for _, good := range []bool{true, false} {
			name := before + ", good update"
			if !good {
				name = before + ", bad update"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := setup(t, "ok")
				m := f.manager()
				switch before {
				case "stopped":
					f.spec = f.version("v1", "ok")
					if err := errors.Join(m.Start(t.Context(), f.spec, nil), m.Stop(t.Context())); err != nil {
						t.Fatal(err)
					}
				case "crashed":
					if err := m.Start(t.Context(), f.version("v1", "exit-in-load"), nil); err == nil {
						t.Fatal("start: want a failure")
					}
				}
				was := m.Snapshot()
				mode := "dies-late"
				probation := time.Hour
				if good {
					mode, probation = "ok", 10*time.Millisecond
				}
				err := m.Update(t.Context(), f.version("v2", mode), process.UpdateOptions{Probation: probation})
				if good {
					if err != nil {
						t.Fatal(err)
					}
					if got, want := f.ask("/dir"), filepath.Join(f.home, "v2"); got != want {
						t.Errorf("%s serves, want %s", got, want)
					}
					return
				}
				if fault.NameOf(err) != "HealthCheckFailed" {
					t.Errorf("update: %v, want HealthCheckFailed", err)
				}
				if got := m.Snapshot(); got.Status != was.Status || got.PID != 0 {
					t.Errorf("snapshot %+v, want %s as before", got, was.Status)
				}
				if was.Status == process.StatusCrashed {
					f.assertCrashed(m)
				} else if !f.refused() {
					t.Error("the port of a stopped formation accepts")
				}
			})
		}
	}
}

// The supervision of what an update has started is like any other: a later update
// that fails changes nothing.
func TestUpdate_ThatFailsLeavesWhatAnUpdateHasStarted(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]string{"while loading": "exit-in-load", "on probation": "dies-soon"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			m := f.manager()
			if err := m.Update(t.Context(), f.version("v1", "ok"), process.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			was := m.Snapshot()
			err := m.Update(t.Context(), f.version("v2", mode), process.UpdateOptions{Probation: time.Hour})
			if fault.NameOf(err) != "HealthCheckFailed" {
				t.Errorf("update: %v, want HealthCheckFailed", err)
			}
			f.assertServes(was)
		})
	}
}

func TestUpdate_WithAnotherSocketIsRefused(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	spec := f.version("v2", "ok")
	spec.Socket = freeSocket(t)
	if err := f.m.Update(t.Context(), spec, process.UpdateOptions{}); err == nil {
		t.Error("an update moved the formation to another port")
	}
	f.assertServes(f.m.Snapshot())
}

package process_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestInit_RunsOnceBeforeTheFirstLaunchOnly(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec = f.version("v1", "ok")
	f.spec.Env = append(f.spec.Env, "ALLOWED=yes")
	f.spec.FreshLogs = true
	f.spec.Init = `echo "$PWD"; echo "$FORMATION_ID $ALLOWED $SVC_LAUNCH_TOKEN"; echo oops >&2; echo ran >> runs`
	m := f.manager()
	// The time of init does not count against readiness.
	f.spec.ReadyTimeout = patience
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, f.spec.OutLog), f.spec.Dir+"\nsample yes \n"; got != want {
		t.Errorf("out log %q, want %q", got, want)
	}
	if got := read(t, f.spec.ErrLog); got != "oops\n" {
		t.Errorf("error log %q", got)
	}
	kill(t, m.Snapshot().PID)
	f.event(process.EventRestarting)
	f.event(process.EventRunning)
	if got := read(t, filepath.Join(f.spec.Dir, "runs")); got != "ran\n" {
		t.Errorf("init left %q, want one run", got)
	}
	f.assertOnlyRecord(m.Snapshot().LaunchID)
}

func TestInit_FailureIsASpawnErrorWithItsLastLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ command, want string }{
		"stderr":      {"echo out; echo no such package >&2; exit 3", "init failed (exit 3): no such package"},
		"only stdout": {"echo no such package; exit 4", "init failed (exit 4): no such package"},
		"silent":      {"exit 5", "init failed (exit 5)"},
		"signal":      {"kill -9 $$", "init failed (signal: killed)"},
		"last lines":  {"i=0; while [ $i -lt 50 ]; do echo line $i >&2; i=$((i+1)); done; exit 1", "init failed (exit 1): line 30\n"},
		"no command":  {"no-such-command", "init failed (exit 127): "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			f.spec.Init = c.command
			m := f.manager()
			err := m.Start(t.Context(), f.spec, nil)
			got := fault.From(err)
			if got.Kind != fault.Failed || got.Name != "SpawnError" || !strings.HasPrefix(plainKill(got.Message), c.want) {
				t.Errorf("start: %v; want SpawnError %q", err, c.want)
			}
			if e := m.Snapshot().LastExit; e == nil || !strings.HasPrefix(e.Reason, "init failed (") {
				t.Errorf("last exit %+v", e)
			}
			if left := f.records(); len(left) != 0 {
				t.Errorf("records left: %v", left)
			}
			f.assertCrashed(m)
		})
	}
}

func TestInit_FailureOfAnUpdateKeepsTheOldVersion(t *testing.T) {
	t.Parallel()
	f := updatable(t)
	old := f.m.Snapshot()
	spec := f.version("v2", "ok")
	spec.Init = "echo no such package >&2; exit 3"
	u := f.update(spec, process.UpdateOptions{})
	if got := fault.From(u.wait()); got.Name != "SpawnError" || got.Message != "init failed (exit 3): no such package" {
		t.Errorf("update: %+v", got)
	}
	f.assertServes(old)
	u.committed(0)
	spec.Init = "echo ran >> runs"
	if err := f.m.Update(t.Context(), spec, process.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(spec.Dir, "runs")); got != "ran\n" {
		t.Errorf("init left %q, want one run", got)
	}
}

// slowInit never ends; it writes the process number of a helper it starts to a
// file in the working directory.
const slowInit = "sleep 600 & echo $! > helper.tmp && mv helper.tmp helper; sleep 600"

// helper waits for the helper of slowInit.
func (f *fixture) helper() int {
	f.t.Helper()
	path := filepath.Join(f.spec.Dir, "helper")
	eventually(f.t, "init runs", func() bool { _, err := os.Stat(path); return err == nil })
	pid, err := strconv.Atoi(strings.TrimSpace(read(f.t, path)))
	if err != nil {
		f.t.Fatal(err)
	}
	return pid
}

func TestInit_EndsWithItsWholeGroupWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Init, f.spec.InitTimeout = "echo waiting >&2;"+slowInit, 5*time.Second
	err := f.manager().Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Name != "SpawnError" || got.Message != "init failed (not finished within 5s): waiting" {
		t.Errorf("start: %v", err)
	}
	awaitGone(t, f.helper())
}

func TestInit_IsInterrupted(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(f *fixture, cancel func()){
		"by the end of ctx": func(_ *fixture, cancel func()) { cancel() },
		"by a stop":         func(f *fixture, _ func()) { _ = f.m.Stop(f.t.Context()) },
		"by a close":        func(f *fixture, _ func()) { f.m.Close() },
	} {
		for _, update := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, update %v", name, update), func(t *testing.T) {
				t.Parallel()
				f := setup(t, "ok")
				m := f.manager()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if update {
					if err := m.Start(ctx, f.version("v1", "ok"), nil); err != nil {
						t.Fatal(err)
					}
				}
				f.spec = f.version("v2", "ok")
				f.spec.Init = slowInit
				ended := make(chan error, 1)
				go func() {
					if update {
						ended <- m.Update(ctx, f.spec, process.UpdateOptions{})
					} else {
						ended <- m.Start(ctx, f.spec, nil)
					}
				}()
				helper := f.helper()
				interrupt(f, cancel)
				if err := <-ended; fault.KindOf(err) != fault.Canceled {
					t.Errorf("%v, want canceled", err)
				}
				awaitGone(t, helper)
				if update && name == "by a close" {
					_, _ = f.manager().Adopt(t.Context(), f.version("v1", "ok")) // to be stopped
				}
			})
		}
	}
}

func TestInit_LeftoverOfADeadSupervisorIsKilledWhenProven(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Dir = f.home
	end := f.runSupervisor("SUPERVISOR_INIT=" + slowInit)
	helper := f.helper()
	eventually(t, "init is recorded", func() bool { return len(f.records()) == 1 }) // it may have been quicker
	end()
	if !alive(helper) || len(f.records()) != 1 {
		t.Fatalf("init does not outlive the supervisor: alive %v, records %v", alive(helper), f.records())
	}
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Fatalf("adopt of an init command: %v, %v", ok, err)
	}
	awaitGone(t, helper)
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if got := f.ask("/fence"); got != "" {
		t.Errorf("an init command is fenced as a launch: %q", got)
	}
	f.assertOnlyRecord(m.Snapshot().LaunchID)
}

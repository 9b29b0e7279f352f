package process_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/process"
)

// told returns why each launch ended, by the events so far that tell of ends. It
// fails the test when two events tell differently of one.
func (f *fixture) told() map[string]string {
	f.t.Helper()
	ends := []process.EventKind{
		process.EventRestarting, process.EventCrashed, process.EventStopped, process.EventRolledBack, process.EventReplaced,
	}
	all := make(map[string]process.Exit)
	for {
		select {
		case e := <-f.events:
			if !slices.Contains(ends, e.Kind) {
				continue
			}
			if before, ok := all[e.Exit.Launch]; ok && (!before.Time.Equal(e.Exit.Time) || before.Reason != e.Exit.Reason) {
				f.t.Errorf("launch %q is told to have ended as %+v and as %+v", e.Exit.Launch, before, e.Exit)
			}
			all[e.Exit.Launch] = e.Exit
		default:
			reasons := make(map[string]string, len(all))
			for launch, exit := range all {
				reasons[launch] = exit.Reason
			}
			return reasons
		}
	}
}

func TestUpdate_TellsTheEndOfEachChild(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		oldDies   bool                      // on standby
		fail      func(f *fixture, new int) // what happens to the new one; nil when it stays
		old, next string                    // how the reasons begin; "" for the one that stays
	}{
		"it succeeds":                      {old: "replaced"},
		"the old one dies on standby":      {oldDies: true, old: "replaced, it had ended by itself: signal: killed"},
		"the new one dies":                 {fail: func(f *fixture, pid int) { kill(f.t, pid) }, next: "signal: killed"},
		"the new one is unhealthy":         {fail: func(f *fixture, _ int) { f.ask("/unwell") }, next: "Formation became unhealthy"},
		"both die":                         {oldDies: true, fail: func(f *fixture, pid int) { kill(f.t, pid) }, old: "signal: killed", next: "signal: killed"},
		"one dies, the other is unhealthy": {oldDies: true, fail: func(f *fixture, _ int) { f.ask("/unwell") }, old: "signal: killed", next: "Formation became unhealthy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := updatable(t)
			old := f.m.Snapshot()
			o, commit := process.UpdateOptions{Probation: time.Hour}, make(chan struct{})
			if c.fail == nil {
				o.Probation, o.Commit = 0, func(context.Context) error { <-commit; return nil }
			}
			u := f.update(f.version("v2", "ok"), o)
			next := f.event(process.EventRunning).Snapshot
			if c.oldDies {
				kill(t, old.PID)
				awaitReaped(t, old.PID)
			}
			if c.fail != nil {
				c.fail(f, next.PID)
			}
			close(commit)
			if err := u.wait(); (err != nil) != (c.fail != nil) {
				t.Fatalf("update: %v", err)
			}
			eventually(t, "a child serves", func() bool { return f.m.Snapshot().Status == process.StatusRunning })
			last := f.m.Snapshot().LaunchID
			if err := f.m.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := f.told()
			for launch, want := range map[string]string{old.LaunchID: c.old, next.LaunchID: c.next, last: "stopped"} {
				if want == "" {
					want = "stopped"
				}
				if !strings.HasPrefix(plainKill(got[launch]), want) {
					t.Errorf("launch %s ended with %q, want %q", launch, got[launch], want)
				}
				delete(got, launch)
			}
			if len(got) > 0 {
				t.Errorf("further ends are told: %v", got)
			}
		})
	}
}

func TestUpdate_AKilledOldChildIsToldToHaveBeenReplaced(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec = f.version("v1", "deaf")
	f.spec.DrainTimeout, f.spec.KillTimeout = 50*time.Millisecond, 50*time.Millisecond
	m := f.start()
	old := m.Snapshot().LaunchID
	if err := m.Update(t.Context(), f.version("v2", "ok"), process.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.told()[old]; got != "replaced, killed: it did not end in time" || !process.Replaced(got) || process.Replaced("killed: it did not end in time") {
		t.Errorf("the old child ended with %q", got)
	}
}

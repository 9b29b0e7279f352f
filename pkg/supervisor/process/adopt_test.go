package process_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestAdopt_TakesOverTheChildOfADeadSupervisor(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"close", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			f := inherit(t, end)
			orphan := f.pid()
			m := f.manager()
			ok, err := m.Adopt(t.Context(), f.spec)
			if err != nil || !ok {
				t.Fatalf("adopt: %v, %v", ok, err)
			}
			s := m.Snapshot()
			if s.Status != process.StatusRunning || s.PID != orphan || !s.Adopted || s.StartedAt.IsZero() {
				t.Errorf("snapshot %+v, want the running process %d adopted", s, orphan)
			}
			if f.pid() != orphan {
				t.Error("another process answers after the adoption")
			}
			f.replaceAdopted(m, orphan)
			if err := m.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !f.refused() {
				t.Error("the port still accepts after the stop")
			}
		})
	}
}

// replaceAdopted kills the adopted child under load and sees it replaced.
func (f *fixture) replaceAdopted(m *process.Manager, orphan int) {
	f.t.Helper()
	taken := f.spec.Socket.Bound()
	if !taken {
		f.t.Error("the listening socket was not taken back")
	}
	load := newLoad(f.spec.Socket.Addr().String(), 4)
	load.answered(f.t, 20)
	launch := m.Snapshot().LaunchID
	kill(f.t, orphan)
	exit := f.event(process.EventExited).Exit
	if exit.Reason != "exit status unknown (adopted)" || exit.Code != -1 {
		f.t.Errorf("exit %+v, want unknown", exit)
	}
	f.event(process.EventRunning)
	load.answered(f.t, 20)
	load.stop()
	if n := load.refused.Load(); taken && n > 0 {
		f.t.Errorf("%d connections were refused: %v", n, load.last.Load())
	}
	if got := f.ask("/fence"); got != launch {
		f.t.Errorf("fence list %q, want %q", got, launch)
	}
}

func TestAdopt_StopEndsTheAdoptedChild(t *testing.T) {
	t.Parallel()
	f := inherit(t, "close")
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); err != nil || !ok {
		t.Fatalf("adopt: %v, %v", ok, err)
	}
	pid := m.Snapshot().PID
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid)
	if !f.refused() {
		t.Error("the port still accepts")
	}
	if left := f.records(); len(left) != 0 {
		t.Errorf("records left: %v", left)
	}
}

func TestAdopt_InOneProcessAfterClose(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	first := process.NewManager(f.cfg)
	if err := first.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	pid := f.pid()
	first.Close()
	if f.pid() != pid {
		t.Fatal("closing the manager touched the child")
	}
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); err != nil || !ok {
		t.Fatalf("adopt: %v, %v", ok, err)
	}
	if got := f.pid(); got != pid {
		t.Errorf("answered by %d, want %d", got, pid)
	}
}

func TestAdopt_FindsNothingAfterAStop(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	if ok, err := f.manager().Adopt(t.Context(), f.spec); ok || err != nil {
		t.Errorf("adopt in an empty directory: %v, %v", ok, err)
	}
	f.start()
	if err := f.m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, err := f.m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Errorf("adopt after a stop: %v, %v", ok, err)
	}
}

func TestAdopt_DeadChildIsFencedByTheNextStart(t *testing.T) {
	t.Parallel()
	f := inherit(t, "kill")
	kill(t, f.pid())
	eventually(t, "the port is closed", f.refused)
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Fatalf("adopt of a dead child: %v, %v", ok, err)
	}
	dead := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f.records()[0]), "launch-"), ".json")
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if got := f.ask("/fence"); got != dead {
		t.Errorf("fence list %q, want %q", got, dead)
	}
}

func TestAdopt_HungChildIsKilledNotTakenOver(t *testing.T) {
	t.Parallel()
	f := inherit(t, "close")
	f.cfg.HealthTimeout = time.Second
	pid := f.pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Fatalf("adopt of a hung child: %v, %v", ok, err)
	}
	awaitGone(t, pid)
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if f.ask("/fence") == "" {
		t.Error("the hung launch is not fenced")
	}
}

func TestAdopt_NeverSignalsAStranger(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("sleep", "600")
	stranger.Env = []string{control.EnvLaunchToken + "=secret"}
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a child of ours would be
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	start := startOf(t, stranger.Process.Pid)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for name, rec := range map[string]map[string]any{
		"other start time": {"start_time": start + 1, "boot_id": strings.TrimSpace(string(boot)), "token": "secret"},
		"other boot":       {"start_time": start, "boot_id": "another", "token": "secret"},
		"other token":      {"start_time": start, "boot_id": strings.TrimSpace(string(boot)), "token": "secre"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, "ok")
			rec["formation_id"], rec["launch_id"] = "sample", "abc"
			rec["pid"], rec["socket"] = stranger.Process.Pid, filepath.Join(f.spec.RunDir, "plugin1")
			f.writeRecord(rec)
			m := f.manager()
			if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
				t.Fatalf("adopt: %v, %v", ok, err)
			}
			if err := m.Start(t.Context(), f.spec, nil); err != nil {
				t.Fatal(err)
			}
			if got := f.ask("/fence"); got != "abc" {
				t.Errorf("fence list %q, want the recorded launch", got)
			}
			if !alive(stranger.Process.Pid) {
				t.Fatal("a stranger's process was killed")
			}
		})
	}
}

// A record may be forged, or name a number that another process has got: nothing
// is said to a process that does not listen on the recorded socket itself, and
// nothing is signalled that has not proven to be ours, not even as a leftover of
// its group.
func TestAdopt_ARecordOfAnotherProcessLeadsToNoWordAndNoSignal(t *testing.T) {
	t.Parallel()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]bool{"its own socket": false, "the socket of another": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, "ok")
			if err := os.MkdirAll(f.spec.RunDir, 0o700); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(f.spec.RunDir, "plugin1")
			decoy := exec.Command(os.Args[0], socket)
			decoy.Env = append(os.Environ(), modeEnv+"=decoy")
			decoy.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := decoy.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := decoy.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = syscall.Kill(-decoy.Process.Pid, syscall.SIGKILL)
				_, _ = decoy.Process.Wait()
				out.Close()
			})
			var pid, member int
			if _, err := fmt.Fscan(out, &pid, &member); err != nil {
				t.Fatal(err)
			}
			recorded := pid
			if other { // what listens is not what the record names
				recorded = member
			}
			if err := control.EnsureTLS(f.spec.RunDir); err != nil {
				t.Fatal(err)
			}
			f.writeRecord(map[string]any{
				"formation_id": "sample", "launch_id": "abc", "token": "secret", "pid": recorded, "start_time": startOf(t, recorded),
				"boot_id": strings.TrimSpace(string(boot)), "socket": socket,
			})
			if ok, err := f.manager().Adopt(t.Context(), f.spec); ok || err != nil {
				t.Fatalf("adopt: %v, %v", ok, err)
			}
			awaitGone(t, pid) // it ends by itself when it was connected to
			if !alive(member) {
				t.Error("another process of its group was killed")
			}
		})
	}
}

func (f *fixture) writeRecord(rec map[string]any) {
	f.t.Helper()
	if err := os.MkdirAll(f.spec.RunDir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.spec.RunDir, "launch-abc.json"), text, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func startOf(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	start, err := strconv.ParseUint(strings.Fields(rest)[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

func TestStart_StolenPortIsASpawnErrorThatNamesTheHolder(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	if err := f.spec.Socket.Shutdown(); err != nil {
		t.Fatal(err)
	}
	thief, err := net.Listen("tcp", f.spec.Socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	err = f.manager().Start(t.Context(), f.spec, nil)
	want := fmt.Sprintf("port %d is in use by process %d", f.spec.Socket.Port(), os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("start: %v, want %q", err, want)
	}
}

// cutUpdate runs a supervisor that dies in the middle of an update and returns a
// fixture with both children's launches: of the old version and of the new one.
func cutUpdate(t *testing.T, moment string) (f *fixture, old, next record) {
	t.Helper()
	f = inherit(t, moment)
	for _, r := range f.readRecords() {
		if filepath.Base(r.Dir) == "v1" {
			old = r
		} else {
			next = r
		}
	}
	if old.PID == 0 || next.PID == 0 || !alive(old.PID) || !alive(next.PID) {
		t.Fatalf("records %+v, want two living children", f.readRecords())
	}
	return f, old, next
}

func TestAdopt_AfterACutUpdateTakesTheCurrentVersionAndRetiresTheOther(t *testing.T) {
	t.Parallel()
	for moment, current := range map[string]string{"update": "v1", "updated": "v2"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			f, keep, lose := cutUpdate(t, moment)
			if current == "v2" {
				keep, lose = lose, keep
			}
			load := newLoad(f.spec.Socket.Addr().String(), 4)
			s := f.open() // on the new one: the old one is paused
			f.spec = f.version(current, "ok")
			m := f.manager()
			if ok, err := m.Adopt(t.Context(), f.spec); err != nil || !ok {
				t.Fatalf("adopt: %v, %v", ok, err)
			}
			if got := m.Snapshot(); got.PID != keep.PID || !got.Adopted {
				t.Errorf("snapshot %+v, want process %d adopted", got, keep.PID)
			}
			if got := f.pid(); got != keep.PID {
				t.Errorf("answered by %d, want %d", got, keep.PID)
			}
			s.finish()
			awaitGone(t, lose.PID)
			eventually(t, "the other launch is fenced", func() bool { return f.ask("/dead") == lose.LaunchID })
			load.answered(t, 20)
			load.stop()
			if r, b := load.refused.Load(), load.broken.Load(); r > 0 || b > 0 {
				t.Errorf("%d connections refused, %d requests cut", r, b)
			}
			eventually(t, "its record is removed", func() bool { return len(f.records()) == 1 })
		})
	}
}

func TestAdopt_ChildOfAnotherVersionIsRetiredAndNeverCut(t *testing.T) {
	t.Parallel()
	f, old, next := cutUpdate(t, "update")
	kill(t, next.PID)
	m := f.manager()
	f.spec = f.version("v2", "ok")
	if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Fatalf("adopt of another version: %v, %v", ok, err)
	}
	if !f.spec.Socket.Bound() {
		t.Error("the listening socket was not taken from the other version")
	}
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, old.PID)
	eventually(t, "the other launch is fenced", func() bool { return f.ask("/dead") == old.LaunchID })
	if got := f.ask("/fence"); got != next.LaunchID {
		t.Errorf("the new child fenced %q at its start, want %q", got, next.LaunchID)
	}
	f.assertOnlyRecord(m.Snapshot().LaunchID)
}

func TestAdopt_DrainingChildFinishesAndIsNotTakenOver(t *testing.T) {
	t.Parallel()
	f := inherit(t, "restart")
	draining := f.readRecords()[0]
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.spec); ok || err != nil {
		t.Fatalf("adopt of a draining child: %v, %v", ok, err)
	}
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	f.pid()
	awaitGone(t, draining.PID)
	eventually(t, "the drained launch is fenced, at the start or beside it", func() bool {
		return f.ask("/fence") == draining.LaunchID || f.ask("/dead") == draining.LaunchID
	})
}

func TestAdopt_StopWaitsForTheRetiring(t *testing.T) {
	t.Parallel()
	f, old, next := cutUpdate(t, "update")
	f.open()
	m := f.manager()
	if ok, err := m.Adopt(t.Context(), f.version("v1", "ok")); err != nil || !ok {
		t.Fatalf("adopt: %v, %v", ok, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- m.Stop(t.Context()) }()
	awaitGone(t, old.PID)
	select {
	case err := <-stopped:
		t.Fatalf("stop returned %v while a stream was open", err)
	default:
	}
	f.unmark("hold")
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if alive(next.PID) {
		t.Error("the retired child lives after the stop")
	}
}

// TestAdopt_SocketComesBackWithoutTheRightToTrace runs both supervisors and the
// child, which nobody may trace, as a user without privileges.
func TestAdopt_SocketComesBackWithoutTheRightToTrace(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.unprivileged()
	f.inherit("close", "SUPERVISOR_MODE=undumpable")
	if alive := f.pid(); alive == 0 {
		t.Fatal("no child")
	}
	out := f.runToEnd("SUPERVISOR_END=adopt")
	if !strings.Contains(out, "adopted=true bound=true") {
		t.Errorf("the second supervisor: %s", out)
	}
	kill(t, f.pid())
}

func TestReexec_KeepsChildrenSocketsAndExitStatus(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	out := f.runToEnd("SUPERVISOR_END=exec")
	// It became itself again, adopted its child, and killed it with SIGKILL; see
	// secondLife.
	if want := "same process=true bound=true adopted=true exit=signal: killed replaced=true refused=0\n"; !strings.HasSuffix(plainKill(out), want) {
		t.Errorf("got %s, want %s", out, want)
	}
	if !f.refused() {
		t.Error("the port accepts after the end")
	}
}

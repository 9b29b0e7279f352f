package process_test

import (
	"context"
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

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// earlierSupervisor is a supervisor that launches the sample in SUPERVISOR_HOME
// on SUPERVISOR_PORT and then ends without touching it.
func earlierSupervisor() int {
	home, port := os.Getenv("SUPERVISOR_HOME"), os.Getenv("SUPERVISOR_PORT")
	number, err := strconv.Atoi(port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pool, err := ports.New(ports.Config{Host: "127.0.0.1", First: number, Last: number})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	spec := specIn(home, "ok")
	if spec.Socket, err = pool.Lease("sample"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m := process.NewManager(process.ManagerConfig{Log: zerolog.New(os.Stderr)})
	if err := m.Start(context.Background(), spec, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Getenv("SUPERVISOR_END") == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	m.Close()
	return 0
}

// inherit runs an earlier supervisor to its end and returns a fixture whose port
// is reserved, not bound.
func inherit(t *testing.T, end string) *fixture {
	t.Helper()
	f := setup(t, "ok")
	port := f.spec.Socket.Port()
	if err := f.spec.Socket.Shutdown(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), modeEnv+"=supervisor", "SUPERVISOR_HOME="+f.home,
		"SUPERVISOR_PORT="+strconv.Itoa(port), "SUPERVISOR_END="+end)
	out, err := cmd.CombinedOutput()
	if err != nil && end != "kill" {
		t.Fatalf("earlier supervisor: %v\n%s", err, out)
	}
	return f
}

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
	if !taken && os.Geteuid() == 0 { // the system may forbid it to others
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

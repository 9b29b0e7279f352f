package process_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

func TestStart_ServesOnTheInheritedSocketUntilStop(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	s := m.Snapshot()
	if got := f.pid(); got != s.PID || s.PID == os.Getpid() {
		t.Errorf("answered by process %d, want the child %d", got, s.PID)
	}
	if s.Status != process.StatusRunning || s.Healthy == nil || !*s.Healthy || s.Agents != 2 || len(s.Warnings) != 1 {
		t.Errorf("snapshot %+v, want a healthy running child with 2 agents and a warning", s)
	}
	c, ok := m.Control()
	if !ok {
		t.Fatal("no control of a running child")
	}
	if st, err := c.Status(t.Context()); err != nil || st.Agents != 2 {
		t.Errorf("status %+v, %v", st, err)
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !f.refused() {
		t.Error("the port still accepts after the stop")
	}
	s = m.Snapshot()
	if s.Status != process.StatusStopped || s.PID != 0 || s.LastExit == nil || s.LastExit.Code != 0 || s.LastExit.Reason != "stopped" {
		t.Errorf("snapshot after stop: %+v, exit %+v", s, s.LastExit)
	}
	if left := f.records(); len(left) != 0 {
		t.Errorf("records left: %v", left)
	}
	if _, err := c.Health(t.Context()); !errors.Is(err, control.ErrNoAnswer) {
		t.Errorf("health of a stopped child: %v, want ErrNoAnswer", err)
	}
}

func TestStart_AfterStopBindsTheSamePortAgain(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	first := f.pid()
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if second := f.pid(); second == first {
		t.Errorf("the same process %d answers after a restart", second)
	}
}

func TestStart_WhileRunningIsAConflict(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	m := f.start()
	err := m.Start(t.Context(), f.spec, nil)
	if fault.KindOf(err) != fault.Conflict || fault.NameOf(err) != "AlreadyRunning" {
		t.Errorf("second start: %v, want AlreadyRunning", err)
	}
}

func TestStart_ChildGetsExactlyTheGivenEnvironment(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Env = append(f.spec.Env, "ALLOWED=yes")
	f.spec.OrphanTimeout = time.Hour
	f.start()
	var names []string
	for entry := range strings.Lines(f.ask("/env")) {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"ALLOWED", "FORMATION_ID", "GORACE", "PATH", "PLUGIN_MAX_PORT", "PLUGIN_MIN_PORT", "PLUGIN_PROTOCOL_VERSIONS",
		"PLUGIN_UNIX_SOCKET_DIR", modeEnv, "SVC_CONTROL_COOKIE", "SVC_LAUNCH_ID", "SVC_LAUNCH_TOKEN",
		"SVC_ORPHAN_TIMEOUT", "SVC_RUN_DIR",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestStart_SocketStaysNonBlockingAndCloseOnExec(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.start()
	if got := f.ask("/flags"); got != "nonblock=true cloexec=true <nil> <nil>" {
		t.Errorf("descriptor 3 in the child: %s", got)
	}
	if got := f.ask("/stdin"); got != "/dev/null <nil>" {
		t.Errorf("stdin of the child: %s", got)
	}
}

func TestStart_FilesAreClosedToOthersAndLogsAreAppended(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	if err := os.MkdirAll(filepath.Dir(f.spec.OutLog), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.spec.OutLog, []byte("earlier\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	m := f.start()
	f.ask("/log")
	for path, want := range map[string]os.FileMode{
		f.spec.RunDir: 0o700 | os.ModeDir, f.records()[0]: 0o600, filepath.Join(f.spec.RunDir, "control.pem"): 0o600,
		f.spec.OutLog: 0o640, f.spec.ErrLog: 0o640,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if text := read(t, f.spec.OutLog); text != "earlier\na record\n" {
		t.Errorf("out log %q", text)
	}
	if text := read(t, f.spec.ErrLog); text != "an error\n" {
		t.Errorf("error log %q", text)
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.spec.FreshLogs = true
	if err := m.Start(t.Context(), f.spec, nil); err != nil {
		t.Fatal(err)
	}
	if text := read(t, f.spec.OutLog); text != "" {
		t.Errorf("out log of a fresh start %q, want it emptied", text)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStart_ChildsOwnFaultComesThrough(t *testing.T) {
	t.Parallel()
	f := setup(t, "secrets")
	m := f.manager()
	err := m.Start(t.Context(), f.spec, nil)
	got := fault.From(err)
	if got.Kind != fault.Invalid || got.Name != "SecretsError" || got.Message != "secret API_KEY is missing" {
		t.Errorf("start: %+v, want the child's SecretsError", got)
	}
	if diff := cmp.Diff(map[string]any{"missing": []any{"API_KEY"}}, got.Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	f.assertCrashed(m)
}

// assertCrashed checks that no child is there and the port answers all the same.
func (f *fixture) assertCrashed(m *process.Manager) {
	f.t.Helper()
	s := m.Snapshot()
	if s.Status != process.StatusCrashed || s.PID != 0 || s.LastExit == nil {
		f.t.Errorf("snapshot %+v, want crashed without a process", s)
	}
	resp, err := http.Get("http://" + f.spec.Socket.Addr().String() + "/v1/chat")
	if err != nil {
		f.t.Fatalf("the port of a crashed formation: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !resp.Close {
		f.t.Errorf("answer %s, Retry-After %q, close %v; want 503 with Retry-After and close",
			resp.Status, resp.Header.Get("Retry-After"), resp.Close)
	}
}

func TestStart_CrashCarriesTheLastTwentyLines(t *testing.T) {
	t.Parallel()
	f := setup(t, "panic-at-start")
	f.spec.NotReady = fault.Invalid
	m := f.manager()
	err := m.Start(t.Context(), f.spec, nil)
	got := fault.From(err)
	if got.Kind != fault.Invalid || got.Name != "HealthCheckFailed" || !strings.HasPrefix(got.Message, "Formation crashed during startup: ") {
		t.Errorf("start: %+v", got)
	}
	lines := m.Snapshot().LastExit.Stderr
	if len(lines) != 20 || !strings.Contains(strings.Join(lines, "\n"), "panic: runtime error") {
		t.Errorf("stderr of the exit: %d lines\n%s", len(lines), strings.Join(lines, "\n"))
	}
	if e := m.Snapshot().LastExit; e.Code != 2 || e.Reason != "exit code 2" {
		t.Errorf("exit %+v, want code 2", e)
	}
	f.assertCrashed(m)
}

func TestStart_DeathDuringLoadIsACrash(t *testing.T) {
	t.Parallel()
	f := setup(t, "exit-in-load")
	m := f.manager()
	err := m.Start(t.Context(), f.spec, nil)
	want := "Formation crashed during startup: the disk is on fire"
	if got := fault.From(err); got.Kind != fault.Failed || got.Message != want {
		t.Errorf("start: %+v, want %q", got, want)
	}
	if e := m.Snapshot().LastExit; e.Code != 7 {
		t.Errorf("exit %+v, want code 7", e)
	}
	f.assertCrashed(m)
}

func TestStart_MissingBinaryIsASpawnError(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Binary = filepath.Join(f.home, "no-such-program")
	m := f.manager()
	err := m.Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Name != "SpawnError" || !strings.Contains(got.Message, "no-such-program") {
		t.Errorf("start: %+v, want a SpawnError that names the program", got)
	}
	f.assertCrashed(m)
}

func TestStart_ProgramThatIsNoChildFailsAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.Binary = "/bin/true"
	m := f.manager()
	err := m.Start(t.Context(), f.spec, nil)
	if got := fault.From(err); got.Name != "HealthCheckFailed" || !strings.Contains(got.Message, "exit code 0") {
		t.Errorf("start: %+v, want HealthCheckFailed that tells the exit code", got)
	}
}

func TestStart_ProgressMovesTheDeadline(t *testing.T) {
	t.Parallel()
	f := setup(t, "slow") // 10 s in steps of 200 ms
	f.spec.ReadyTimeout = 8 * time.Second
	m := f.manager()
	var news []string
	err := m.Start(t.Context(), f.spec, func(stage, message string, _, _ int) { news = append(news, stage+": "+message) })
	if err != nil {
		t.Fatalf("start: %v; news %v", err, news)
	}
	for _, want := range []string{"spawning: starting the formation's process", "health_check: step 0", "health_check: step 49"} {
		if !slices.Contains(news, want) {
			t.Errorf("no news %q in %q", want, news)
		}
	}
}

func TestStart_WithoutProgressEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	f := setup(t, "stuck")
	f.spec.ReadyTimeout = 5 * time.Second // of which the process itself needs some
	m := f.manager()
	var most int
	err := m.Start(t.Context(), f.spec, func(_, _ string, attempt, attempts int) {
		most = max(most, attempt)
		if attempt > attempts {
			t.Errorf("attempt %d of %d", attempt, attempts)
		}
	})
	if got := fault.From(err); got.Name != "HealthCheckFailed" || !strings.Contains(got.Message, "did not become ready within 5s") {
		t.Errorf("start: %+v", got)
	}
	if most == 0 {
		t.Error("no attempt was counted while waiting")
	}
	f.assertCrashed(m)
}

func TestStart_EndOfContextGivesUpAndLeavesNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, "stuck")
	m := f.manager()
	ctx, cancel := context.WithCancel(t.Context())
	err := m.Start(ctx, f.spec, func(stage, _ string, _, _ int) {
		if stage == "health_check" {
			cancel()
		}
	})
	if fault.KindOf(err) != fault.Canceled {
		t.Errorf("start: %v, want canceled", err)
	}
	if s := m.Snapshot(); s.Status != process.StatusStopped || s.PID != 0 {
		t.Errorf("snapshot %+v, want stopped", s)
	}
}

func TestStart_RunDirTooLongIsRefusedBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	f := setup(t, "ok")
	f.spec.RunDir = "/tmp/" + strings.Repeat("x", process.MaxRunDir)
	err := f.manager().Start(t.Context(), f.spec, nil)
	if err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("start: %v, want a message about the length", err)
	}
}

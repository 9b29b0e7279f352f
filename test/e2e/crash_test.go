package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
	"github.com/agentformation/service/test/testprogram"
)

// fewRestarts keeps the time to "crashed" short; the policy is the same.
const fewRestarts = "  restart:\n    max: 4\n    base_ms: 20\n"

// programs is a directory with a supervisor whose formation-runtime can be
// exchanged: the supervisor takes the one beside itself.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"supervisor", "formation-runtime"} {
		if err := os.Link(suite.Program(name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// breakRuntime puts a program in place that says something, counts its starts
// in a file and ends.
func breakRuntime(t *testing.T, dir string) (starts func() int) {
	t.Helper()
	counter := filepath.Join(dir, "starts")
	script := fmt.Sprintf("#!/bin/sh\necho x >>%s\necho 'reading the disk' >&2\necho 'the disk is on fire' >&2\nexit 3\n", counter)
	replace(t, dir, func(path string) error { return testprogram.Write(path, []byte(script)) })
	return func() int {
		text, _ := os.ReadFile(counter)
		return strings.Count(string(text), "x")
	}
}

// replace exchanges the runtime by one rename, as the old file may be running.
func replace(t *testing.T, dir string, write func(path string) error) {
	t.Helper()
	fresh := filepath.Join(dir, "fresh")
	if err := write(fresh); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(dir, "formation-runtime")); err != nil {
		t.Fatal(err)
	}
}

func writeScript(path, body string) error {
	return testprogram.Write(path, []byte("#!/bin/sh\n"+body+"\n"))
}

func linkProgram(from, to string) error { return os.Link(from, to) }

func TestCrashLoop_EndsAsCrashedAndTheSupervisorAnswers(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	// The broken program counts its starts in a directory that it may not write in
	// otherwise.
	s := suite.Start(t, harness.Options{Bin: bin, Formations: fewRestarts + "  writable_paths: [" + bin + "]\n"})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("loops", suite.Pair(t, "loops", model.URL()))
	starts := breakRuntime(t, bin)
	f.Kill()

	crashed := f.UntilStatus("crashed").Want(t, http.StatusOK, "data.pid", "0", "data.last_exit.exit_code", "3",
		"data.last_exit.stderr.0", "reading the disk", "data.last_exit.stderr.1", "the disk is on fire", "data.healthy", "null")
	// The kill and three failed starts are the four failures of the policy.
	if n := starts(); n != 3 || crashed.Int("data.restart_count") != 3 {
		t.Errorf("%d starts and %d restarts before it was given up, want 3", n, crashed.Int("data.restart_count"))
	}
	status := s.CLI("status", "loops")
	if !strings.Contains(status.Stdout, "crashed") || !strings.Contains(status.Stdout, "the disk is on fire") {
		t.Errorf("status says:\n%s", status.Stdout)
	}
	before, since := harness.CPU(t, s.PID()), time.Now()
	checkUnavailable(t, s, f)
	harness.Throughout(t, 500*time.Millisecond, "no further start", func() bool { return starts() == 3 })
	if used, rest := harness.CPU(t, s.PID())-before, time.Since(since); used > rest*2/5 {
		t.Errorf("the supervisor used %s of processor time in %s of rest", used, rest)
	}

	start := s.RPC(http.MethodPost, "/rpc/formations/loops/start").Want(t, http.StatusInternalServerError, "error", "HealthCheckFailed")
	if !strings.Contains(start.Text("message"), "the disk is on fire") {
		t.Errorf("start says %q", start.Text("message"))
	}
	f.UntilStatus("crashed")
	if n := starts(); n != 4 {
		t.Errorf("a start that fails was tried %d times", n-3)
	}
	replace(t, bin, func(path string) error { return os.Link(suite.Program("formation-runtime"), path) })
	s.RPC(http.MethodPost, "/rpc/formations/loops/start").Want(t, http.StatusOK, "data.status", "running")
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"}).Want(t, http.StatusOK, "data.agent", "poet")
}

// checkUnavailable expects 503 at once on the formation's port, in the
// formation's envelope, and through the supervisor, in the supervisor's.
func checkUnavailable(t *testing.T, s *harness.Supervisor, f *harness.Formation) {
	t.Helper()
	for _, path := range []string{"/v1/health", "/v1/chat", "/anything"} {
		own := s.HTTP.Must(harness.Request{Method: http.MethodPost, URL: f.Own() + path, Body: `{}`}).
			Want(t, http.StatusServiceUnavailable, "object", "error", "type", "error.processing", "success", "false",
				"error.code", "SERVICE_UNAVAILABLE", "data", "{}")
		if own.Header.Get("Retry-After") == "" {
			t.Errorf("%s: 503 without Retry-After", path)
		}
	}
	through := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: f.Through() + "/v1/health"}).
		Want(t, http.StatusServiceUnavailable, "success", "false", "error", "FormationUnavailable", "code", "503")
	if through.Header.Get("Retry-After") == "" {
		t.Error("503 of the supervisor without Retry-After")
	}
}

func TestCrashLoop_ADamagedStoreIsToldAndRepairable(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: fewRestarts})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("damaged", suite.Pair(t, "damaged", model.URL()))
	f.Say(harness.Chat{"message": "remember this", "agent_id": "poet", "session_id": "s"})
	s.RPC(http.MethodPost, "/rpc/formations/damaged/stop").Want(t, http.StatusOK)
	store := filepath.Join(s.Home, "formations", "damaged", "state", "memory.db")
	good, err := os.ReadFile(store)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store, []byte(strings.Repeat("this is no database\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.RPC(http.MethodPost, "/rpc/formations/damaged/start").Want(t, http.StatusInternalServerError, "success", "false", "code", "500")
	crashed := f.UntilStatus("crashed")
	if reason := crashed.Text("data.last_exit.reason"); !strings.Contains(reason, "database") {
		t.Errorf("the reason %q does not tell what is wrong", reason)
	}
	checkUnavailable(t, s, f)
	if err := os.WriteFile(store, good, 0o600); err != nil {
		t.Fatal(err)
	}
	s.RPC(http.MethodPost, "/rpc/formations/damaged/start").Want(t, http.StatusOK, "data.status", "running")
	s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.messages.0.content", "remember this")
}

func TestCrash_ADeployThatDiesAtStartLeavesNothing(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	s := suite.Start(t, harness.Options{Bin: bin})
	breakRuntime(t, bin)
	bundle := suite.Read(t, "test/formations/valid/solo").Bundle(t, "solo")
	reply := s.HTTP.Must(s.DeployRequest("solo", bundle)).Want(t, http.StatusBadRequest, "error", "HealthCheckFailed", "code", "400")
	if says := reply.Text("message"); !strings.HasPrefix(says, "Formation crashed during startup: ") || !strings.Contains(says, "the disk is on fire") {
		t.Errorf("the message is %q", says)
	}
	r := s.DeployRequest("solo", bundle)
	r.Header["Accept"] = "text/event-stream"
	frames := s.HTTP.MustStream(r).MustRest(t)
	last := frames[len(frames)-1]
	if last.Event != "error" || last.Text("error") != "HealthCheckFailed" || last.Text("rollback_status") != "success" {
		t.Errorf("the stream ends with %+v", last)
	}
	s.RPC(http.MethodGet, "/rpc/formations").Want(t, http.StatusOK, "data.total", "0")
	if left := s.Files("formations", "tmp"); !onlyWorkrooms(left) {
		t.Errorf("left behind: %v", left)
	}
	if _, err := s.HTTP.Do(harness.Context(t), harness.Request{Method: http.MethodGet, URL: fmt.Sprintf("http://127.0.0.1:%d/", s.FirstPort)}); err == nil {
		t.Error("the port is still open")
	}
}

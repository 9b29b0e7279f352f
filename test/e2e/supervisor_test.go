package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestSupervisor_KilledItsChildrenServeOnAndAreAdopted(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "^held", Reply: fakellm.Reply{Text: "one two three four", Gate: "later", GateAfter: 3}},
		fakellm.Rule{Reply: fakellm.Reply{Text: "calm", DelayMS: 5}},
	)
	f := s.Deploy("serves", suite.Pair(t, "serves", model.URL()))
	stopped := s.Deploy("rests", suite.Pair(t, "rests", model.URL()))
	s.RPC(http.MethodPost, "/rpc/formations/rests/stop").Want(t, http.StatusOK)
	pid := f.PID()
	stream := s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "held", "agent_id": "poet"}))
	text := harness.Deltas(stream.UntilType(t, "content"))
	l := begin(t, 8, f, f.Own())
	l.more(t, 20)

	s.Kill()
	l.after.Store(true) // from here on: without a supervisor
	l.more(t, 40)
	s.Serve()
	f.Get().Want(t, http.StatusOK, "data.status", "running", "data.pid", strconv.Itoa(pid), "data.restart_count", "0", "data.healthy", "true")
	stopped.Get().Want(t, http.StatusOK, "data.status", "stopped", "data.pid", "0", "data.port", strconv.Itoa(stopped.Port))
	l.more(t, 40)
	l.end()
	l.check(t, "while the supervisor was away", false)
	model.Release("later")
	if text += harness.Deltas(stream.MustRest(t)); text != "one two three four" {
		t.Errorf("the stream that was open all the time says %q", text)
	}
	// The adopted child is supervised like any other: its port did not close.
	f.Kill()
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", "calm")
	f.UntilStatus("running").Want(t, http.StatusOK, "data.restart_count", "1", "data.last_exit.reason", "exit status unknown (adopted)")
}

func TestSupervisor_KilledTogetherWithItsChildrenBringsThemBack(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("back", suite.Pair(t, "back", model.URL()))
	f.Say(harness.Chat{"message": "remember this", "agent_id": "poet", "session_id": "s"})
	pid := f.PID()
	s.Kill()
	harness.KillProcess(t, pid)
	s.Serve()
	f.UntilStatus("running").Want(t, http.StatusOK, "data.port", strconv.Itoa(f.Port))
	s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.messages.0.content", "remember this")
}

func TestSupervisor_ALivingProcessOfThatNumberIsNeverSignalled(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	f := s.Deploy("solo", suite.Read(t, "test/formations/valid/solo"))
	pid := f.PID()
	s.Kill()
	harness.KillProcess(t, pid)
	// The number of the dead child comes to belong to somebody else: here, us.
	records, err := filepath.Glob(filepath.Join(s.Home, "run", "*", "launch-*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("run records: %v, %v", records, err)
	}
	text, err := os.ReadFile(records[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"pid":`+strconv.Itoa(pid), `"pid":`+strconv.Itoa(os.Getpid()), 1)
	if changed == string(text) {
		t.Fatalf("no process number in %s", text)
	}
	if err := os.WriteFile(records[0], []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Serve() // a signal would end this test
	if now := f.UntilStatus("running").Int("data.pid"); now == os.Getpid() || !harness.Alive(now) {
		t.Errorf("the formation runs as process %d", now)
	}
}

func TestSupervisor_SIGTERMStopsAllAndTheNextStartBringsThemBack(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "in time", Gate: "stop"}})
	one := s.Deploy("one", suite.Pair(t, "one", model.URL()))
	two := s.Deploy("two", suite.Pair(t, "two", model.URL()))
	pids := []int{one.PID(), two.PID()}
	answered := make(chan harness.Reply, 1)
	go func() {
		reply, err := s.HTTP.Do(t.Context(), one.Request(harness.Chat{"message": "hello", "agent_id": "poet"}))
		if err != nil {
			t.Errorf("the open turn was cut: %v", err)
		}
		answered <- reply
	}()
	if err := model.WaitCount(harness.Context(t), 1); err != nil {
		t.Fatal(err)
	}
	s.Signal(syscall.SIGTERM)
	// The port closes at once, while the open turn may end.
	harness.Until(t, "the port is closed", func() bool {
		_, err := harness.Fresh(t).Do(t.Context(), harness.Request{Method: http.MethodGet, URL: one.Own() + "/v1/health"})
		return err != nil
	})
	model.Release("stop")
	(<-answered).Want(t, http.StatusOK, "data.response", "in time")
	if code := s.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, pid := range pids {
		if harness.Alive(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
	s.Serve()
	for _, f := range []*harness.Formation{one, two} {
		f.UntilStatus("running").Want(t, http.StatusOK, "data.port", strconv.Itoa(f.Port))
	}
}

func TestSupervisor_ASecondOneOnTheSameHomeIsRefused(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	f := s.Deploy("solo", suite.Read(t, "test/formations/valid/solo"))
	second := s.Second()
	if code := second.Exit(t); code == 0 || code == 130 {
		t.Errorf("exit code %d", code)
	}
	if out := second.Out.String(); !strings.Contains(out, "process "+strconv.Itoa(s.PID())) || !strings.Contains(out, s.Home) {
		t.Errorf("the refusal names neither process %d nor the home:\n%s", s.PID(), out)
	}
	f.Get().Want(t, http.StatusOK, "data.status", "running")
	if r := s.CLI("list"); r.Code != 0 { // its address is still found
		t.Errorf("list after the refusal: %d %s", r.Code, r.Stderr)
	}
}

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestAlone_ServesWithoutASupervisorAndFinishesItsWork(t *testing.T) {
	t.Parallel()
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "slow", Reply: fakellm.Reply{Text: "in time", Gate: "stop"}},
		fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "at once"}},
	)
	dir, state := suite.Pair(t, "alone", model.URL()).Write(t), t.TempDir()
	a := suite.Alone(t, dir, state)
	client := harness.NewClient(t)
	chat := func(message string) harness.Request {
		return harness.Request{
			Method: http.MethodPost, URL: a.URL + "/v1/chat", Body: harness.Chat{"message": message, "agent_id": "poet", "session_id": "s"},
			Header: map[string]string{"X-SVC-Client-Key": a.ClientKey, "X-SVC-User-Id": "ann"},
		}
	}
	client.Must(chat("hello")).Want(t, http.StatusOK, "data.response", "at once")

	second := suite.Runtime(t, "serve", "--dir", dir, "--state-dir", state, "--port", "0")
	if code := second.Exit(t); code == 0 || !strings.Contains(second.Out.String(), state) {
		t.Errorf("a second process on the same state ended with %d: %s", code, second.Out)
	}
	answered := make(chan harness.Reply, 1)
	go func() {
		reply, err := client.Do(t.Context(), chat("slow"))
		if err != nil {
			t.Errorf("the open turn was cut: %v", err)
		}
		answered <- reply
	}()
	if err := model.WaitCount(harness.Context(t), 2); err != nil {
		t.Fatal(err)
	}
	a.Signal(syscall.SIGTERM)
	model.Release("stop")
	(<-answered).Want(t, http.StatusOK, "data.response", "in time")
	if code := a.Exit(t); code != 0 {
		t.Errorf("exit code %d: %s", code, a.Out)
	}
	// The next process has the same keys and knows the session.
	key := a.ClientKey
	a = suite.Alone(t, dir, state)
	if a.ClientKey != key {
		t.Error("the keys changed")
	}
	r := chat("")
	r.Method, r.URL, r.Body = http.MethodGet, a.URL+"/v1/sessions/s/messages", nil
	client.Must(r).Want(t, http.StatusOK, "data.count", "4", "data.messages.0.content", "hello")
	a.Signal(syscall.SIGINT)
	if code := a.Exit(t); code != 0 {
		t.Errorf("exit code %d after SIGINT: %s", code, a.Out)
	}
}

func TestAlone_FaultsAreToldAndTheProcessEnds(t *testing.T) {
	t.Parallel()
	files := suite.Read(t, "test/formations/broken/many")
	p := suite.Runtime(t, "serve", "--dir", files.Write(t), "--state-dir", t.TempDir(), "--port", "0")
	if code := p.Exit(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, text := range []string{"formation.afs:5:9: server.port", "agents/writer.afs:6:18: llm.settings.temperature"} {
		if !strings.Contains(p.Out.String(), text) {
			t.Errorf("%q is not in\n%s", text, p.Out)
		}
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	missing := suite.Runtime(t, "serve", "--dir", nowhere, "--port", "0")
	if code := missing.Exit(t); code != 1 || !strings.Contains(missing.Out.String(), nowhere) {
		t.Errorf("a directory that is not there: exit code %d, %s", code, missing.Out)
	}
	if _, err := os.Stat(nowhere); err == nil {
		t.Error("it made the directory")
	}
}

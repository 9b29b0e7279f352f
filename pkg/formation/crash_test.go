package formation_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/fakellm"
)

// counterEnv makes the test program a tool server on its standard streams. The
// variable is the directory where it counts.
const counterEnv = "FORMATION_TEST_COUNTER"

// runAsCounter serves the tools count, count_readonly and count_idempotent.
// Each adds a line to the file of its name; while there is a file "hold" it
// then answers nothing any more.
func runAsCounter(dir string, in io.Reader, out io.Writer) {
	tool := func(name, annotations string) string {
		return fmt.Sprintf(`{"name":%q,"description":"Counts.","inputSchema":{"type":"object"},"annotations":{%s}}`, name, annotations)
	}
	tools := strings.Join([]string{tool("count", ""), tool("count_readonly", `"readOnlyHint":true`), tool("count_idempotent", `"idempotentHint":true`)}, ",")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Name    string `json:"name"`
				Version string `json:"protocolVersion"`
			} `json:"params"`
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.ID == nil {
			continue
		}
		result := "{}"
		switch m.Method {
		case "initialize":
			result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"counter","version":"1"}}`, m.Params.Version)
		case "tools/list":
			result = `{"tools":[` + tools + `]}`
		case "tools/call":
			f, err := os.OpenFile(filepath.Join(dir, m.Params.Name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = f.WriteString("called\n")
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "hold")); err == nil {
				continue
			}
			result = `{"content":[{"type":"text","text":"counted"}]}`
		}
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
	}
}

const counterFile = `schema: "1.0.0"
id: counter
description: Counts.
type: command
command: %s
env:
  %s: %s
`

// withCounter gives the formation's agent the tool server above; it returns
// where that counts.
func (w *world) withCounter() (dir string) {
	w.t.Helper()
	dir = w.t.TempDir()
	exe, err := os.Executable()
	w.check(err)
	w.check(os.Mkdir(filepath.Join(w.dir, "mcp"), 0o700))
	w.check(os.WriteFile(filepath.Join(w.dir, "mcp", "counter.afs"), fmt.Appendf(nil, counterFile, exe, counterEnv, dir), 0o600))
	manifest := fmt.Sprintf(worldManifest, w.fake.URL()) + "    mcp_servers: [counter]\nmcp:\n  servers: [counter]\n"
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), []byte(manifest), 0o600))
	return dir
}

// counted is how often a tool was called.
func counted(t *testing.T, dir, tool string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, tool))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// killed has a child killed once cut says so, and waits for the end of its
// request in the next child.
func (w *world) killed(tool string, cut func(), between func()) envelope {
	w.t.Helper()
	w.fake.Add(
		fakellm.Rule{User: "count", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "call_1", Name: "counter__" + tool, Args: "{}"}}}},
		fakellm.Rule{User: "count", Last: "tool", Times: 1, Reply: fakellm.Reply{Gate: "never"}},
	)
	first := w.launch("first")
	first.step("serve")
	go func() { _, _ = w.do(w.client(false), ask{body: `{"message":"count","request_id":"req_1"}`}) }()
	cut()
	first.signal(syscall.SIGKILL)
	first.exit()
	between()
	next := w.launch("next")
	next.step("fence first")
	next.step("serve")
	var e envelope
	until(w.t, "the end of the request", func() bool {
		e = w.must(w.client(false), ask{method: http.MethodGet, path: "/v1/requests/req_1"}).envelope(w.t)
		return e.Data.Status == "completed" || e.Data.Status == "failed"
	})
	next.step("stop")
	return e
}

func TestCrash_AFinishedToolCallIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := w.withCounter()
	called := func() bool { return counted(t, dir, "count") == 1 }
	e := w.killed("count", func() { until(t, "the call", called); w.check(w.fake.WaitActive(t.Context(), 1)) }, func() {})
	if e.Data.Status != "completed" || e.Data.Response != "The tool answered: counted" {
		t.Errorf("the request ended as %+v", e.Data)
	}
	if n := counted(t, dir, "count"); n != 1 {
		t.Errorf("the tool was called %d times", n)
	}
}

func TestCrash_ACutToolCallIsRepeatedOnlyWhenItMayBe(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string]struct {
		calls  int
		status string
	}{
		"count":            {1, "failed"},
		"count_readonly":   {2, "completed"},
		"count_idempotent": {2, "completed"},
	} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			dir := w.withCounter()
			hold := filepath.Join(dir, "hold")
			w.check(os.WriteFile(hold, nil, 0o600))
			w.fake.Release("never")
			e := w.killed(tool,
				func() { until(t, "the call", func() bool { return counted(t, dir, tool) == 1 }) },
				func() { w.check(os.Remove(hold)) })
			if e.Data.Status != want.status || (want.status == "failed") != strings.Contains(e.Data.ErrorCode, "UNKNOWN_OUTCOME") {
				t.Errorf("the request ended as %+v", e.Data)
			}
			if n := counted(t, dir, tool); n != want.calls {
				t.Errorf("the tool was called %d times", n)
			}
		})
	}
}

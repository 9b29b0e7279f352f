// Package conformance runs the official conformance suite of the tool protocol
// against /mcp of a formation that the real program serves; command client below
// runs it against our client. README.md lists every scenario.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
	"github.com/agentformation/service/test/npm"
)

var programs *harness.Suite

func TestMain(m *testing.M) {
	var err error
	if programs, err = harness.Open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := programs.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// serve starts a formation with a procedure and a skill.
func serve(t *testing.T) *harness.Alone {
	t.Helper()
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "This is a simple text.", Chunks: 4, ChunkDelayMS: 20}})
	files := programs.Pair(t, "conformance", model.URL())
	files["sops/refund.md"] = "---\ntype: sop\nname: Refund\ndescription: How money goes back\n---\n# Refund\n\n1. Look it up.\n"
	files["sops/123.md"] = "---\ntype: sop\nname: Procedure 123\ndescription: One with a number\n---\n# Procedure 123\n\n1. Count.\n"
	files["skills/charts/SKILL.md"] = "---\nname: charts\ndescription: Draws charts\n---\nDraw.\n"
	return programs.Alone(t, files.Write(t), t.TempDir())
}

// suite runs the suite and returns what it printed.
func suite(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm.Node22(t), append([]string{npm.Module(t, "@modelcontextprotocol/conformance/dist/index.js"), "server"}, args...)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestServer_PassesWhatNeedsNoKeyAsItIs runs those scenarios against the
// formation itself that ask for nothing behind its key.
func TestServer_PassesWhatNeedsNoKeyAsItIs(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for _, scenario := range []string{"server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection"} {
		out, err := suite(t, "--url", f.URL+"/mcp", "--scenario", scenario)
		if err != nil {
			t.Errorf("%s: %v\n%s", scenario, err, out)
		}
	}
	if out, err := suite(t, "--url", f.URL+"/mcp", "--scenario", "resources-list"); err == nil || !strings.Contains(out, "UNAUTHORIZED") {
		t.Errorf("without a key: %v\n%s", err, out)
	}
}

// TestServer_PassesTheSuite runs all scenarios. Those that do not apply are in
// expected-failures.yaml: the suite fails when one of them passes, as well.
func TestServer_PassesTheSuite(t *testing.T) {
	t.Parallel()
	baseline, err := filepath.Abs("expected-failures.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, err := suite(t, "--url", translated(t, serve(t))+"/mcp", "--suite", "all", "--expected-failures", baseline)
	_, summary, _ := strings.Cut(out, "=== SUMMARY ===")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(summary)
}

// The suite calls tools and reads resources by names of its own. These are those
// of ours that do what it asks for.
var (
	tools = map[string]struct {
		name string
		args map[string]any
	}{
		"test_simple_text":        {"chat", map[string]any{"message": "hello", "agent_id": "poet", "mode": "sync"}},
		"test_tool_with_progress": {"chat", map[string]any{"message": "a poem", "agent_id": "poet", "mode": "sync"}},
		"test_error_handling":     {"get_request_status", map[string]any{"id": "nothing"}},
	}
	resources = map[string]string{
		"test://static-text":       "formation://sops/refund",
		"test://template/123/data": "formation://sops/123",
	}
)

// translated is the formation as the suite wants to see it: requests get its key
// and our names of what they ask for; answers stay as they are.
func translated(t *testing.T, f *harness.Alone) (address string) {
	t.Helper()
	to, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("X-SVC-Client-Key", f.ClientKey)
			body, err := io.ReadAll(r.In.Body)
			if err != nil {
				t.Error(err)
			}
			body = translate(body)
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		},
	})
	t.Cleanup(func() {
		front.Close()
		transport.CloseIdleConnections()
	})
	return front.URL
}

func translate(body []byte) []byte {
	var message map[string]any
	if json.Unmarshal(body, &message) != nil {
		return body
	}
	params, _ := message["params"].(map[string]any)
	name, _ := params["name"].(string)
	uri, _ := params["uri"].(string)
	if ours, ok := tools[name]; ok && message["method"] == "tools/call" {
		params["name"], params["arguments"] = ours.name, ours.args
	}
	if ours, ok := resources[uri]; ok && message["method"] == "resources/read" {
		params["uri"] = ours
	}
	out, err := json.Marshal(message)
	if err != nil {
		return body
	}
	return out
}

// TestREADME_ListsEveryScenario compares the table with what the suite has.
func TestREADME_ListsEveryScenario(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			listed = append(listed, strings.Trim(strings.TrimSpace(cells[1]), "`"))
		}
	}
	cmd := exec.CommandContext(t.Context(), npm.Node22(t), npm.Module(t, "@modelcontextprotocol/conformance/dist/index.js"), "list")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var known []string
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			name, _, _ = strings.Cut(name, " ")
			known = append(known, name)
		}
	}
	slices.Sort(known)
	slices.Sort(listed)
	if len(known) < 50 || !slices.Equal(known, listed) {
		t.Errorf("the suite has %d scenarios, the table %d:\n%v\n%v", len(known), len(listed), known, listed)
	}
}

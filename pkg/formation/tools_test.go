package formation_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/test/fakellm"
	"github.com/agentformation/service/test/npm"
)

const toolsManifest = `schema: "1.0.0"
id: world
description: Agents with tools.
server:
  api_keys:
    admin_key: fma_world
    client_key: fmc_world
llm:
  endpoints:
    openai: %s
  models:
    - text: openai/fake
async: {mode: sync}
mcp:
  servers: [everything]
agents:
  - id: writer
    name: Writer
    description: Writes.
  - id: reader
    name: Reader
    description: Reads.
    mcp_servers:
      - {id: everything, tools: {allow: "get-*", deny: [get-env]}}
      - {id: files, description: Its own files, type: command, command: node, args: [%q, .], timeout_seconds: 120}
  - id: thinker
    name: Thinker
    description: Thinks.
    mcp_servers: []
`

const everythingFile = `schema: "1.0.0"
id: everything
description: Everything there is.
type: command
command: node
args: [%q]
timeout_seconds: 120
env: {SECRET_WORD: "${{ env.WORD }}"}
`

// newToolWorld is a world whose agents have real tool servers.
func newToolWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.fake = fakellm.Start(t, fakellm.Options{})
	const dist = "/dist/index.js"
	for name, text := range map[string]string{
		"formation.afs":      fmt.Sprintf(toolsManifest, w.fake.URL(), npm.Module(t, "@modelcontextprotocol/server-filesystem"+dist)),
		"mcp/everything.afs": fmt.Sprintf(everythingFile, npm.Module(t, "@modelcontextprotocol/server-everything"+dist)),
	} {
		file := filepath.Join(w.dir, name)
		w.check(os.MkdirAll(filepath.Dir(file), 0o700))
		w.check(os.WriteFile(file, []byte(text), 0o600))
	}
	return w
}

// toolConfig is that of a child whose tool servers see few variables.
func (w *world) toolConfig(launch string) formation.Config {
	cfg := w.config(launch)
	cfg.Env = func(name string) (string, bool) {
		value, ok := map[string]string{"PATH": os.Getenv("PATH"), "WORD": "quince", "OTHER": "no"}[name]
		return value, ok
	}
	return cfg
}

// serveTools starts a child and returns when it knows the tools of its servers,
// which may take longer to start than a load waits.
func (w *world) serveTools(launch string) *formation.Formation {
	w.t.Helper()
	f := w.load(w.toolConfig(launch))
	w.check(f.Serve(w.t.Context()))
	list := ask{method: "GET", path: "/v1/mcp/tools", header: map[string]string{"X-SVC-Admin-Key": "fma_world"}}
	until(w.t, "the tools are known", func() bool {
		body := string(w.must(w.client(false), list).body)
		return strings.Contains(body, `"echo"`) && strings.Contains(body, `"list_directory"`)
	})
	return f
}

// toolProcesses returns the processes of tool servers of a launch.
func toolProcesses(launch string) (out []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue
		}
		for entry := range strings.SplitSeq(string(env), "\x00") {
			if mark, ok := strings.CutPrefix(entry, mcpclient.EnvLaunch+"="); ok && strings.HasSuffix(mark, "-"+launch) {
				out = append(out, dir)
			}
		}
	}
	return out
}

func TestTools_AgentsCallRealServersAndNoneIsLeft(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	launch := "tools" + filepath.Base(filepath.Dir(w.dir))
	f := w.serveTools(launch)
	client := w.client(true)
	for _, test := range []struct{ agent, tool, args, want string }{
		{"writer", "everything__echo", `{"message":"hello"}`, "Echo: hello"},
		{"writer", "everything__get-env", `{}`, "quince"},
		{"reader", "everything__get-env", `{}`, `There is no tool named`},
		{"reader", "files__list_directory", `{"path":"."}`, "[FILE] formation.afs"},
		{"writer", "files__list_directory", `{"path":"."}`, `There is no tool named`},
		{"thinker", "everything__echo", `{"message":"hello"}`, `There is no tool named`},
	} {
		w.fake.Add(fakellm.Rule{User: test.agent + " " + test.tool, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: test.tool, Args: test.args}}}})
		r := w.must(client, ask{body: fmt.Sprintf(`{"message":%q,"agent_id":%q}`, test.agent+" "+test.tool, test.agent)})
		calls := w.fake.Calls()
		if last := calls[len(calls)-1].Body; r.status != 200 || !strings.Contains(last, test.want) {
			t.Errorf("%s calls %s: %s; the model heard %.2000s", test.agent, test.tool, r.body, last)
		}
	}
	var tools struct {
		Data struct {
			Servers []struct{ ID, Status string }
		}
	}
	r := w.must(client, ask{method: "GET", path: "/v1/mcp/servers", header: map[string]string{"X-SVC-Admin-Key": "fma_world"}})
	if err := json.Unmarshal(r.body, &tools); err != nil || len(tools.Data.Servers) != 2 || tools.Data.Servers[0].Status != "connected" {
		t.Errorf("%s", r.body)
	}
	w.check(f.Stop(context.WithoutCancel(t.Context())))
	if left := toolProcesses(launch); len(left) > 0 {
		t.Errorf("tool servers outlive the formation: %v", left)
	}
}

func TestTools_AreStoredSoThatARestartStartsNoServer(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	load := func(launch string) (loaded control.Loaded, processes int) {
		f := formation.New(w.toolConfig(launch))
		loaded, err := f.Load(t.Context(), control.LoadRequest{Dir: w.dir, StateDir: w.state}, func(string) {})
		w.check(err)
		processes = len(toolProcesses(launch))
		w.check(f.Stop(context.WithoutCancel(t.Context())))
		return loaded, processes
	}
	suffix := filepath.Base(filepath.Dir(w.dir))
	tries := 0
	until(t, "the tools are known", func() bool { // a start waits only so long for them
		tries++
		loaded, _ := load(fmt.Sprint("first", tries, suffix))
		return !strings.Contains(strings.Join(loaded.Warnings, " "), "tool server")
	})
	if loaded, n := load("second" + suffix); n != 0 || strings.Contains(strings.Join(loaded.Warnings, " "), "tool server") {
		t.Errorf("%d processes, %v", n, loaded.Warnings)
	}
}

func TestTools_ServerThatCantBeReachedOnlyWarns(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	file := filepath.Join(w.dir, "mcp", "everything.afs")
	w.check(os.WriteFile(file, []byte("schema: \"1.0.0\"\nid: everything\ndescription: Gone.\ntype: command\ncommand: no-such-program\nretry_attempts: 0\n"), 0o600))
	f := formation.New(w.toolConfig("gone" + filepath.Base(filepath.Dir(w.dir))))
	loaded, err := f.Load(t.Context(), control.LoadRequest{Dir: w.dir, StateDir: w.state}, func(string) {})
	w.check(err)
	t.Cleanup(func() { w.check(f.Stop(context.WithoutCancel(t.Context()))) })
	if !strings.Contains(strings.Join(loaded.Warnings, "\n"), `tool server everything: its tools are not known yet: start no-such-program`) {
		t.Errorf("%q", loaded.Warnings)
	}
}

// lastHeard is what the model was told in its last call.
func (w *world) lastHeard() string {
	calls := w.fake.Calls()
	return calls[len(calls)-1].Body
}

func TestTools_ServerKilledDuringACallIsAToolErrorAndTheTurnGoesOn(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	launch := "kill" + filepath.Base(filepath.Dir(w.dir))
	w.serveTools(launch)
	client := w.client(true)
	w.fake.Add(
		fakellm.Rule{User: "wait", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "everything__trigger-long-running-operation", Args: `{"duration":200,"steps":2000}`}}}},
		fakellm.Rule{User: "echo", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "everything__echo", Args: `{"message":"again"}`}}}},
	)
	stream := w.open(client, ask{body: `{"message":"wait","agent_id":"writer","stream":true}`, stream: true})
	stream.skipTo(t, "1%") // the server is in the middle of the call
	for _, dir := range toolProcesses(launch) {
		pid, err := strconv.Atoi(filepath.Base(dir))
		w.check(err)
		w.check(syscall.Kill(pid, syscall.SIGKILL))
	}
	stream.skipTo(t, `"type":"completed"`)
	if heard := w.lastHeard(); !strings.Contains(heard, `ended during the call of trigger-long-running-operation: its process was killed by SIGKILL`) {
		t.Errorf("the model heard %.3000s", heard)
	}
	if r := w.must(client, ask{body: `{"message":"echo","agent_id":"writer"}`}); !strings.Contains(w.lastHeard(), "Echo: again") {
		t.Errorf("%s; the model heard %.3000s", r.body, w.lastHeard())
	}
}

func TestTools_TwoHundredTurnsLeaveOneProcess(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	launch := "many" + filepath.Base(filepath.Dir(w.dir))
	w.serveTools(launch)
	w.fake.Add(fakellm.Rule{User: "echo", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "everything__echo", Args: `{"message":"again"}`}}}})
	const turns, atOnce = 200, 4
	var group errgroup.Group
	group.SetLimit(atOnce)
	client := w.client(true)
	for range turns {
		group.Go(func() error {
			r, err := w.do(client, ask{body: `{"message":"echo","agent_id":"writer"}`})
			if err == nil && r.status != 200 {
				err = fmt.Errorf("%s", r.body)
			}
			return err
		})
	}
	w.check(group.Wait())
	until(t, "one process is left", func() bool { return len(toolProcesses(launch)) == 1 })
}

package chaos

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// toolServer has two tools that knock at a door of the test: "look" says that it
// only reads, "pay" says nothing.
const toolServer = `
import { createInterface } from "node:readline";
const tools = [
  { name: "pay", inputSchema: { type: "object" } },
  { name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } },
];
const answers = {
  initialize: () => ({ protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "door", version: "1" } }),
  "tools/list": () => ({ tools }),
  "tools/call": async () => ({ content: [{ type: "text", text: await (await fetch(process.env.DOOR)).text() }] }),
};
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  const result = await answers[method]?.(params);
  if (id !== undefined && result) console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
}
`

// door counts how often a tool took effect. The first who knocks waits while it
// is locked.
type door struct {
	knocks atomic.Int64
	locked atomic.Bool
	open   chan struct{}
}

// tooled puts a formation with a tool server in the place of the cell's.
func (w *world) tooled() *door {
	w.Helper()
	d := &door{open: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if d.knocks.Add(1) == 1 && d.locked.Load() {
			select {
			case <-d.open:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(rw, "the door is open")
	}))
	w.Cleanup(server.Close)
	files := suite.Pair(w, "tooled", w.model.URL()).With("mcp: {servers: [door]}\n")
	files["mcp/door.afs"] = fmt.Sprintf("schema: \"1.0.0\"\nid: door\ndescription: A door.\ntype: command\ncommand: node\n"+
		"args: [mcp/door.mjs]\nenv: {DOOR: %q}\n", server.URL)
	files["mcp/door.mjs"] = toolServer
	w.f = w.s.Deploy("tooled", files)
	return d
}

// useTool has the model call a tool, and then answer once "go" is released.
func (w *world) useTool(tool string) {
	w.model.Add(
		fakellm.Rule{Purpose: "agent", User: "^use", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "door__" + tool, Args: "{}"}}}},
		fakellm.Rule{Purpose: "agent", User: "^use", Times: 1, Reply: fakellm.Reply{Text: "done", Gate: "go"}},
		fakellm.Rule{Purpose: "agent", User: "^use", Reply: fakellm.Reply{Text: "done"}},
	)
	r := w.f.Request(harness.Chat{"message": "use the door", "agent_id": "poet", "use_async": true, "request_id": "used"})
	w.s.HTTP.Must(r).Want(w, http.StatusAccepted)
}

// toolFinished strikes between a finished call and the model call after it.
func toolFinished(w *world) {
	d := w.tooled()
	w.useTool("pay")
	w.asked("^use", 2)
	w.strike()
	w.model.Release("go")
	w.f.UntilEnded(harness.Context(w), "used").Want(w, http.StatusOK, "data.status", "completed", "data.response", "done")
	if n := d.knocks.Load(); n != 1 {
		w.Errorf("the tool was called %d times", n)
	}
}

// toolCut strikes in the middle of a call of a tool that may not be repeated.
func toolCut(w *world) {
	d := w.cutTool("pay")
	end := w.f.UntilEnded(harness.Context(w), "used")
	if w.dies {
		end.Want(w, http.StatusOK, "data.status", "failed", "data.error_code", "UNKNOWN_OUTCOME")
	} else {
		end.Want(w, http.StatusOK, "data.status", "completed", "data.response", "done")
	}
	if n := d.knocks.Load(); n != 1 {
		w.Errorf("the tool was called %d times", n)
	}
}

// toolCutRepeatable strikes in the middle of a call of a tool that only reads.
func toolCutRepeatable(w *world) {
	d := w.cutTool("look")
	w.f.UntilEnded(harness.Context(w), "used").Want(w, http.StatusOK, "data.status", "completed", "data.response", "done")
	want := int64(1)
	if w.dies {
		want = 2
	}
	if n := d.knocks.Load(); n != want {
		w.Errorf("the tool was called %d times, want %d", n, want)
	}
}

func (w *world) cutTool(tool string) *door {
	w.Helper()
	d := w.tooled()
	d.locked.Store(true)
	w.useTool(tool)
	harness.Until(w, "the tool is called", func() bool { return d.knocks.Load() == 1 })
	w.strike()
	close(d.open)
	w.model.Release("go")
	return d
}

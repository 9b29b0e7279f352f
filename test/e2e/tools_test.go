package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// toolServer is a small tool server. "leave" starts a process that belongs to no
// group of it and outlives it, "hang" one that shows that it was called.
const toolServer = `
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { spawn } from "node:child_process";
const tools = ["word", "leave", "hang"].map((name) => ({ name, inputSchema: { type: "object" } }));
const answers = {
  initialize: () => ({ protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "words", version: "1" } }),
  "tools/list": () => ({ tools }),
  "tools/call": ({ name }) => {
    let text = "";
    if (name === "word") text = readFileSync("mcp/words.txt", "utf8") + (process.env.SVC_LAUNCH_TOKEN ?? "no token");
    if (name === "leave") text = "left " + spawn("sleep", ["1000"], { detached: true, stdio: "ignore" }).pid;
    if (name === "hang") return void spawn("sleep", ["1000"], { stdio: "ignore" });
    return { content: [{ type: "text", text }] };
  },
};
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  const result = answers[method]?.(params);
  if (id !== undefined && result) console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
}
`

// withTools gives the agents of a formation the tool server.
func withTools(files harness.Files) harness.Files {
	files = files.With("mcp: {servers: [words]}\n")
	files["mcp/words.afs"] = "schema: \"1.0.0\"\nid: words\ndescription: Words.\ntype: command\ncommand: node\nargs: [mcp/words.mjs]\n"
	files["mcp/words.mjs"], files["mcp/words.txt"] = toolServer, "quince "
	return files
}

func toolCall(tool string) fakellm.Rule {
	return fakellm.Rule{User: tool, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "words__" + tool, Args: "{}"}}}}
}

// TestTools_OfASupervisedFormation: a tool server runs in the directory of the
// version, within the confinement of its formation. When the child is killed in
// the middle of a call, its tool server dies with it; what that had left behind is
// killed when the next child begins.
func TestTools_OfASupervisedFormation(t *testing.T) {
	t.Parallel()
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(toolCall("word"), toolCall("leave"), toolCall("hang"))
	s := suite.Start(t, harness.Options{})
	f := s.Deploy("tooled", withTools(suite.Pair(t, "tooled", model.URL())))
	f.Say(harness.Chat{"message": "word", "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", "The tool answered: quince no token")
	left := f.Say(harness.Chat{"message": "leave", "agent_id": "poet"})
	_, text, _ := strings.Cut(left.Text("data.response"), "left ")
	pid, err := strconv.Atoi(text)
	if err != nil || !harness.Alive(pid) {
		t.Fatalf("the tool server started nothing: %s", left.Body)
	}
	servers := toolProcesses(f.PID())
	if len(servers) != 1 {
		t.Fatalf("the child has the tool servers %v", servers)
	}
	client := harness.Fresh(t)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		_, _ = client.Do(t.Context(), f.Request(harness.Chat{"message": "hang", "agent_id": "poet", "request_id": "cut"}))
	}()
	harness.Until(t, "the tool is called", func() bool { return len(toolProcesses(servers[0])) == 2 })
	f.Kill()
	<-cut
	harness.Until(t, "the tool server is gone", func() bool { return !harness.Alive(servers[0]) })
	harness.Until(t, "what it left is gone", func() bool { return !harness.Alive(pid) })
	f.UntilStatus("running")
	f.Say(harness.Chat{"message": "word", "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", "The tool answered: quince no token")
	harness.Until(t, "the cut request has its end", func() bool {
		r := client.Must(f.Read("/v1/requests/cut"))
		return r.Text("data.status") == "failed" && strings.Contains(string(r.Body), "UNKNOWN_OUTCOME")
	})
}

// toolProcesses returns the children of a process.
func toolProcesses(pid int) (out []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(pid) && fields[0] != "Z" {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			out = append(out, n)
		}
	}
	return out
}

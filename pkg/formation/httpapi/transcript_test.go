package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// lookup is a tool that shows how far it is, and a page.
type lookup struct{}

func (lookup) Spec() chat.ToolSpec {
	return chat.ToolSpec{Name: "library__lookup", Description: "Looks books up.", Schema: json.RawMessage(`{"type":"object"}`), ReadOnly: true}
}

func (lookup) Call(_ context.Context, in chat.Invocation) (chat.ToolResult, error) {
	in.Progress(chat.ToolProgress{Message: "reading the catalogue", Done: 1, Total: 2})
	return chat.ToolResult{CallID: in.CallID, Content: "Moby Dick", Widgets: []chat.Widget{
		{Type: chat.WidgetMCPResource, Resource: "ui://library/book", Data: "<h1>Moby Dick</h1>", Server: "library", Tool: "lookup", MIMEType: "text/html"},
		{Type: chat.WidgetActionLink, Label: "Borrow it", URL: "https://example.com/moby", Hint: "opens the library"},
	}}, nil
}

// stages are what a stream may show, as the reference names it, as far as it can
// come to pass.
var stages = []string{
	"\n: keepalive\n", "\nid: 1\n",
	`"type":"progress"`, `"stage":"init"`, `"stage":"agent_processing"`, `"stage":"thinking"`, `"stage":"tool_call"`,
	`"tool_name":"library__lookup"`, `"stage":"response_preparation"`,
	`"type":"planning"`, `"type":"content"`, `"stage":"response_generation"`, `"type":"completed"`, `"status":"success"`,
	"\nevent: ui\n", "\nevent: error\n", "\nevent: done\n", `"type":"stream_open"`, `"type":"stream_completed"`,
}

// TestTranscript_HoldsEveryFrameOfTheReference has a real overlord with an agent
// and a tool answer, and writes down what a client is sent.
func TestTranscript_HoldsEveryFrameOfTheReference(t *testing.T) {
	t.Parallel()
	f := &manifest.Formation{
		ID: "library", LLM: manifest.LLM{Models: []manifest.Model{
			{Capability: manifest.CapabilityText, ID: "test/m"},
		}},
		Agents:      []manifest.Agent{{ID: "librarian", Name: "Librarian", Description: "Knows books."}},
		Overlord:    manifest.Overlord{Response: manifest.Response{Format: manifest.FormatMarkdown, StreamTokens: true, Progress: true, Widgets: true}},
		MCP:         manifest.MCP{MaxToolIterations: 10, MaxToolCalls: 50, MaxRepeatedErrors: 3},
		InputLimits: manifest.InputLimits{MaxMessageLength: 1000, MaxToolOutputSize: 1 << 20},
	}
	script := llmtest.NewScript(t,
		llmtest.Step{Purpose: "agent", Last: "Find the book", Deltas: []string{"Let me ", "look."}, Calls: []chat.ToolCall{{ID: "c1", Name: "library__lookup", Args: json.RawMessage(`{}`)}}},
		llmtest.Step{Purpose: "agent", Last: "Moby Dick", Deltas: []string{"It is ", "**Moby Dick**."}},
		llmtest.Step{Purpose: "agent", Last: "Break", Err: &llm.CallError{Reason: llm.Refused, Detail: "no\nmore words"}},
	)
	d := openDoor(t, doorOptions{formation: f, overlord: overlord.New(overlord.Config{
		Formation: f, Models: script.Router(), Now: func() time.Time { return now }, Log: zerolog.Nop(),
		Tools: func(context.Context, chat.Invocation) ([]agent.Tool, error) { return []agent.Tool{lookup{}}, nil },
	})})
	const file = "testdata/transcript/every_frame.txtar"
	golden(t, file, d)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, stage := range stages {
		if !bytes.Contains(text, []byte(stage)) {
			t.Errorf("%q does not occur in %s", stage, file)
		}
	}
}

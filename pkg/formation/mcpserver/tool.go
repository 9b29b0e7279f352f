package mcpserver

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/openapi"
)

// The kinds of arguments: where their values go in the request.
const (
	inPath   = "path"
	inQuery  = "query"
	inHeader = "header"
	inBody   = "body"
	inWait   = "wait" // nowhere: how a stream is read
)

type argument struct {
	in       string
	required bool
	schema   map[string]any
}

// tool is a route as a tool.
type tool struct {
	Route
	events bool // the answer is a stream of events
	args   map[string]argument
}

const eventStream = "text/event-stream"

func newTool(r Route, userHeader string) *tool {
	t := &tool{Route: r, args: make(map[string]argument)}
	t.events = len(r.Replies) > 0 && r.Replies[0].Type == eventStream
	if r.Body != nil {
		properties, _ := r.Body.Schema["properties"].(map[string]any)
		required, _ := r.Body.Schema["required"].([]string)
		for name, schema := range properties {
			of, _ := schema.(map[string]any)
			t.args[name] = argument{inBody, slices.Contains(required, name), of}
		}
	}
	for _, p := range r.Params {
		if p.Name == lastEventID && !t.events {
			continue // a call is no stream
		}
		schema := map[string]any{"type": "string"}
		if p.Value != nil {
			schema = openapi.Input(p.Value)
		}
		t.args[p.Name] = argument{p.In, p.Required && !strings.EqualFold(p.Name, userHeader), about(schema, p.About)}
	}
	for _, name := range openapi.PathParams(r.Path) {
		t.args[name] = argument{inPath, true, map[string]any{"type": "string"}}
	}
	if t.events {
		t.args[waitSeconds] = argument{inWait, false, waitSchema()}
		t.args[maxEvents] = argument{inWait, false, maxEventsSchema()}
	}
	if r.Turn {
		// A call has one answer.
		t.args["stream"] = argument{inBody, false, about(map[string]any{"type": "boolean"}, "ignored: the answer is always complete")}
	}
	return t
}

func about(schema map[string]any, text string) map[string]any {
	if text != "" {
		schema["description"] = text
	}
	return schema
}

// described is the tool for clients.
func (t *tool) described() *mcpsdk.Tool {
	properties, required := make(map[string]any, len(t.args)), []string{}
	for _, name := range slices.Sorted(maps.Keys(t.args)) {
		properties[name] = t.args[name].schema
		if t.args[name].required {
			required = append(required, name)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	destructive := t.Method == http.MethodDelete
	closed := false
	hints := &mcpsdk.ToolAnnotations{
		ReadOnlyHint: t.Method == http.MethodGet, DestructiveHint: &destructive,
		IdempotentHint: t.Method == http.MethodGet || t.Method == http.MethodPut || t.Method == http.MethodDelete,
	}
	if !t.Turn {
		hints.OpenWorldHint = &closed // agents may reach anywhere, the rest stays here
	} else {
		destructive = true // whatever the agents' tools do
	}
	text := t.Summary
	if t.events {
		text += " Waits for events, at most " + waitSeconds + ", and returns those that came."
	}
	return &mcpsdk.Tool{Name: t.Tool, Description: text, InputSchema: schema, Annotations: hints}
}

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// unreachedError is how a tool server that could not be reached fails.
type unreachedError struct{ error }

func (unreachedError) Begun() bool { return false }

func TestRun_ACutCallIsAnErrorForTheModelAndTheTurnGoesOn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec  chat.ToolSpec
		err   error
		calls int64
		want  string
	}{
		"unmarked":   {chat.ToolSpec{Name: "pay"}, errors.New("the server ended"), 1, "The call was cut and its outcome is unknown: the server ended. It may have taken effect."},
		"read-only":  {chat.ToolSpec{Name: "pay", ReadOnly: true}, errors.New("the server ended"), 2, "The call did not come to its end: the server ended."},
		"idempotent": {chat.ToolSpec{Name: "pay", Idempotent: true}, errors.New("the server ended"), 2, "The call did not come to its end: the server ended."},
		"not begun":  {chat.ToolSpec{Name: "pay"}, unreachedError{errors.New("no such program")}, 1, "The tool could not be called, nothing was done: no such program."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "pay", "{}")}}, llmtest.Step{Last: tc.want, Text: "told"})
			pay := &tool{spec: tc.spec, do: func(json.RawMessage) (chat.ToolResult, error) { return chat.ToolResult{}, tc.err }}
			answer, _, err := run(t, newAgent(script, with(pay)), &journal{})
			if err != nil || answer.Content != "told" || pay.calls.Load() != tc.calls {
				t.Fatalf("answer %q, error %v, %d calls", answer.Content, err, pay.calls.Load())
			}
		})
	}
}

func TestRun_TheRecordOfACutCallNamesItsTurn(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ctx, _ := telemetry.New(telemetry.Config{}).Trace(t.Context(), telemetry.TraceInfo{RequestID: "r1", UserID: "ann", SessionID: "s1"})
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "pay", "{}")}}, llmtest.Step{Text: "told"})
	pay := &tool{spec: chat.ToolSpec{Name: "pay"}, do: func(json.RawMessage) (chat.ToolResult, error) { return chat.ToolResult{}, errors.New("gone") }}
	a := newAgent(script, func(c *agent.Config) {
		with(pay)(c)
		c.Log = zerolog.New(&log)
	})
	if _, err := a.Run(ctx, agent.Task{Message: "go", Journal: &journal{}}, quiet); err != nil {
		t.Fatal(err)
	}
	want := `{"level":"warn","request":"r1","user":"ann","session":"s1","error":"gone","agent":"writer","tool":"pay","message":"tool call was cut"}` + "\n"
	if diff := cmp.Diff(want, log.String()); diff != "" {
		t.Error(diff)
	}
}

func TestRun_AToolThatPanicsIsACutCall(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "pay", "{}")}}, llmtest.Step{Last: "its outcome is unknown: the tool panicked: boom.", Text: "told"})
	pay := &tool{spec: chat.ToolSpec{Name: "pay"}, do: func(json.RawMessage) (chat.ToolResult, error) { panic("boom") }}
	if _, _, err := run(t, newAgent(script, with(pay)), &journal{}); err != nil {
		t.Fatal(err)
	}
}

func TestRun_CallsThatMayBeRepeatedNeedNoMark(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", ""), call("2", "set", "")}}, llmtest.Step{Text: "ok"})
	j := &journal{}
	tools := with(&tool{spec: chat.ToolSpec{Name: "look", ReadOnly: true}}, &tool{spec: chat.ToolSpec{Name: "set", Idempotent: true}})
	if _, _, err := run(t, newAgent(script, tools), j); err != nil {
		t.Fatal(err)
	}
	slices.Sort(j.saved)
	if diff := cmp.Diff([]string{"model/0", "tool/1/0", "tool/1/1"}, j.saved); diff != "" {
		t.Error(diff)
	}
}

// keen is a tool that takes the whole invocation.
type keen struct {
	spec chat.ToolSpec
	mu   sync.Mutex
	got  []chat.Invocation
	give chat.ToolResult
}

func (k *keen) Spec() chat.ToolSpec { return k.spec }

func (k *keen) Call(_ context.Context, in chat.Invocation) (chat.ToolResult, error) {
	for _, p := range []chat.ToolProgress{{Done: 1, Total: 4}, {Message: "dropped, it comes at once"}} {
		in.Progress(p)
	}
	in.Progress = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, in)
	return k.give, nil
}

func TestRun_AToolIsToldForWhomItIsCalledAndSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no pause of the machine comes between the reports
		script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("c1", "look", "")}}, llmtest.Step{Text: "ok"})
		look := &keen{spec: chat.ToolSpec{Name: "look"}}
		var who []chat.Invocation
		var shown []string
		a := newAgent(script, func(c *agent.Config) {
			c.Tools = func(_ context.Context, in chat.Invocation) ([]agent.Tool, error) {
				who = append(who, in)
				return []agent.Tool{look}, nil
			}
		})
		_, err := a.Run(t.Context(), agent.Task{Message: "go", Journal: &journal{}, User: "ann", Session: "s1", Request: "r1"}, func(e chat.Event) error {
			if e.Stage == chat.StageToolCall {
				shown = append(shown, e.ToolName+": "+e.Content)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := chat.Invocation{Agent: "writer", User: "ann", Session: "s1", Request: "r1"}
		if diff := cmp.Diff([]chat.Invocation{want}, who); diff != "" {
			t.Error(diff)
		}
		want.CallID, want.Step, want.Args = "c1", "tool/1/0", json.RawMessage("{}")
		if diff := cmp.Diff([]chat.Invocation{want}, look.got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"look: Calling look", "look: 25%"}, shown); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRun_WidgetsFilesAndStructureOfResultsAreKept(t *testing.T) {
	t.Parallel()
	picture := chat.Part{Kind: chat.Image, MediaType: "image/png", Data: []byte("p")}
	give := chat.ToolResult{
		Content: "see", Structured: json.RawMessage(`{"a":1}`), Parts: []chat.Part{picture},
		Widgets: []chat.Widget{{Type: chat.WidgetMCPResource, ID: "ui_1", Resource: "ui://a"}},
	}
	for name, tc := range map[string]struct {
		models []string
		last   string
		parts  int
	}{
		"a model that sees":    {[]string{manifest.CapabilityVision, "test/m"}, "[What the tools returned:]", 1},
		"a model that may not": {nil, "see\n[1 files came with it that can't be shown to you]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			look := &keen{spec: chat.ToolSpec{Name: "look"}, give: give}
			prepare := func(c *agent.Config) { withModels(tc.models...)(c); with(look)(c) }
			first := &journal{}
			ask := llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}}
			answer, _, err := run(t, newAgent(llmtest.NewScript(t, ask, llmtest.Step{Last: tc.last, Text: "ok"}), prepare), first)
			if err != nil {
				t.Fatal(err)
			}
			script := llmtest.NewScript(t, llmtest.Step{Last: tc.last, Text: "ok"})
			again, _, err := run(t, newAgent(script, prepare), first.after())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(answer, again); diff != "" || len(answer.Widgets) != 1 || answer.Widgets[0].ID != "ui_1" {
				t.Errorf("widgets %v; the next life (-first +next):\n%s", answer.Widgets, diff)
			}
			messages := script.Asked()[0].Messages
			if got := len(messages[len(messages)-1].Parts); got != tc.parts {
				t.Errorf("%d files shown to the model", got)
			}
			var kept chat.ToolResult
			if err := json.Unmarshal([]byte(first.kept["tool/1/0"]), &kept); err != nil || string(kept.Structured) != `{"a":1}` {
				t.Errorf("journal: %s, %v", first.kept["tool/1/0"], err)
			}
		})
	}
}

func TestRun_WhatExceedsTheOutputLimitIsLeftOut(t *testing.T) {
	t.Parallel()
	look := &keen{spec: chat.ToolSpec{Name: "look"}, give: chat.ToolResult{
		Content: "short", Structured: json.RawMessage(`{"a":"0123456789"}`), Parts: []chat.Part{{Kind: chat.Image, Data: make([]byte, 11)}},
	}}
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}},
		llmtest.Step{Last: "short\n[image of 11 bytes left out: the limit is 10]", Text: "ok"})
	j := &journal{}
	if _, _, err := run(t, newAgent(script, func(c *agent.Config) { c.Limits.ToolOutput = 10; with(look)(c) }), j); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(j.kept["tool/1/0"], "0123456789") {
		t.Errorf("journal: %s", j.kept["tool/1/0"])
	}
}

func TestRun_ArgumentsThatDoNotFitAreNeverSent(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","maximum":9}},"required":["city"],"additionalProperties":false}`)
	for name, tc := range map[string]struct {
		schema json.RawMessage
		args   string
		want   string // "" when the call is made
	}{
		"missing":               {schema, `{}`, "missing property 'city'"},
		"none":                  {schema, ``, "missing property 'city'"},
		"type":                  {schema, `{"city":1}`, "at '/city': got integer, want string"},
		"unknown":               {schema, `{"city":"a","town":"b"}`, `unexpected additional properties ["town"]`},
		"range":                 {schema, `{"city":"a","days":10}`, "at '/days': maximum: 10 is greater than 9"},
		"all that is wrong":     {schema, `{"days":"1","town":"b"}`, "- missing property 'city'\n- at '/days': got string, want integer\n- unexpected additional properties [\"town\"]"},
		"deeper":                {json.RawMessage(`{"properties":{"stops":{"items":{"properties":{"at":{"enum":["a","b"]}}}}}}`), `{"stops":[{"at":"a"},{"at":"c"}]}`, "at '/stops/items/at': enum: c does not equal any of: [a b]"},
		"one of several":        {json.RawMessage(`{"anyOf":[{"required":["a"]},{"required":["b"]}]}`), `{"c":1}`, "anyOf: did not validate against any of"},
		"a definition":          {json.RawMessage(`{"$ref":"#/definitions/x","definitions":{"x":{"required":["a"]}},"$schema":"http://json-schema.org/draft-04/schema#"}`), `{}`, `required: missing properties: ["a"]`},
		"fine":                  {schema, `{"city":"a","days":9}`, ""},
		"no object":             {nil, `[1]`, "The arguments are no JSON object."},
		"broken":                {nil, `{"a":`, "not valid JSON"},
		"a schema that is none": {json.RawMessage(`{"type":7}`), `{"city":1}`, ""},
		"an address":            {json.RawMessage(`{"$ref":"https://example.com/s.json"}`), `{"city":1}`, ""},
		"a file":                {json.RawMessage(`{"$ref":"file:///etc/passwd"}`), `{"city":1}`, ""},
		"placeholder":           {schema, `{"city":"{{USER.city}}"}`, "/city is the placeholder {{USER.city}}"},
		"a secret's reference":  {nil, `{"a":[{"key":" ${{ secrets.KEY }} "}]}`, "/a/0/key is the placeholder ${{ secrets.KEY }}"},
		"a template":            {schema, `{"city":"Dear {{name}}, hello"}`, ""},
		"two of them":           {schema, `{"city":"{{a}} {{b}}"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", tc.args)}}, llmtest.Step{Last: tc.want, Text: "ok"})
			look := &tool{spec: chat.ToolSpec{Name: "look", Schema: tc.schema}}
			j := &journal{}
			if _, _, err := run(t, newAgent(script, with(look)), j); err != nil {
				t.Fatal(err)
			}
			if made := look.calls.Load() == 1; made != (tc.want == "") {
				t.Errorf("made %v", made)
			}
			if tc.want != "" {
				if diff := cmp.Diff([]string{"model/0", "tool/1/0"}, j.saved); diff != "" || j.commits != 1 {
					t.Errorf("a refusal is journalled in %d commits: %s", j.commits, diff)
				}
			}
		})
	}
}

// The third of three calls, two at once, is marked when it begins.
func TestRun_CallsAreMarkedWhenTheyBegin(t *testing.T) {
	t.Parallel()
	j := &journal{}
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", ""), call("2", "look", ""), call("3", "look", "")}}, llmtest.Step{Text: "ok"})
	if _, _, err := run(t, newAgent(script, func(c *agent.Config) { c.Limits.ParallelToolCalls = 2; with(look)(c) }), j); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"model/0", "tool/1/0/started", "tool/1/1/started"}, j.saved[:3]); diff != "" || len(j.saved) != 7 || j.commits != 5 {
		t.Errorf("journal %v in %d commits", j.saved, j.commits)
	}
}

func TestRun_ACutCallOfAToolThatIsGoneIsNotForgotten(t *testing.T) {
	t.Parallel()
	j := &journal{earlier: map[string]string{
		"model/0": `{"calls":[{"id":"1","name":"pay","args":"{}"}]}`, "tool/1/0/started": "{}",
	}}
	if _, _, err := run(t, newAgent(llmtest.NewScript(t), nil), j); err == nil || !strings.Contains(err.Error(), "tool pay was cut") {
		t.Fatalf("error %v", err)
	}
}

func TestRun_ToolCallsAreSpansAndEvents(t *testing.T) {
	t.Parallel()
	hub := telemetry.New(telemetry.Config{})
	seen := hub.Subscribe(0, nil)
	defer seen.Close()
	ctx, trace := hub.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r1"})
	ask := llmtest.Step{Calls: []chat.ToolCall{call("1", "files__read", `{"path":"a"}`), call("2", "look", "{}")}}
	tools := with(&tool{spec: chat.ToolSpec{Name: "files__read", ReadOnly: true}}, &tool{spec: chat.ToolSpec{Name: "look"}, do: failing})
	first := &journal{}
	if _, err := newAgent(llmtest.NewScript(t, ask, llmtest.Step{Text: "ok"}), tools).Run(ctx, agent.Task{Message: "go", Journal: first}, quiet); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`files__read: server files, tool read, agent writer, read_only true, is_error false, arguments {"path":"a"}, result result of {"path":"a"}`,
		`look: server <nil>, tool look, agent writer, read_only false, is_error true, arguments {}, result no luck`,
	}
	if diff := cmp.Diff(want, toolSpans(trace)); diff != "" {
		t.Error(diff)
	}
	var names []string
	for len(seen.Events()) > 0 {
		e := <-seen.Events()
		if names = append(names, e.Name); e.AgentID != "writer" || e.RequestID != "r1" {
			t.Errorf("event %+v", e)
		}
	}
	if diff := cmp.Diff([]string{"agent.started", "agent.tool_called", "agent.tool_called", "agent.completed"}, names); diff != "" {
		t.Error(diff)
	}
	ctx, next := hub.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r1"})
	if _, err := newAgent(llmtest.NewScript(t, llmtest.Step{Text: "ok"}), tools).Run(ctx, agent.Task{Message: "go", Journal: first.after()}, quiet); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, toolSpans(next)); diff != "" {
		t.Errorf("the next life: %s", diff)
	}
	for _, s := range next.Spans() {
		if s.Kind == telemetry.KindTool && s.Value("replayed") != true {
			t.Errorf("span %s is not said to be replayed", s.Name)
		}
	}
}

func TestRun_RefusedCallsAreSpansThatSayWhy(t *testing.T) {
	t.Parallel()
	hub := telemetry.New(telemetry.Config{})
	seen := hub.Subscribe(0, func(e *telemetry.Event) bool { return strings.HasPrefix(e.Name, "agent.tool") })
	defer seen.Close()
	ctx, trace := hub.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r1"})
	ask := llmtest.Step{Calls: []chat.ToolCall{call("1", "files__erase", `{"path":"a"}`), call("2", "look", `{"at":true}`)}}
	look := &tool{spec: chat.ToolSpec{Name: "look", Schema: json.RawMessage(`{"properties":{"at":{"type":"string"}}}`)}}
	first := &journal{}
	if _, err := newAgent(llmtest.NewScript(t, ask, llmtest.Step{Text: "ok"}), with(look)).Run(ctx, agent.Task{Message: "go", Journal: first}, quiet); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`files__erase: server <nil>, tool <nil>, agent writer, read_only false, is_error true, arguments {"path":"a"}, result There is no tool named "files__erase".`,
		`look: server <nil>, tool look, agent writer, read_only false, is_error true, arguments {"at":true}, result ` +
			"Not called, the arguments do not fit the tool's schema:\n- at '/at': got boolean, want string",
	}
	check := func(trace *telemetry.Trace) {
		t.Helper()
		if diff := cmp.Diff(want, toolSpans(trace)); diff != "" {
			t.Error(diff)
		}
		for _, s := range trace.Spans() {
			if s.Kind == telemetry.KindTool && s.Value("refused") != true {
				t.Errorf("span %s is not said to be refused", s.Name)
			}
		}
		if n := trace.Totals().ToolCalls; n != 0 {
			t.Errorf("%d tool calls, although none was made", n)
		}
	}
	check(trace)
	for _, text := range []string{`A call of files__erase by agent writer was refused: There is no tool named "files__erase".`, "A call of look by agent writer was refused: Not called"} {
		if e := <-seen.Events(); e.Name != "agent.tool_refused" || !strings.HasPrefix(e.Message, text) {
			t.Errorf("event %+v, want %q", e, text)
		}
	}
	ctx, next := hub.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r1"})
	if _, err := newAgent(llmtest.NewScript(t, llmtest.Step{Text: "ok"}), with(look)).Run(ctx, agent.Task{Message: "go", Journal: first.after()}, quiet); err != nil {
		t.Fatal(err)
	}
	check(next)
}

func quiet(chat.Event) error { return nil }

// toolSpans are the spans of tools, by name.
func toolSpans(trace *telemetry.Trace) []string {
	var out []string
	for _, s := range trace.Spans() {
		if s.Kind == telemetry.KindTool {
			out = append(out, fmt.Sprintf("%s: server %v, tool %v, agent %v, read_only %v, is_error %v, arguments %s, result %v", s.Name, s.Value("server"),
				s.Value("tool"), s.Value("agent_id"), s.Value("read_only"), s.Value("is_error"), s.Value("arguments"), s.Value("result")))
		}
	}
	slices.Sort(out)
	return out
}

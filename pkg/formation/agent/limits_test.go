package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

// Whichever limit is reached, the model is told, asked once more with its tools
// described and forbidden, and its answer is the answer.
func TestRun_ALimitClosesTheToolsAndTheModelAnswersWithWhatItHas(t *testing.T) {
	t.Parallel()
	ask := llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}}
	two := llmtest.Step{Calls: []chat.ToolCall{call("1", "look", `{"n":1}`), call("2", "look", `{"n":2}`)}}
	slow := func(json.RawMessage) (chat.ToolResult, error) {
		<-time.After(2 * time.Minute)
		return chat.ToolResult{Content: "late"}, nil
	}
	for name, tc := range map[string]struct {
		limits agent.Limits
		steps  []llmtest.Step
		do     func(json.RawMessage) (chat.ToolResult, error)
		calls  int64
		said   string
	}{
		"iterations":      {agent.Limits{ToolIterations: 2}, []llmtest.Step{ask, ask}, nil, 2, "Tools were asked for 2 times"},
		"calls":           {agent.Limits{ToolCalls: 1}, []llmtest.Step{ask}, nil, 1, "1 tool calls were made"},
		"calls of a step": {agent.Limits{ToolCalls: 1}, []llmtest.Step{two}, nil, 1, "Not called: 1 tool calls is the most in one turn."},
		"repeated errors": {agent.Limits{RepeatedErrors: 2}, []llmtest.Step{ask, ask}, failing, 2, "Tool look failed 2 times in a row with the same error: no luck."},
		"time":            {agent.Limits{ToolsTimeout: time.Minute, ToolTimeout: time.Hour}, []llmtest.Step{ask}, slow, 1, "The tools have used their time of 1m0s."},
	} {
		bubble(t, name, func(t *testing.T) {
			script := llmtest.NewScript(t, append(tc.steps, llmtest.Step{Last: tc.said, Text: "this is all"})...)
			look := &tool{spec: chat.ToolSpec{Name: "look"}, do: tc.do}
			answer, _, err := run(t, newAgent(script, func(c *agent.Config) { c.Limits = tc.limits; with(look)(c) }), &journal{})
			if err != nil || answer.Content != "this is all" || look.calls.Load() != tc.calls {
				t.Fatalf("answer %q, error %v, %d calls", answer.Content, err, look.calls.Load())
			}
			asked := script.Asked()
			last := asked[len(asked)-1]
			if !last.NoCalls || len(last.Tools) != 1 || !strings.Contains(last.Messages[len(last.Messages)-1].Content, "No more tools can be called now.") {
				t.Errorf("the last ask: forbidden %v, tools %v, message %q", last.NoCalls, last.Tools, last.Messages[len(last.Messages)-1].Content)
			}
			if asked[0].NoCalls {
				t.Error("the first ask forbids tools")
			}
			<-time.After(time.Hour) // the tool that was too slow has come to its end
		})
	}
}

func TestRun_AnErrorThatChangesIsNoRepeatedOne(t *testing.T) {
	t.Parallel()
	ask := llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}}
	n := 0
	look := &tool{spec: chat.ToolSpec{Name: "look"}, do: func(json.RawMessage) (chat.ToolResult, error) {
		n++
		return chat.ToolResult{IsError: n != 2, Content: []string{"a", "a", "fine", "a", "a"}[n]}, nil
	}}
	script := llmtest.NewScript(t, ask, ask, ask, llmtest.Step{Text: "ok"})
	if _, _, err := run(t, newAgent(script, func(c *agent.Config) { c.Limits = agent.Limits{RepeatedErrors: 2}; with(look)(c) }), &journal{}); err != nil || look.calls.Load() != 3 {
		t.Fatalf("error %v, %d calls", err, look.calls.Load())
	}
}

func TestRun_WhoAsksForForbiddenToolsHasNoAnswer(t *testing.T) {
	t.Parallel()
	again := llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}}
	for handling, want := range map[string]string{
		"":              "agent writer found no answer. Tools were asked for 1 times, which is the most in one turn.",
		"explicit":      "agent writer found no answer. Tools were asked for 1 times, which is the most in one turn.",
		"technical":     "agent writer found no answer. Tools were asked for 1 times, which is the most in one turn.",
		"graceful":      "I could not finish this because something that I need is not working. Please try again in a moment.",
		"user-friendly": "I could not finish this because something that I need is not working. Please try again in a moment.",
	} {
		a := newAgent(llmtest.NewScript(t, again, again), func(c *agent.Config) {
			c.Limits, c.Agent.SystemBehavior.ErrorHandling = agent.Limits{ToolIterations: 1}, handling
			with(&tool{spec: chat.ToolSpec{Name: "look"}})(c)
		})
		_, _, err := run(t, a, &journal{})
		if fault.From(err).Message != want {
			t.Errorf("%q: %v", handling, err)
		}
		if handling == "graceful" && !strings.Contains(errors.Unwrap(err).Error(), "found no answer") {
			t.Error("the log has no cause")
		}
	}
}

func TestLimitsOf_AreThoseOfTheManifest(t *testing.T) {
	t.Parallel()
	f := &manifest.Formation{}
	if got := agent.LimitsOf(f); got != agent.DefaultLimits() {
		t.Errorf("without: %+v", got)
	}
	f.MCP = manifest.MCP{MaxToolIterations: 1, MaxToolCalls: 2, MaxRepeatedErrors: 3, MaxToolTimeout: 4, MaxToolTimeoutGiven: true, MaxTimeout: 5}
	f.InputLimits.MaxToolOutputSize = 6
	want := agent.Limits{ToolIterations: 1, ToolCalls: 2, RepeatedErrors: 3, ToolTimeout: 4, ToolsTimeout: 5, ToolOutput: 6, ParallelToolCalls: 8}
	if got := agent.LimitsOf(f); got != want {
		t.Errorf("limits = %+v", got)
	}
}

// deaf is a tool that does not listen to its context.
type deaf struct {
	tool
	begun chan struct{}
	end   chan struct{}
}

func (d *deaf) Call(_ context.Context, in chat.Invocation) (chat.ToolResult, error) {
	in.Progress(chat.ToolProgress{Message: "half way"})
	d.begun <- struct{}{}
	<-d.end
	in.Progress(chat.ToolProgress{Message: "nobody hears this"})
	return chat.ToolResult{Content: "too late"}, nil
}

func newDeaf(t *testing.T, spec chat.ToolSpec) *deaf {
	d := &deaf{tool: tool{spec: spec}, begun: make(chan struct{}, 2), end: make(chan struct{})}
	t.Cleanup(func() { close(d.end) })
	return d
}

func TestRun_ACallThatTakesTooLongIsAnErrorForTheModel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec chat.ToolSpec
		want string
	}{
		"unmarked":  {chat.ToolSpec{Name: "look"}, "The call was cut and its outcome is unknown: the call took too long: more than 1m0s."},
		"read-only": {chat.ToolSpec{Name: "look", ReadOnly: true}, "The call did not come to its end: the call took too long: more than 1m0s."},
	} {
		bubble(t, name, func(t *testing.T) {
			script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}}, llmtest.Step{Last: tc.want, Text: "sorry"})
			look := newDeaf(t, tc.spec)
			a := newAgent(script, func(c *agent.Config) { c.Limits.ToolTimeout = time.Minute; with(look)(c) })
			answer, events, err := run(t, a, &journal{})
			if err != nil || answer.Content != "sorry" || len(look.begun) != 1 {
				t.Fatalf("answer %q, error %v, %d calls", answer.Content, err, len(look.begun))
			}
			if got := strings.Join(events, "|"); got != "tool_call look|tool_call look|thinking |sorry" {
				t.Errorf("events %q", got)
			}
		})
	}
}

func TestRun_TheEndOfTheTurnWaitsForNoTool(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}})
	look := newDeaf(t, chat.ToolSpec{Name: "look"})
	gone := errors.New("cancelled by its user")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-look.begun; cancel(gone) }()
	j := &journal{}
	_, err := newAgent(script, with(look)).Run(ctx, agent.Task{Message: "go", Journal: j}, func(chat.Event) error { return nil })
	if !errors.Is(err, gone) || j.kept["tool/1/0"] != "" {
		t.Fatalf("error %v, journal %v", err, j.saved)
	}
}

package agent_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is a turn's journal in memory, with what an earlier life left.
type journal struct {
	earlier map[string]string
	mu      sync.Mutex
	saved   []string
	commits int
	kept    map[string]string // what was saved
}

func (j *journal) Done(step string) ([]byte, bool) {
	payload, ok := j.earlier[step]
	return []byte(payload), ok
}

func (j *journal) Save(ctx context.Context, step string, payload []byte) error {
	return j.SaveAll(ctx, []agent.Step{{Name: step, Payload: payload}})
}

func (j *journal) SaveAll(ctx context.Context, steps []agent.Step) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.commits++
	for _, s := range steps {
		j.saved = append(j.saved, s.Name)
		if j.kept == nil {
			j.kept = map[string]string{}
		}
		j.kept[s.Name] = string(s.Payload)
	}
	return nil
}

// after is the journal of the turn's next life, without the steps left out.
func (j *journal) after(without ...string) *journal {
	next := &journal{earlier: map[string]string{}}
	for step, payload := range j.kept {
		if !slices.Contains(without, step) {
			next.earlier[step] = payload
		}
	}
	return next
}

type tool struct {
	spec  chat.ToolSpec
	calls atomic.Int64
	do    func(args json.RawMessage) (chat.ToolResult, error)
}

func (t *tool) Spec() chat.ToolSpec { return t.spec }

func (t *tool) Call(_ context.Context, in chat.Invocation) (chat.ToolResult, error) {
	t.calls.Add(1)
	if t.do == nil {
		return chat.ToolResult{Content: "result of " + string(in.Args)}, nil
	}
	return t.do(in.Args)
}

// with gives an agent its tools.
func with(tools ...agent.Tool) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Tools = func(context.Context, chat.Invocation) ([]agent.Tool, error) { return tools, nil }
	}
}

func newAgent(script *llmtest.Script, change func(*agent.Config)) *agent.Agent {
	f := &manifest.Formation{LLM: manifest.LLM{
		Models:   []manifest.Model{{Capability: manifest.CapabilityText, ID: "test/m"}},
		Settings: manifest.Settings{Timeout: time.Minute},
	}}
	cfg := agent.Config{
		Agent:     &manifest.Agent{ID: "writer", Name: "Writer", Description: "Writes."},
		Formation: f, Models: script.Router(), Limits: agent.DefaultLimits(), Log: zerolog.Nop(),
		Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
	}
	if change != nil {
		change(&cfg)
	}
	return agent.New(cfg)
}

// run answers "go" and returns the events as lines.
func run(t *testing.T, a *agent.Agent, j *journal) (chat.Answer, []string, error) {
	t.Helper()
	var events []string
	answer, err := a.Run(t.Context(), agent.Task{Message: "go", Deltas: true, Journal: j}, func(e chat.Event) error {
		switch {
		case e.Restart:
			events = append(events, "restart")
		case e.Type == chat.Content:
			events = append(events, e.Content)
		default:
			events = append(events, e.Stage+" "+e.ToolName)
		}
		return nil
	})
	return answer, events, err
}

// bubble runs a test whose time passes only while everything waits: no limit
// ends what the machine is merely slow with.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

func call(id, name, args string) chat.ToolCall {
	return chat.ToolCall{ID: id, Name: name, Args: json.RawMessage(args)}
}

func TestRun_AnswersWithTheTextAndUsageOfAllSteps(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Text: "Let me look.", Calls: []chat.ToolCall{call("1", "look", `{"a":1}`), call("2", "look", `{"a":2}`)}, Usage: chat.Usage{TotalTokens: 3}},
		llmtest.Step{Last: `result of {"a":2}`, Deltas: []string{"Found ", "it."}, Usage: chat.Usage{TotalTokens: 4}},
	)
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	j := &journal{}
	answer, events, err := run(t, newAgent(script, with(look)), j)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Content != "Let me look.\n\nFound it." || answer.Usage.TotalTokens != 7 || answer.AgentID != "writer" {
		t.Errorf("answer = %+v", answer)
	}
	if got := strings.Join(events, "|"); got != "Let me look.|tool_call look|tool_call look|thinking |\n\nFound |it." {
		t.Errorf("events = %q", got)
	}
	if diff := cmp.Diff([]string{"model/0", "tool/1/0/started", "tool/1/1/started"}, j.saved[:3]); diff != "" || len(j.saved) != 5 || j.commits != 3 {
		t.Errorf("journal = %v in %d commits", j.saved, j.commits)
	}
}

func TestRun_ResumedRunRepeatsNoFinishedStep(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t, llmtest.Step{Last: "42", Text: "It is 42."})
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	j := &journal{earlier: map[string]string{
		"model/0":          `{"text":"Hm.","calls":[{"id":"1","name":"look","args":"{}"}],"usage":{"total_tokens":3},"model":"m"}`,
		"tool/1/0/started": "{}",
		"tool/1/0":         `{"CallID":"1","Content":"42"}`,
	}}
	answer, events, err := run(t, newAgent(script, with(look)), j)
	if err != nil {
		t.Fatal(err)
	}
	if look.calls.Load() != 0 || len(j.saved) != 0 {
		t.Errorf("calls = %d, journal = %v", look.calls.Load(), j.saved)
	}
	if answer.Content != "Hm.\n\nIt is 42." || events[0] != "Hm." {
		t.Errorf("answer = %q, events = %q", answer.Content, events)
	}
}

func TestRun_AStreamedAnswerIsThatOfTheStreamingModel(t *testing.T) {
	t.Parallel()
	for deltas, want := range map[bool]string{true: "quick", false: "m"} {
		script := llmtest.NewScript(t,
			llmtest.Step{Model: want, Calls: []chat.ToolCall{call("1", "look", "{}")}}, llmtest.Step{Model: want, Text: "Done."})
		a := newAgent(script, func(c *agent.Config) {
			limit := 7
			c.Formation.LLM.Models = append(c.Formation.LLM.Models, manifest.Model{
				Capability: manifest.CapabilityStreaming, ID: "test/quick", Settings: manifest.Overrides{MaxTokens: &limit},
			})
			with(&tool{spec: chat.ToolSpec{Name: "look"}})(c)
		})
		task := agent.Task{Message: "go", Deltas: deltas, Journal: &journal{}}
		if _, err := a.Run(t.Context(), task, func(chat.Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for _, req := range script.Asked() {
			if limited := req.Settings.MaxTokens != nil; req.Deltas != deltas || limited != deltas {
				t.Errorf("deltas %v: asked with %+v", deltas, req.Settings)
			}
		}
	}
}

// A provider wants its mark back with the call, also from another process.
func TestRun_AResumedRunSendsTheSealOfItsCallsBack(t *testing.T) {
	t.Parallel()
	sealed := call("1", "look", "{}")
	sealed.Seal = "c2VhbA=="
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	first := &journal{}
	if _, _, err := run(t, newAgent(llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{sealed}}, llmtest.Step{Text: "It is so."}), with(look)), first); err != nil {
		t.Fatal(err)
	}
	script := llmtest.NewScript(t, llmtest.Step{Last: "42", Text: "It is 42."})
	again := first.after()
	again.earlier["tool/1/0"] = `{"CallID":"1","Content":"42"}`
	if _, _, err := run(t, newAgent(script, with(look)), again); err != nil {
		t.Fatal(err)
	}
	messages := script.Asked()[0].Messages
	if diff := cmp.Diff([]chat.ToolCall{sealed}, messages[len(messages)-2].Calls); diff != "" {
		t.Error(diff)
	}
}

func TestRun_ACutCallIsRepeatedOnlyWhenThatIsSafe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec chat.ToolSpec
		code string
	}{
		"unmarked":   {chat.ToolSpec{Name: "pay"}, "UNKNOWN_OUTCOME"},
		"read-only":  {chat.ToolSpec{Name: "pay", ReadOnly: true}, ""},
		"idempotent": {chat.ToolSpec{Name: "pay", Idempotent: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var steps []llmtest.Step
			if tc.code == "" {
				steps = append(steps, llmtest.Step{Text: "done"})
			}
			pay := &tool{spec: tc.spec}
			j := &journal{earlier: map[string]string{
				"model/0":          `{"calls":[{"id":"1","name":"pay","args":"{}"}]}`,
				"tool/1/0/started": "{}",
			}}
			_, _, err := run(t, newAgent(llmtest.NewScript(t, steps...), with(pay)), j)
			if tc.code != "" {
				if fault.NameOf(err) != tc.code || pay.calls.Load() != 0 {
					t.Fatalf("err = %v, calls = %d", err, pay.calls.Load())
				}
				return
			}
			if err != nil || pay.calls.Load() != 1 {
				t.Fatalf("err = %v, calls = %d", err, pay.calls.Load())
			}
		})
	}
}

func TestRun_MistakesOfTheModelAreShownToIt(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Calls: []chat.ToolCall{call("1", "nothing", "{}")}},
		llmtest.Step{Last: `no tool named "nothing"`, Calls: []chat.ToolCall{call("2", "look", "{broken")}},
		llmtest.Step{Last: "not valid JSON", Text: "sorry"},
	)
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	answer, _, err := run(t, newAgent(script, with(look)), &journal{})
	if err != nil || answer.Content != "sorry" || look.calls.Load() != 0 {
		t.Fatalf("answer = %+v, err = %v, calls = %d", answer, err, look.calls.Load())
	}
}

func failing(json.RawMessage) (chat.ToolResult, error) {
	return chat.ToolResult{IsError: true, Content: "no luck"}, nil
}

func TestRun_LongToolOutputIsCutForTheModel(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}},
		llmtest.Step{Last: "[cut: 10 of 1000 bytes shown]", Text: "ok"},
	)
	big := &tool{spec: chat.ToolSpec{Name: "look"}, do: func(json.RawMessage) (chat.ToolResult, error) {
		return chat.ToolResult{Content: strings.Repeat("x", 1000)}, nil
	}}
	limits := agent.DefaultLimits()
	limits.ToolOutput = 10
	if _, _, err := run(t, newAgent(script, func(c *agent.Config) { c.Limits = limits; with(big)(c) }), &journal{}); err != nil {
		t.Fatal(err)
	}
}

func TestRun_WithoutAModelSaysWhatToSet(t *testing.T) {
	t.Parallel()
	a := newAgent(llmtest.NewScript(t), func(c *agent.Config) { c.Formation = &manifest.Formation{} })
	if _, _, err := run(t, a, &journal{}); err == nil || !strings.Contains(err.Error(), "set llm.models") {
		t.Fatalf("err = %v", err)
	}
}

func TestRun_TimeoutOfTheAgentNamesIt(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]manifest.AgentTimeout{
		"default": {Default: time.Second}, "max": {Max: time.Second},
		"both": {Default: time.Second, Max: time.Hour}, "the lower": {Default: time.Hour, Max: time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			never := make(chan struct{})
			a := newAgent(llmtest.NewScript(t, llmtest.Step{Wait: never}), func(c *agent.Config) { c.Agent.Timeout = limit })
			if _, _, err := run(t, a, &journal{}); err == nil || err.Error() != "agent writer took longer than its timeout of 1s" {
				t.Fatalf("err = %v", err)
			}
		})
	}
}

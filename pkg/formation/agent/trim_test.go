package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

// shown tells what a model was shown of each message: its size, or "cleared".
func shown(messages []chat.Message) []string {
	var out []string
	for _, m := range messages[1:] {
		_, trimmed, _ := strings.Cut(m.Content, "[… ")
		switch trimmed, _, cut := strings.Cut(trimmed, " characters trimmed …]"); {
		case m.Content == "[Old content cleared.]":
			out = append(out, string(m.Role)+" cleared")
		case cut:
			out = append(out, string(m.Role)+" less "+trimmed)
		default:
			out = append(out, fmt.Sprintf("%s %d", m.Role, len(m.Content)))
		}
	}
	return out
}

// long is an agent whose tool gives 10,000 characters at each of three calls
// and whose history has as many.
func long(t *testing.T, p *manifest.Pruning) (*agent.Agent, *llmtest.Script, agent.Task) {
	t.Helper()
	ask := func(id string) llmtest.Step { return llmtest.Step{Calls: []chat.ToolCall{call(id, "look", "{}")}} }
	script := llmtest.NewScript(t, ask("1"), ask("2"), ask("3"), llmtest.Step{Text: "ok"})
	look := &keen{spec: chat.ToolSpec{Name: "look"}, give: chat.ToolResult{Content: strings.Repeat("ä", 10_000)}}
	a := newAgent(script, func(c *agent.Config) { c.Formation.Memory.Pruning = p; with(look)(c) })
	return a, script, agent.Task{
		Message: strings.Repeat("m", 10_000), User: "ann", Session: "s", Journal: &journal{},
		History: []chat.Message{{Role: chat.User, Content: strings.Repeat("u", 10_000)}, {Role: chat.Assistant, Content: strings.Repeat("a", 4000)}},
	}
}

func TestRun_PruningShortensOldContent(t *testing.T) {
	t.Parallel()
	all := []string{"user 10000", "assistant 4000", "user 10000", "assistant 0", "tool 20000", "assistant 0", "tool 20000", "assistant 0", "tool 20000"}
	for name, tc := range map[string]struct {
		pruning *manifest.Pruning
		want    []string
	}{
		"absent":         {nil, all},
		"never":          {&manifest.Pruning{Mode: "never", Strategy: "hard_clear", KeepLastNToolResults: 1, SoftTrimMaxChars: 100}, all},
		"the first time": {&manifest.Pruning{Mode: "cache-ttl", Strategy: "hard_clear", KeepLastNToolResults: 1, SoftTrimMaxChars: 100}, all},
		"soft": {&manifest.Pruning{Mode: "always", Strategy: "soft_trim", KeepLastNToolResults: 1, SoftTrimMaxChars: 4000}, []string{
			"user less 7000", "assistant 4000", "user 10000", "assistant 0", "tool less 7000", "assistant 0", "tool less 7000", "assistant 0", "tool 20000",
		}},
		"hard": {&manifest.Pruning{Mode: "always", Strategy: "hard_clear", KeepLastNToolResults: 2, SoftTrimMaxChars: 3999}, []string{
			"user cleared", "assistant cleared", "user 10000", "assistant 0", "tool cleared", "assistant 0", "tool 20000", "assistant 0", "tool 20000",
		}},
		"soft of what is short": {&manifest.Pruning{Mode: "always", Strategy: "soft_trim", SoftTrimMaxChars: 10_000}, all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, script, task := long(t, tc.pruning)
			if _, err := a.Run(t.Context(), task, func(chat.Event) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, shown(script.Asked()[3].Messages)); diff != "" {
				t.Error(diff)
			}
			if task.History[0].Content != strings.Repeat("u", 10_000) {
				t.Error("the caller's history was changed")
			}
		})
	}
}

func TestRun_PruningWaitsUntilTheProvidersCacheIsCold(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	steps := []llmtest.Step{{Text: "ok"}, {Text: "ok"}, {Text: "ok"}, {Text: "ok"}}
	script := llmtest.NewScript(t, steps...)
	a := newAgent(script, func(c *agent.Config) {
		c.Now = func() time.Time { return now }
		c.Formation.Memory.Pruning = &manifest.Pruning{Mode: "cache-ttl", Strategy: "soft_trim", CacheTTL: time.Minute, SoftTrimMaxChars: 4000}
	})
	for i, tc := range []struct {
		after   time.Duration
		session string
		want    string
	}{
		{0, "s", "user 10000"}, {time.Minute, "s", "user 10000"}, {61 * time.Second, "other", "user 10000"}, {0, "s", "user less 7000"},
	} {
		now = now.Add(tc.after)
		task := agent.Task{Message: "go", Session: tc.session, Journal: &journal{}, History: []chat.Message{{Role: chat.User, Content: strings.Repeat("u", 10_000)}}}
		if _, err := a.Run(t.Context(), task, func(chat.Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if got := shown(script.Asked()[i].Messages)[0]; got != tc.want {
			t.Errorf("turn %d: %s, want %s", i, got, tc.want)
		}
	}
}

// More than the window of any model it knows: the oldest results give way.
func TestRun_TheOldestResultsGiveWayToTheWindow(t *testing.T) {
	t.Parallel()
	ask := func(id string) llmtest.Step { return llmtest.Step{Calls: []chat.ToolCall{call(id, "look", "{}")}} }
	script := llmtest.NewScript(t, ask("1"), ask("2"), ask("3"), llmtest.Step{Text: "ok"})
	look := &keen{spec: chat.ToolSpec{Name: "look"}, give: chat.ToolResult{Content: strings.Repeat("x", 220_000)}}
	if _, _, err := run(t, newAgent(script, with(look)), &journal{}); err != nil {
		t.Fatal(err)
	}
	asked := script.Asked()
	if got := shown(asked[2].Messages)[2]; got != "tool 220000" {
		t.Errorf("with two results the first is %s", got)
	}
	want := []string{"user 2", "assistant 0", "tool less 217000", "assistant 0", "tool 220000", "assistant 0", "tool 220000"}
	if diff := cmp.Diff(want, shown(asked[3].Messages)); diff != "" {
		t.Error(diff)
	}
}

func TestRun_AModelThatFindsItTooLongIsAskedWithLess(t *testing.T) {
	t.Parallel()
	refusal := &llm.CallError{Reason: llm.Refused, Status: 400, Detail: "This model's maximum context length is 8192 tokens."}
	script := llmtest.NewScript(t,
		llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}},
		llmtest.Step{Err: refusal},
		llmtest.Step{Text: "ok"},
		llmtest.Step{Calls: []chat.ToolCall{call("1", "look", "{}")}},
		llmtest.Step{Text: "ok"},
	)
	look := &keen{spec: chat.ToolSpec{Name: "look"}, give: chat.ToolResult{Content: strings.Repeat("x", 40_000)}}
	a := newAgent(script, with(look))
	for range 2 {
		if answer, _, err := run(t, a, &journal{}); err != nil || answer.Content != "ok" {
			t.Fatalf("answer %q, error %v", answer.Content, err)
		}
	}
	for ask, want := range map[int]string{1: "tool 40000", 2: "tool less 37000", 4: "tool less 37000"} {
		if got := shown(script.Asked()[ask].Messages)[2]; got != want {
			t.Errorf("ask %d: %s, want %s", ask, got, want)
		}
	}
}

func TestRun_WhatCannotBeShortenedIsTheProvidersError(t *testing.T) {
	t.Parallel()
	refusal := &llm.CallError{Reason: llm.Refused, Status: 400, Detail: "prompt is too long"}
	if _, _, err := run(t, newAgent(llmtest.NewScript(t, llmtest.Step{Err: refusal}), nil), &journal{}); err == nil || !strings.Contains(err.Error(), "prompt is too long") {
		t.Errorf("error %v", err)
	}
}

package agent_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
)

// needError is a call before which the user has to do something.
type needError struct{ answer chat.Answer }

func (needError) Error() string { return "the user has no credential" }

func (e needError) Answer() chat.Answer { return e.answer }

func TestRun_ACallThatNeedsTheUserEndsTheRunWithItsAnswer(t *testing.T) {
	t.Parallel()
	link := chat.Widget{Type: chat.WidgetActionLink, URL: "https://example.com/"}
	question := &chat.Question{Kind: chat.QuestionCredential, Prompt: "Which?"}
	for name, need := range map[string]chat.Answer{
		"a place to go": {Content: "Go there.", Widgets: []chat.Widget{link}},
		"a question":    {Content: "Which?", Question: question},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, spec := range []chat.ToolSpec{{Name: "issues"}, {Name: "issues", ReadOnly: true}} {
				script := llmtest.NewScript(t, llmtest.Step{Text: "Let me look.", Calls: []chat.ToolCall{call("1", "issues", "{}")}})
				issues := &tool{spec: spec, do: func(json.RawMessage) (chat.ToolResult, error) {
					return chat.ToolResult{}, fmt.Errorf("connect: %w", needError{need})
				}}
				answer, events, err := run(t, newAgent(script, with(issues)), &journal{})
				if err != nil || issues.calls.Load() != 1 {
					t.Fatalf("error %v, %d calls", err, issues.calls.Load())
				}
				want := chat.Answer{
					Content: "Let me look.\n\n" + need.Content, AgentID: "writer", Model: answer.Model, Fixed: true,
					Widgets: need.Widgets, Question: need.Question, Agents: []string{"writer"},
				}
				if diff := cmp.Diff(want, answer); diff != "" {
					t.Error(diff)
				}
				if len(events) == 0 || events[len(events)-1] != "\n\n"+need.Content && events[len(events)-1] != need.Content {
					t.Errorf("shown: %q", events)
				}
			}
		})
	}
}

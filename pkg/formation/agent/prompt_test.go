package agent_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

// system is the system prompt of an agent in a task.
func system(t *testing.T, change func(*agent.Config), task agent.Task) string {
	t.Helper()
	script := llmtest.NewScript(t, llmtest.Step{Text: "hi"})
	task.Message, task.Journal = "go", &journal{}
	if _, err := newAgent(script, change).Run(t.Context(), task, func(chat.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	msgs := script.Asked()[0].Messages
	if last := msgs[len(msgs)-1]; last.Role != chat.User || last.Content != "go" {
		t.Errorf("message = %+v", last)
	}
	return msgs[0].Content
}

func TestPrompt_SaysWhatTheManifestSaysOfTheAgent(t *testing.T) {
	t.Parallel()
	got := system(t, func(c *agent.Config) {
		c.Formation.Soul = "You are kind."
		c.Formation.Overlord.Response.Format = manifest.FormatText
		c.Agent.SystemMessage, c.Agent.Role = "Write verse.", "specialist"
		c.Agent.Specialization = manifest.Specialization{Domain: "poetry", ExpertiseLevel: "expert"}
		c.Agent.SystemBehavior = manifest.SystemBehavior{
			Constraints: []string{"no prose"}, Capabilities: []string{"rhyme"}, InteractionStyle: "formal",
			ResponseLength: "concise", ErrorHandling: "graceful",
		}
	}, agent.Task{Context: []string{"What is known of the user:\n- likes haiku", ""}})
	want := []string{
		"You are kind.", "You are Writer. Writes.", "Write verse.",
		"You are a specialist: go deep in your field and say when a question lies outside it.",
		"Your field is poetry at expert level.", "You can:\n- rhyme", "Keep to these rules:\n- no prose",
		"Write formally. Keep answers short. When something fails, say so calmly and offer what still works, without technical detail. " +
			"Answer in plain text without markup.",
		"What is known of the user:\n- likes haiku",
		"Today is Friday, 2 January 2026 (UTC).",
	}
	if diff := cmp.Diff(strings.Join(want, "\n\n"), got); diff != "" {
		t.Error(diff)
	}
}

// Each value of each key changes what the model reads.
func TestPrompt_EveryValueOfTheBehaviourIsRead(t *testing.T) {
	t.Parallel()
	for key, tc := range map[string]struct {
		values []string
		set    func(*manifest.Agent, string)
	}{
		"role": {[]string{"", "specialist", "generalist", "coordinator", "researcher", "executor"}, func(a *manifest.Agent, v string) { a.Role = v }},
		"interaction_style": {[]string{"", "formal", "casual", "technical", "friendly", "professional"}, func(a *manifest.Agent, v string) {
			a.SystemBehavior.InteractionStyle = v
		}},
		"response_length": {[]string{"", "concise", "moderate", "detailed", "comprehensive"}, func(a *manifest.Agent, v string) {
			a.SystemBehavior.ResponseLength = v
		}},
		"error_handling": {[]string{"", "graceful", "explicit", "technical", "user-friendly"}, func(a *manifest.Agent, v string) {
			a.SystemBehavior.ErrorHandling = v
		}},
		"specialization.domain":    {[]string{"", "law", "medicine"}, func(a *manifest.Agent, v string) { a.Specialization.Domain = v }},
		"specialization.subdomain": {[]string{"", "tax", "trade"}, func(a *manifest.Agent, v string) { a.Specialization.Domain, a.Specialization.Subdomain = "law", v }},
		"specialization.expertise_level": {[]string{"", "junior", "intermediate", "senior", "expert"}, func(a *manifest.Agent, v string) {
			a.Specialization.Domain, a.Specialization.ExpertiseLevel = "law", v
		}},
		"specialization.keywords": {[]string{"", "tax", "trade"}, func(a *manifest.Agent, v string) {
			a.Specialization.Domain, a.Specialization.Keywords = "law", strings.Fields(v)
		}},
	} {
		seen := map[string]string{}
		for _, value := range tc.values {
			text := system(t, func(c *agent.Config) { tc.set(c.Agent, value) }, agent.Task{})
			if other, ok := seen[text]; ok {
				t.Errorf("%s: %q reads as %q does", key, value, other)
			}
			seen[text] = value
		}
	}
}

func TestPrompt_ToolsComeWithGuidance(t *testing.T) {
	t.Parallel()
	if text := system(t, nil, agent.Task{}); strings.Contains(text, "tool") {
		t.Errorf("an agent without tools is told of them: %s", text)
	}
	look := &tool{spec: chat.ToolSpec{Name: "look"}}
	for _, text := range []string{system(t, with(look), agent.Task{}), system(t, nil, agent.Task{Tools: []agent.Tool{look}})} {
		for _, want := range []string{"never a placeholder", "no id, name, path or address", "not the first", "never report a failed call as done"} {
			if !strings.Contains(text, want) {
				t.Errorf("the guidance does not say %q: %s", want, text)
			}
		}
	}
}

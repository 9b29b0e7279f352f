package overlord_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type journal map[string][]byte

func (j journal) Done(step string) ([]byte, bool) { p, ok := j[step]; return p, ok }

func (j journal) Save(_ context.Context, step string, payload []byte) error {
	j[step] = payload
	return nil
}

func (j journal) SaveAll(_ context.Context, steps []agent.Step) error {
	for _, s := range steps {
		j[s.Name] = s.Payload
	}
	return nil
}

func team() *manifest.Formation {
	return &manifest.Formation{
		LLM: manifest.LLM{Models: []manifest.Model{{Capability: manifest.CapabilityText, ID: "test/m"}}},
		Agents: []manifest.Agent{
			{ID: "weather", Name: "Weather", Description: "Answers questions about the weather, rain and temperature."},
			{ID: "cook", Name: "Cook", Description: "Suggests recipes and explains cooking.", Specialization: manifest.Specialization{Keywords: []string{"pasta", "oven"}}},
			{ID: "coder", Name: "Coder", Description: "Writes and reviews programs in Go and Python."},
		},
		Overlord: manifest.Overlord{
			Caching:  manifest.Caching{Enabled: true, TTL: time.Hour},
			Routing:  manifest.Routing{Enabled: true, Method: manifest.RouteModel, Timeout: time.Minute, Confidence: 0.75, Shortlist: 12},
			Response: manifest.Response{Format: manifest.FormatMarkdown},
		},
	}
}

func handle(t *testing.T, f *manifest.Formation, script *llmtest.Script, in overlord.Input) (chat.Answer, error) {
	t.Helper()
	o := overlord.New(overlord.Config{Formation: f, Models: script.Router(), Now: time.Now, Log: zerolog.Nop()})
	if in.Journal == nil {
		in.Journal = journal{}
	}
	return o.Handle(t.Context(), in, func(chat.Event) error { return nil })
}

func TestHandle_TheModelChoosesTheAgent(t *testing.T) {
	t.Parallel()
	j := journal{}
	script := llmtest.NewScript(t,
		llmtest.Step{Purpose: "routing", Text: "```json\n{\"agent_id\": \"cook\", \"reason\": \"food\"}\n```"},
		llmtest.Step{Purpose: "agent", Last: "dinner", Text: "Soup."},
	)
	answer, err := handle(t, team(), script, overlord.Input{Message: "dinner?", Journal: j})
	if err != nil || answer.AgentID != "cook" || answer.Content != "Soup." {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
	if !strings.HasPrefix(string(j["route"]), `{"agent":"cook","method":"model","reason":"food","analysis":{"complexity_score":`) {
		t.Fatalf("journal = %s", j["route"])
	}
}

func TestHandle_WordsDecideWhenTheModelCannot(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]llmtest.Step{
		"error":         {Purpose: "routing", Err: errors.New("down")},
		"no JSON":       {Purpose: "routing", Text: "the cook, I think"},
		"unknown agent": {Purpose: "routing", Text: `{"agent_id":"chef"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := handle(t, team(), llmtest.NewScript(t, first, llmtest.Step{Purpose: "agent", Text: "ok"}),
				overlord.Input{Message: "How long does pasta take in the oven?"})
			if err != nil || answer.AgentID != "cook" {
				t.Fatalf("answer = %+v, %v", answer, err)
			}
		})
	}
}

func TestHandle_ExplicitSingleAndJournalledNeedNoDecision(t *testing.T) {
	t.Parallel()
	one := team()
	one.Agents = one.Agents[:1]
	for name, tc := range map[string]struct {
		formation *manifest.Formation
		in        overlord.Input
		want      string
	}{
		"explicit":   {team(), overlord.Input{Message: "rain?", AgentID: "coder"}, "coder"},
		"single":     {one, overlord.Input{Message: "pasta?"}, "weather"},
		"journalled": {team(), overlord.Input{Message: "rain?", Journal: journal{"route": []byte(`{"agent":"cook","method":"model"}`)}}, "cook"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := handle(t, tc.formation, llmtest.NewScript(t, llmtest.Step{Purpose: "agent", Text: "ok"}), tc.in)
			if err != nil || answer.AgentID != tc.want {
				t.Fatalf("answer = %+v, %v", answer, err)
			}
		})
	}
}

func TestHandle_UnknownAgentIsNotFound(t *testing.T) {
	t.Parallel()
	_, err := handle(t, team(), llmtest.NewScript(t), overlord.Input{Message: "x", AgentID: "ghost"})
	if fault.NameOf(err) != "AGENT_NOT_FOUND" || fault.KindOf(err) != fault.NotFound {
		t.Fatalf("err = %v", err)
	}
}

func TestHandle_ARepeatedMessageIsRoutedFromTheCache(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Purpose: "routing", Text: `{"agent_id":"cook","reason":"x"}`},
		llmtest.Step{Purpose: "agent", Text: "1"},
		llmtest.Step{Purpose: "agent", Text: "2"},
	)
	o := overlord.New(overlord.Config{Formation: team(), Models: script.Router(), Now: time.Now, Log: zerolog.Nop()})
	for range 2 {
		if _, err := o.Handle(t.Context(), overlord.Input{Message: "dinner", Journal: journal{}}, func(chat.Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHandle_JSONFormatWrapsTheAnswer(t *testing.T) {
	t.Parallel()
	f := team()
	f.Overlord.Response.Format = manifest.FormatJSON
	answer, err := handle(t, f, llmtest.NewScript(t, llmtest.Step{Text: "hi \"you\""}), overlord.Input{Message: "x", AgentID: "cook"})
	if err != nil || answer.Content != `{"content":"hi \"you\"","type":"response","format":"json"}` {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
}

// Without any model the words of a message decide: ten questions for each
// agent, in words of their own.
func TestRoute_WordsSendTenQuestionsOfEachAgentToTheRightOne(t *testing.T) {
	t.Parallel()
	questions := map[string]string{
		"weather": `Will it rain tomorrow?
What is the temperature outside?
Is the weather nice in Rome?
Do I have questions about rain?
How much rain fell?
Temperatures for the weekend, please
weather report
Is it raining?
How is the weather changing?
What temperature is it in Oslo?`,
		"cook": `A recipe for soup
How do I cook rice?
pasta with what sauce?
How hot must the oven be?
Suggest recipes with beans
Explain cooking on gas
Which pasta shape is best?
My oven is broken, can I still cook?
suggestion for a recipe
cooking time of pasta`,
		"coder": `Write a program that sorts
Review my Python
Is this Go idiomatic?
programs that print primes
How do I write a loop in Python?
Writing tests in Go
review this program
Python or Go?
Go modules
write Python for me`,
	}
	f := team()
	f.LLM.Models = nil // no model: only the fallback is left
	for want, list := range questions {
		for q := range strings.Lines(list) {
			j := journal{}
			o := overlord.New(overlord.Config{Formation: f, Models: llmtest.NewScript(t).Router(), Now: time.Now, Log: zerolog.Nop()})
			_, _ = o.Handle(t.Context(), overlord.Input{Message: q, Journal: j}, func(chat.Event) error { return nil })
			if !strings.Contains(string(j["route"]), `"agent":"`+want+`"`) {
				t.Errorf("%q: %s, want %s", strings.TrimSpace(q), j["route"], want)
			}
		}
	}
}

func TestRoute_AFollowUpStaysWithTheLastAgent(t *testing.T) {
	t.Parallel()
	f := team()
	f.LLM.Models = nil
	for message, want := range map[string]string{
		"and then?":                 `{"agent":"coder","method":"history","reason":"nothing points clearly to another agent",`,
		"what about rain tomorrow?": `{"agent":"weather","method":"heuristic","reason":"its own words: rain; words of weather: rain",`,
	} {
		j := journal{}
		o := overlord.New(overlord.Config{Formation: f, Models: llmtest.NewScript(t).Router(), Now: time.Now, Log: zerolog.Nop()})
		_, _ = o.Handle(t.Context(), overlord.Input{Message: message, LastAgent: "coder", Journal: j}, func(chat.Event) error { return nil })
		if !strings.HasPrefix(string(j["route"]), want) {
			t.Errorf("%q: %s, want %s", message, j["route"], want)
		}
	}
}

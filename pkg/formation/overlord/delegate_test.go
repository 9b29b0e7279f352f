package overlord_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// delegating is team with agents that may ask each other.
func delegating(change func(*manifest.Formation)) *manifest.Formation {
	f := team()
	for i := range f.Agents {
		f.Agents[i].DirectDelegation, f.Agents[i].Delegation = true, manifest.DelegateAutomatic
	}
	if change != nil {
		change(f)
	}
	return f
}

// notes is a journal that several agents write into.
type notes struct {
	mu   sync.Mutex
	kept map[string][]byte
}

func (n *notes) Done(step string) ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.kept[step]
	return p, ok
}

func (n *notes) Save(ctx context.Context, step string, payload []byte) error {
	return n.SaveAll(ctx, []overlord.Step{{Name: step, Payload: payload}})
}

func (n *notes) SaveAll(_ context.Context, steps []overlord.Step) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil {
		n.kept = map[string][]byte{}
	}
	for _, s := range steps {
		n.kept[s.Name] = s.Payload
	}
	return nil
}

func toolCall(id, tool, args string) chat.ToolCall {
	return chat.ToolCall{ID: id, Name: tool, Args: json.RawMessage(args)}
}

// handleShown handles a message for a reader and returns the text that was
// shown.
func handleShown(t *testing.T, f *manifest.Formation, script *llmtest.Script, in overlord.Input) (answer chat.Answer, text string, err error) {
	t.Helper()
	o := overlord.New(overlord.Config{Formation: f, Models: script.Router(), Now: time.Now, Log: zerolog.Nop()})
	if in.Journal == nil {
		in.Journal = &notes{}
	}
	in.Deltas = true
	answer, err = o.Handle(t.Context(), in, func(e chat.Event) error {
		if e.Restart {
			text = ""
		}
		if e.Type == chat.Content {
			text += e.Content
		}
		return nil
	})
	return answer, text, err
}

func toolNames(script *llmtest.Script, ask int) []string {
	var names []string
	for _, spec := range script.Asked()[ask].Tools {
		names = append(names, spec.Name)
	}
	return names
}

func TestDelegation_IsOfferedAsTheManifestSays(t *testing.T) {
	t.Parallel()
	consult := []string{"consult_agent", "consult_agents"}
	for name, tc := range map[string]struct {
		change func(*manifest.Formation)
		want   []string
	}{
		"automatic":   {nil, append(consult[:2:2], "delegate_to_agent")},
		"ask_user":    {func(f *manifest.Formation) { f.Agents[1].Delegation = manifest.DelegateAskUser }, append(consult[:2:2], "delegate_to_agent")},
		"never":       {func(f *manifest.Formation) { f.Agents[1].Delegation = manifest.DelegateNever }, nil},
		"disabled":    {func(f *manifest.Formation) { f.Agents[1].DirectDelegation = false }, nil},
		"nobody else": {func(f *manifest.Formation) { f.Agents = f.Agents[1:2] }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Text: "ok"})
			if _, err := handle(t, delegating(tc.change), script, overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, toolNames(script, 0)); diff != "" {
				t.Error(diff)
			}
			for _, spec := range script.Asked()[0].Tools {
				if strings.Contains(string(spec.Schema), `"cook"`) || !strings.Contains(string(spec.Schema), `"weather"`) {
					t.Errorf("%s: %s", spec.Name, spec.Schema)
				}
			}
		})
	}
}

func TestDelegation_AConsultedAgentsAnswerGoesToWhoAsked(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Text: "I ask.", Calls: []chat.ToolCall{toolCall("1", "consult_agent", `{"agent_id":"weather","question":"Rain on Sunday?"}`)}, Usage: chat.Usage{TotalTokens: 1}},
		llmtest.Step{Last: "Rain on Sunday?", Text: "No rain.", Usage: chat.Usage{TotalTokens: 10}},
		llmtest.Step{Last: "No rain.", Text: "Barbecue.", Usage: chat.Usage{TotalTokens: 100}},
	)
	j := &notes{}
	answer, text, err := handleShown(t, delegating(nil), script, overlord.Input{Message: "dinner?", AgentID: "cook", Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Content != "I ask.\n\nBarbecue." || text != answer.Content || answer.AgentID != "cook" || answer.Usage.TotalTokens != 111 {
		t.Errorf("answer %+v, shown %q", answer, text)
	}
	if diff := cmp.Diff([]string{"cook", "weather"}, answer.Agents); diff != "" {
		t.Error(diff)
	}
	if sub := script.Asked()[1]; len(sub.Messages) != 2 || sub.Account.Agent != "weather" || !strings.Contains(sub.Messages[0].Content, "Agent Cook of your team asks you this.") {
		t.Errorf("the consulted agent was asked %+v", sub)
	}
	if diff := cmp.Diff([]string{"consult_agent", "consult_agents"}, toolNames(script, 1)); diff != "" {
		t.Errorf("who works for another agent can't hand over: %s", diff)
	}
	again := llmtest.NewScript(t, llmtest.Step{Last: "No rain.", Text: "Barbecue.", Usage: chat.Usage{TotalTokens: 100}})
	resumed, _, err := handleShown(t, delegating(nil), again, overlord.Input{Message: "dinner?", AgentID: "cook", Journal: j})
	if diff := cmp.Diff(answer, resumed); diff != "" || err != nil {
		t.Errorf("the next life asked again or answers otherwise: %v, %s", err, diff)
	}
}

func TestDelegation_AResumedConsultationGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	ask := []chat.ToolCall{toolCall("1", "consult_agent", `{"agent_id":"weather","question":"Rain?"}`)}
	deeper := []chat.ToolCall{toolCall("1", "consult_agent", `{"agent_id":"coder","question":"Radar?"}`)}
	j := &notes{}
	first := llmtest.NewScript(t, llmtest.Step{Calls: ask}, llmtest.Step{Calls: deeper}, llmtest.Step{Last: "Radar?", Text: "Clear."},
		llmtest.Step{Last: "Clear.", Text: "No."}, llmtest.Step{Last: "No.", Text: "Barbecue."})
	answer, err := handle(t, delegating(nil), first, overlord.Input{Message: "dinner?", AgentID: "cook", Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cook", "weather", "coder"}, answer.Agents); diff != "" {
		t.Error(diff)
	}
	delete(j.kept, "tool/1/0") // as if it had been cut while weather was at work
	again := llmtest.NewScript(t, llmtest.Step{Last: "Clear.", Text: "No."}, llmtest.Step{Last: "No.", Text: "Barbecue."})
	resumed, err := handle(t, delegating(nil), again, overlord.Input{Message: "dinner?", AgentID: "cook", Journal: j})
	if err != nil || resumed.Content != answer.Content || len(resumed.Agents) != 3 {
		t.Fatalf("answer %+v, %v", resumed, err)
	}
}

func TestDelegation_SeveralAreConsultedAtOnce(t *testing.T) {
	t.Parallel()
	// Each answers only when both were asked.
	both := make(chan struct{})
	var once sync.WaitGroup
	once.Add(2)
	go func() { once.Wait(); close(both) }()
	steps := llmtest.NewScript(t,
		llmtest.Step{Calls: []chat.ToolCall{toolCall("2", "consult_agents", `{"questions":[{"agent_id":"weather","question":"same"},{"agent_id":"coder","question":"same"}]}`)}},
		llmtest.Step{Last: "same", Text: "mine", Wait: both},
		llmtest.Step{Last: "same", Text: "mine", Wait: both},
		llmtest.Step{Last: "=== Agent weather ===\nmine\n\n=== Agent coder ===\nmine", Text: "Done."},
	)
	o := overlord.New(overlord.Config{Formation: delegating(nil), Models: steps.Router(), Now: time.Now, Log: zerolog.Nop()})
	answer, err := o.Handle(t.Context(), overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}, func(e chat.Event) error {
		if e.Stage == chat.StageAgentProcessing && e.Content != "Agent cook is working" {
			once.Done()
		}
		return nil
	})
	if err != nil || answer.Content != "Done." {
		t.Fatalf("answer %+v, %v", answer, err)
	}
}

func TestDelegation_AHandOverIsTheOthersAnswer(t *testing.T) {
	t.Parallel()
	f := delegating(nil)
	script := llmtest.NewScript(t,
		llmtest.Step{Text: "One moment.", Calls: []chat.ToolCall{toolCall("1", "delegate_to_agent", `{"agent_id":"coder","reason":"It is a program."}`)}, Usage: chat.Usage{TotalTokens: 1}},
		llmtest.Step{Last: "fix it", Deltas: []string{"Fixed ", "it."}, Usage: chat.Usage{TotalTokens: 10}},
	)
	j := &notes{}
	in := overlord.Input{Message: "fix it", AgentID: "cook", Journal: j, History: []chat.Message{{Role: chat.User, Content: "hi"}, {Role: chat.Assistant, Content: "hello"}}}
	answer, text, err := handleShown(t, f, script, in)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Content != "One moment.\n\nFixed it." || text != answer.Content || answer.AgentID != "coder" || answer.Usage.TotalTokens != 11 {
		t.Errorf("answer %+v, shown %q", answer, text)
	}
	if diff := cmp.Diff([]string{"coder", "cook"}, answer.Agents); diff != "" {
		t.Error(diff)
	}
	taken := script.Asked()[1].Messages
	if len(taken) != 4 || !strings.Contains(taken[0].Content, "Agent cook of your team has handed this conversation over to you.") || !strings.Contains(taken[0].Content, "It is a program.") {
		t.Errorf("who took over was shown %+v", taken)
	}
	if names := toolNames(script, 1); len(names) != 3 {
		t.Errorf("who took over can't hand over: %v", names)
	}
	again := llmtest.NewScript(t, llmtest.Step{Last: "fix it", Text: "Fixed it.", Usage: chat.Usage{TotalTokens: 10}})
	resumed, text, err := handleShown(t, f, again, in)
	if diff := cmp.Diff(answer, resumed); diff != "" || err != nil || text != answer.Content {
		t.Errorf("the next life: shown %q, %v, %s", text, err, diff)
	}
}

func TestDelegation_AFailedHandOverIsTakenBack(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Text: "One moment.", Calls: []chat.ToolCall{toolCall("1", "delegate_to_agent", `{"agent_id":"coder"}`)}},
		llmtest.Step{Text: "Half a", Err: fault.New(fault.Failed, "", "no more")},
		llmtest.Step{Last: "Agent coder could not answer: ", Text: "I try myself."},
	)
	answer, text, err := handleShown(t, delegating(nil), script, overlord.Input{Message: "fix it", AgentID: "cook"})
	if err != nil || answer.Content != "One moment.\n\nI try myself." || text != answer.Content || answer.AgentID != "cook" {
		t.Fatalf("answer %+v, shown %q, %v", answer, text, err)
	}
}

func TestDelegation_LoopsDepthAndNumberAreBounded(t *testing.T) {
	t.Parallel()
	consult := func(id string) llmtest.Step {
		return llmtest.Step{Calls: []chat.ToolCall{toolCall("1", "consult_agent", `{"agent_id":"`+id+`","question":"?"}`)}}
	}
	t.Run("loop", func(t *testing.T) {
		t.Parallel()
		script := llmtest.NewScript(t, consult("weather"), consult("cook"),
			llmtest.Step{Last: "Agent cook is at work on this already (cook → weather).", Text: "then so"}, llmtest.Step{Last: "then so", Text: "ok"})
		if _, err := handle(t, delegating(nil), script, overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("depth", func(t *testing.T) {
		t.Parallel()
		f := delegating(func(f *manifest.Formation) {
			f.Agents = append(f.Agents, manifest.Agent{ID: "d", Name: "D", Description: "d", DirectDelegation: true}, manifest.Agent{ID: "e", Name: "E", Description: "e", DirectDelegation: true})
		})
		script := llmtest.NewScript(t, consult("weather"), consult("coder"), consult("d"), llmtest.Step{Text: "deep"},
			llmtest.Step{Text: "ok"}, llmtest.Step{Text: "ok"}, llmtest.Step{Text: "ok"})
		if _, err := handle(t, f, script, overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}); err != nil {
			t.Fatal(err)
		}
		if names := toolNames(script, 3); names != nil {
			t.Errorf("the fourth agent may ask by %v", names)
		}
	})
	t.Run("number", func(t *testing.T) {
		t.Parallel()
		var calls []chat.ToolCall
		steps := make([]llmtest.Step, 0, 12)
		for i := range 11 {
			calls = append(calls, toolCall(fmt.Sprint(i), "consult_agent", `{"agent_id":"weather","question":"?"}`))
		}
		steps = append(steps, llmtest.Step{Calls: calls})
		for range 10 {
			steps = append(steps, llmtest.Step{Last: "?", Text: "fine"})
		}
		script := llmtest.NewScript(t, append(steps, llmtest.Step{Text: "ok"})...)
		if _, err := handle(t, delegating(nil), script, overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}); err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, m := range script.Asked()[11].Messages {
			if strings.Contains(m.Content, "Agents have asked each other 10 times") {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%d of 11 were refused", refused)
		}
	})
	t.Run("a hand-over beside other calls", func(t *testing.T) {
		t.Parallel()
		script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{
			toolCall("1", "delegate_to_agent", `{"agent_id":"coder"}`), toolCall("2", "delegate_to_agent", `{"agent_id":"weather"}`),
		}}, llmtest.Step{Last: "delegate_to_agent must be the only call", Text: "ok"})
		if answer, err := handle(t, delegating(nil), script, overlord.Input{Message: "go", AgentID: "cook", Journal: &notes{}}); err != nil || answer.AgentID != "cook" {
			t.Fatalf("answer %+v, %v", answer, err)
		}
	})
}

func TestDelegation_AskUserAsksFirst(t *testing.T) {
	t.Parallel()
	f := delegating(func(f *manifest.Formation) { f.Agents[1].Delegation = manifest.DelegateAskUser })
	script := llmtest.NewScript(t, llmtest.Step{Calls: []chat.ToolCall{toolCall("1", "delegate_to_agent", `{"agent_id":"coder","reason":"It is a program."}`)}})
	answer, text, err := handleShown(t, f, script, overlord.Input{Message: "fix it", AgentID: "cook", RequestID: "r1"})
	if err != nil || answer.Question == nil {
		t.Fatalf("answer %+v, %v", answer, err)
	}
	const prompt = "Cook would like to hand this over to Coder (It is a program). Is that all right?"
	q := answer.Question
	if answer.Content != prompt || text != prompt || q.Kind != "delegation" || q.Message != "fix it" || q.RequestID != "r1" || len(q.Options) != 2 {
		t.Fatalf("answer %+v, question %+v, shown %q", answer, q, text)
	}
	history := []chat.Message{{Role: chat.User, Content: "fix it"}, {Role: chat.Assistant, Content: prompt}}
	for reply, tc := range map[string]struct {
		agent string
		note  string
	}{
		"yes": {"coder", "Agent cook of your team has handed this conversation over to you."},
		"no":  {"cook", "You wanted to hand this over to agent coder, and the user said no."},
	} {
		t.Run(reply, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Last: "fix it", Text: "Fixed."})
			answer, err := handle(t, f, script, overlord.Input{Message: reply, Pending: q, History: history, RequestID: "r2"})
			if err != nil || answer.AgentID != tc.agent || answer.Content != "Fixed." || answer.Settles != chat.SettlesAnswered {
				t.Fatalf("answer %+v, %v", answer, err)
			}
			asked := script.Asked()[0]
			if len(asked.Messages) != 2 || !strings.Contains(asked.Messages[0].Content, tc.note) {
				t.Errorf("asked %+v", asked.Messages)
			}
			if tc.agent == "cook" && len(asked.Tools) != 2 {
				t.Errorf("after a no the agent can still hand over: %v", toolNames(script, 0))
			}
		})
	}
}

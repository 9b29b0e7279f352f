package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// run is the state of one task.
type run struct {
	agent *Agent
	voice
	task Task
	sink chat.Sink

	messages []chat.Message
	tools    map[string]Tool
	specs    []chat.ToolSpec
	prune    bool // old tool results are shortened in this run

	texts   []string // of the model steps so far, the answer in parts
	usage   chat.Usage
	model   string
	agents  []string // others that took part
	widgets []chat.Widget

	step    int    // model steps so far
	unsaved []byte // the last model step, not yet in the journal
	calls   int    // tool calls so far
	spent   time.Duration
	lastErr string
	sameErr int
	closed  string // why no more tools may be called; "" while they may
}

// loop is the run in its phases.
func (r *run) loop(ctx context.Context) (chat.Answer, error) {
	if err := r.admit(ctx); err != nil {
		return chat.Answer{}, err
	}
	if err := r.assemble(ctx); err != nil {
		return chat.Answer{}, err
	}
	for {
		reply, err := r.modelStep(ctx)
		if err != nil {
			return chat.Answer{}, err
		}
		if len(reply.Calls) == 0 {
			return r.answer(), nil
		}
		ending, err := r.toolStep(ctx, reply.Calls)
		if err != nil {
			return chat.Answer{}, err
		}
		if ending != nil {
			return r.endWith(ending)
		}
	}
}

// assemble makes the conversation that the model is shown: the system prompt,
// what was said before, the message with its files.
func (r *run) assemble(ctx context.Context) error {
	if err := r.equip(ctx); err != nil {
		return err
	}
	r.messages = make([]chat.Message, 0, len(r.task.History)+4)
	r.messages = append(r.messages, chat.Message{Role: chat.System, Content: r.systemPrompt()})
	r.messages = append(r.messages, r.task.History...)
	r.messages = append(r.messages, chat.Message{Role: chat.User, Content: r.task.Message})
	r.prune = r.prunes()
	return r.attach(ctx)
}

// answer is what the run ends with.
func (r *run) answer() chat.Answer {
	return chat.Answer{
		Content: strings.Join(r.texts, partBreak), AgentID: r.agent.cfg.Agent.ID, Model: r.model, Usage: r.usage,
		Widgets: r.widgets, Agents: r.tookPart(r.agent.cfg.Agent.ID),
	}
}

// endWith ends the run with the answer of a colleague that has taken over, or
// with what the user is needed for.
func (r *run) endWith(e *entry) (chat.Answer, error) {
	if last := e.last; last != nil {
		if err := r.delta(last.Content, true); err != nil {
			return chat.Answer{}, err
		}
		r.texts = append(slices.Clip(r.texts), last.Content)
		answer := r.answer()
		answer.Fixed, answer.Question = last.Fixed, last.Question
		answer.Widgets = append(slices.Clip(answer.Widgets), last.Widgets...)
		return answer, nil
	}
	answer := *e.handed
	answer.Usage = r.usage // the colleague's is in it
	answer.Widgets = append(slices.Clip(r.widgets), answer.Widgets...)
	answer.Agents = r.tookPart(answer.AgentID)
	return answer, nil
}

// tookPart lists the agents of the answer, the one that gives it first.
func (r *run) tookPart(first string) []string {
	out := []string{first}
	for _, id := range append([]string{r.agent.cfg.Agent.ID}, r.agents...) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// wording gives a failure the words that the agent's error_handling asks for:
// the technical ones stay in the chain for the log. Faults that a caller acts
// upon by name keep theirs.
func (a *Agent) wording(err error) error {
	switch a.cfg.Agent.SystemBehavior.ErrorHandling {
	case "graceful", "user-friendly":
	default:
		return err
	}
	f := fault.From(err)
	kind := f.Kind
	switch {
	case f.Name != "":
		return err
	case kind == fault.Internal: // its message would not be served
		kind = fault.Failed
	case kind != fault.Failed && kind != fault.BadGateway && kind != fault.Unavailable:
		return err
	}
	return fault.Wrap(kind, "", "I could not finish this because something that I need is not working. "+
		"Please try again in a moment.", err)
}

// tell emits an event of the run to who observes.
func (r *run) tell(ctx context.Context, name string, err error) {
	if !telemetry.Listening(ctx) {
		return
	}
	e := telemetry.Event{Name: name, AgentID: r.agent.cfg.Agent.ID, Message: "Agent " + r.agent.cfg.Agent.ID + " " + strings.TrimPrefix(name, "agent.")}
	if name != "agent.started" {
		e.Data = map[string]any{"model_steps": r.step, "tool_calls": r.calls, "total_tokens": r.usage.TotalTokens}
	}
	if err != nil {
		e.Level, e.Message = telemetry.Error, e.Message+": "+fault.From(err).Message
	}
	telemetry.Emit(ctx, e)
}

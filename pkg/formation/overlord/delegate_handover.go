package overlord

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// kindDelegation marks the question whether an agent may hand over.
const kindDelegation = "delegation"

// handOver gives the conversation to another agent: its answer is the answer.
type handOver struct {
	seat *seat
	spec chat.ToolSpec
}

func (h *handOver) Spec() chat.ToolSpec { return h.spec }

func (h *handOver) Alone() bool { return true }

// Call is not what a hand-over is for: it has no result.
func (h *handOver) Call(context.Context, chat.Invocation) (chat.ToolResult, error) {
	return toolError("A hand-over has no result."), nil
}

// handOff says who hands over to whom; it is also kept with the question to
// the user.
type handOff struct {
	From   string `json:"from"`
	To     string `json:"agent_id"`
	Reason string `json:"reason"`
}

func (h *handOver) Work(ctx context.Context, in chat.Invocation, said []string) (work agent.Work, err error) {
	var off handOff
	if !readArgs(in.Args, &off) {
		return agent.Work{Result: unreadable()}, nil
	}
	off.From = h.seat.agent.ID
	to, why := h.seat.refuses(off.To)
	if why != "" {
		return agent.Work{Result: toolError(why)}, nil
	}
	if h.seat.agent.Delegation == manifest.DelegateAskUser {
		return h.seat.askFirst(to, off)
	}
	ctx, span := h.seat.span(ctx, to, "handover")
	defer func() { span.End(err) }()
	shown := false
	sink := func(e chat.Event) error {
		shown = shown || e.Type == chat.Content
		return h.seat.table.sink(e)
	}
	next := h.seat.below(to, in.Step)
	next.answers = true
	answer, err := next.run(ctx, h.seat.table.handed(off, said), sink)
	if err != nil {
		if fatal(ctx, err) {
			return agent.Work{}, err
		}
		return agent.Work{Result: toolError(failedText(to.ID, err)), Agents: []string{to.ID}, Shown: shown}, nil
	}
	return agent.Work{Answer: &answer, Usage: answer.Usage, Agents: answer.Agents}, nil
}

// handed is the task of who takes over: the user's message as it was.
func (t *table) handed(off handOff, said []string) agent.Task {
	note := "Agent " + off.From + " of your team has handed this conversation over to you. Answer the user's message yourself; " +
		"do not mention the hand-over unless it matters to the user."
	if reason := strings.TrimSpace(off.Reason); reason != "" {
		note += "\nWhat it said: " + reason
	}
	return agent.Task{Message: t.in.Message, Files: t.in.Files, History: t.in.History, Context: []string{note}, Said: said}
}

// askFirst ends the run with the question whether to hand over.
func (s *seat) askFirst(to *manifest.Agent, off handOff) (agent.Work, error) {
	state, err := json.Marshal(off)
	if err != nil {
		return agent.Work{}, fmt.Errorf("encode hand-over: %w", err)
	}
	prompt := fmt.Sprintf("%s would like to hand this over to %s. Is that all right?", s.agent.Name, to.Name)
	if reason := strings.TrimSpace(off.Reason); reason != "" {
		prompt = fmt.Sprintf("%s would like to hand this over to %s (%s). Is that all right?", s.agent.Name, to.Name, strings.TrimRight(reason, "."))
	}
	return agent.Work{Last: &chat.Answer{Content: prompt, Question: &chat.Question{
		Kind: kindDelegation, Prompt: prompt, State: state,
		Options: []chat.Option{{Value: "yes", Label: "Yes"}, {Value: "no", Label: "No"}},
	}}}, nil
}

// delegated goes on when the user has said whether an agent may hand over: yes
// lets the other one answer the message that waited, anything else the agent
// itself.
func (o *Overlord) delegated(ctx context.Context, in Input, r replied, sink chat.Sink) (chat.Answer, error) {
	var off handOff
	if err := json.Unmarshal(r.Question.State, &off); err != nil {
		return chat.Answer{}, fmt.Errorf("decode the hand-over that waits: %w", err)
	}
	reply := in.Message
	in.History = withoutQuestion(in.History, r.Question)
	in.Message = r.Question.Message
	t := o.newTable(in, sink)
	from, to := o.cfg.Formation.Agent(off.From), o.cfg.Formation.Agent(off.To)
	switch yes := r.Option != nil && r.Option.Value == "yes"; {
	case yes && to != nil:
		s := t.first(to)
		s.chain = []string{off.From, off.To}
		return s.run(ctx, t.handed(off, nil), t.sink)
	case from == nil: // gone with an update
		return o.dispatch(ctx, in, sink)
	default:
		s := t.first(from)
		s.alone = true
		note := "You wanted to hand this over to agent " + off.To + ", and the user said no. Answer yourself."
		if r.Option == nil && strings.TrimSpace(reply) != "" {
			note = "You wanted to hand this over to agent " + off.To + ". Asked about it, the user said: " + reply + "\nAnswer yourself."
		}
		return s.run(ctx, agent.Task{Message: in.Message, Files: in.Files, History: in.History, Context: []string{note}}, t.sink)
	}
}

// withoutQuestion takes the message that waited and the question about it off
// the end of a conversation: the message is put again.
func withoutQuestion(history []chat.Message, q chat.Question) []chat.Message {
	n := len(history)
	if n < 2 || history[n-1].Role != chat.Assistant || history[n-2].Role != chat.User || history[n-2].Content != q.Message {
		return history
	}
	return slices.Clip(history[:n-2])
}

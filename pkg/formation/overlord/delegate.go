package overlord

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// Step is a finished step of a turn, as agents journal it.
type Step = agent.Step

// The bounds of delegation in one turn.
const (
	maxDepth     = 3  // agents that work for agents
	maxSubRuns   = 10 // of all agents together
	maxParallel  = 4  // consultations at once
	maxConsulted = 8  // questions of one call
)

// table is what the runs of one turn share when its agents work for each other.
type table struct {
	overlord *Overlord
	in       Input
	sink     chat.Sink
	runs     atomic.Int64 // begun for other agents
}

// seat is an agent's place in a turn.
type seat struct {
	table   *table
	agent   *manifest.Agent
	chain   []string      // who works for whom down to this one, the first to be asked first
	answers bool          // its answer goes to the user, not to another agent
	alone   bool          // it must not hand over: the user has said no
	journal agent.Journal // of its run
}

// newTable opens a turn's table.
func (o *Overlord) newTable(in Input, sink chat.Sink) *table {
	return &table{overlord: o, in: in, sink: agent.Serial(sink)}
}

// first seats the agent that the user's message goes to.
func (t *table) first(a *manifest.Agent) *seat {
	return &seat{table: t, agent: a, chain: []string{a.ID}, answers: true, journal: t.in.Journal}
}

// below seats an agent that works for this one; step names the call in the
// journal of this one's run.
func (s *seat) below(to *manifest.Agent, step string) *seat {
	return &seat{
		table: s.table, agent: to, chain: append(slices.Clip(s.chain), to.ID), journal: agent.Below(s.journal, step+"/"),
	}
}

// run has the agent work on a task of its seat.
func (s *seat) run(ctx context.Context, task agent.Task, sink chat.Sink) (chat.Answer, error) {
	in := &s.table.in
	task.Journal, task.Tools = s.journal, s.tools()
	task.Deltas = in.Deltas && s.answers
	task.User, task.Session, task.Request = in.UserID, in.SessionID, in.RequestID
	if err := sink(chat.Event{Type: chat.Progress, Stage: chat.StageAgentProcessing, Content: "Agent " + s.agent.ID + " is working"}); err != nil {
		return chat.Answer{}, err
	}
	return s.table.overlord.agents[s.agent.ID].Run(ctx, task, sink)
}

// tools are those by which the agent may have others work.
func (s *seat) tools() []agent.Tool {
	a := s.agent
	specs := s.table.overlord.delegates[a.ID]
	if specs == nil || len(s.chain) > maxDepth {
		return nil
	}
	out := []agent.Tool{&consult{seat: s, spec: specs.consult}, &consultAll{seat: s, spec: specs.consultAll}}
	if s.answers && !s.alone {
		out = append(out, &handOver{seat: s, spec: specs.handOver})
	}
	return out
}

// refuses tells why another agent can't be asked; "" when it can.
func (s *seat) refuses(id string) (to *manifest.Agent, why string) {
	to = s.table.overlord.cfg.Formation.Agent(id)
	switch {
	case to == nil:
		return nil, fmt.Sprintf("There is no agent %q.", id)
	case id == s.agent.ID:
		return nil, fmt.Sprintf("You are %s yourself.", id)
	case slices.Contains(s.chain, id):
		return nil, fmt.Sprintf("Agent %s is at work on this already (%s). Do it yourself, or ask another one.", id, strings.Join(s.chain, " → "))
	case s.table.runs.Add(1) > maxSubRuns:
		return nil, fmt.Sprintf("Agents have asked each other %d times, which is the most in one turn. Answer with what is known.", maxSubRuns)
	}
	return to, ""
}

// fatal tells that a failed run ends the turn and is nothing for an agent to
// work around.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || fault.NameOf(err) == "UNKNOWN_OUTCOME"
}

func toolError(text string) chat.ToolResult { return chat.ToolResult{IsError: true, Content: text} }

// readArgs reads arguments, which fit the schema when they come from a model.
func readArgs(args json.RawMessage, into any) bool { return json.Unmarshal(args, into) == nil }

func unreadable() chat.ToolResult { return toolError("The arguments can't be read.") }

func failedText(id string, err error) string {
	return fmt.Sprintf("Agent %s could not answer: %s", id, fault.From(err).Message)
}

// consult asks another agent and goes on with its answer.
type consult struct {
	seat *seat
	spec chat.ToolSpec
}

func (c *consult) Spec() chat.ToolSpec { return c.spec }

func (c *consult) Alone() bool { return false }

// Call is Work for those who want no more than the result.
func (c *consult) Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error) {
	work, err := c.Work(ctx, in, nil)
	return work.Result, err
}

// question is what an agent asks another.
type question struct {
	Agent    string `json:"agent_id"`
	Question string `json:"question"`
}

func (c *consult) Work(ctx context.Context, in chat.Invocation, _ []string) (agent.Work, error) {
	var q question
	if !readArgs(in.Args, &q) {
		return agent.Work{Result: unreadable()}, nil
	}
	return c.seat.consult(ctx, q, in.Step)
}

// consult has another agent answer a question.
func (s *seat) consult(ctx context.Context, q question, step string) (work agent.Work, err error) {
	to, why := s.refuses(q.Agent)
	if why != "" {
		return agent.Work{Result: toolError(why)}, nil
	}
	ctx, span := s.span(ctx, to, "consult")
	defer func() { span.End(err) }()
	answer, err := s.below(to, step).run(ctx, agent.Task{Message: q.Question, Context: []string{
		"Agent " + s.agent.Name + " of your team asks you this. Your answer goes to that agent, not to the user: " +
			"give what you know and what you found out, without greeting or questions.",
	}}, s.table.sink)
	if err != nil {
		if fatal(ctx, err) {
			return agent.Work{}, err
		}
		return agent.Work{Result: toolError(failedText(to.ID, err)), Agents: []string{to.ID}}, nil
	}
	if answer.Question != nil || answer.Fixed { // without the user there is no answer
		return agent.Work{Usage: answer.Usage, Agents: answer.Agents, Last: &answer}, nil
	}
	return agent.Work{
		Result: chat.ToolResult{Content: answer.Content, Widgets: answer.Widgets}, Usage: answer.Usage, Agents: answer.Agents,
	}, nil
}

func (s *seat) span(ctx context.Context, to *manifest.Agent, mode string) (context.Context, *telemetry.Span) {
	ctx, span := telemetry.Start(ctx, telemetry.KindDelegation, s.agent.ID+" → "+to.ID)
	span.Set("from", s.agent.ID)
	span.Set("to", to.ID)
	span.Set("mode", mode)
	telemetry.Emit(ctx, telemetry.Event{
		Name: "agent.delegated", AgentID: s.agent.ID, Message: "Agent " + s.agent.ID + " asks " + to.ID,
		Data: map[string]any{"to": to.ID, "mode": mode},
	})
	return ctx, span
}

// consultAll asks several agents at once.
type consultAll struct {
	seat *seat
	spec chat.ToolSpec
}

func (c *consultAll) Spec() chat.ToolSpec { return c.spec }

func (c *consultAll) Alone() bool { return false }

// Call is Work for those who want no more than the result.
func (c *consultAll) Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error) {
	work, err := c.Work(ctx, in, nil)
	return work.Result, err
}

func (c *consultAll) Work(ctx context.Context, in chat.Invocation, _ []string) (agent.Work, error) {
	var args struct {
		Questions []question `json:"questions"`
	}
	if !readArgs(in.Args, &args) {
		return agent.Work{Result: unreadable()}, nil
	}
	works := make([]agent.Work, len(args.Questions))
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i, q := range args.Questions {
		group.Go(func() (err error) {
			works[i], err = c.seat.consult(within, q, fmt.Sprintf("%s/%d", in.Step, i))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return agent.Work{}, err
	}
	all := agent.Work{Result: chat.ToolResult{IsError: true}}
	var text strings.Builder
	for i, w := range works {
		fmt.Fprintf(&text, "=== Agent %s ===\n%s\n\n", args.Questions[i].Agent, w.Result.Content)
		all.Result.IsError = all.Result.IsError && w.Result.IsError
		all.Result.Widgets = append(all.Result.Widgets, w.Result.Widgets...)
		all.Usage = all.Usage.Add(w.Usage)
		all.Agents = append(all.Agents, w.Agents...)
		if all.Last == nil {
			all.Last = w.Last
		}
	}
	all.Result.Content = strings.TrimRight(text.String(), "\n")
	return all, nil
}

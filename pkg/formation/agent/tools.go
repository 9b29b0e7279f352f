package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// equip asks for the tools of this run.
func (r *run) equip(ctx context.Context) error {
	tools := r.task.Tools
	if r.agent.cfg.Tools != nil {
		own, err := r.agent.cfg.Tools(ctx, r.who())
		if err != nil {
			return fmt.Errorf("tools of agent %s: %w", r.agent.cfg.Agent.ID, err)
		}
		tools = append(slices.Clip(own), tools...)
	}
	if len(tools) == 0 {
		return nil
	}
	r.tools, r.specs = make(map[string]Tool, len(tools)), make([]chat.ToolSpec, 0, len(tools))
	for _, t := range tools {
		spec := t.Spec()
		if r.tools[spec.Name] == nil {
			r.tools[spec.Name] = t
			r.specs = append(r.specs, spec)
		}
	}
	return nil
}

// who is the part of an invocation that all calls of the run share.
func (r *run) who() chat.Invocation {
	return chat.Invocation{Agent: r.agent.cfg.Agent.ID, User: r.task.User, Session: r.task.Session, Request: r.task.Request}
}

// pending is one call of a tool step.
type pending struct {
	call  chat.ToolCall
	step  string // its name in the journal
	tool  Tool   // nil for a tool that does not exist
	spec  chat.ToolSpec
	begun bool // the mark that it was begun is durable
	known bool // entry is its outcome
	stale bool // entry is from an earlier life
	entry entry
}

// colleague returns the tool as one behind which agents work, nil when it is
// none.
func (p *pending) colleague() Colleague {
	c, _ := p.tool.(Colleague)
	return c
}

// repeatable tells that the call may be made again when nobody knows whether
// it took effect.
func (p *pending) repeatable() bool {
	return p.spec.ReadOnly || p.spec.Idempotent || p.colleague() != nil
}

// toolStep runs the calls of one model step, several at once, and adds their
// results to the conversation in the order the model asked. It returns the
// entry that ends the run, when there is one.
func (r *run) toolStep(ctx context.Context, calls []chat.ToolCall) (*entry, error) {
	todo, err := r.prepare(calls)
	if err != nil {
		return nil, err
	}
	for _, p := range todo {
		switch {
		case p.stale && (p.colleague() == nil || p.entry.Refused):
			r.record(ctx, telemetry.Replayed(ctx, telemetry.KindTool, p.call.Name), p)
		case p.entry.Refused:
			_, span := telemetry.Start(ctx, telemetry.KindTool, p.call.Name)
			r.record(ctx, span, p)
		}
	}
	// The frames of these events go into the commit of begin.
	for i, c := range calls {
		if err := r.emit(chat.Event{
			Type: chat.Progress, Stage: chat.StageToolCall, ToolName: c.Name, Content: "Calling " + c.Name, Soon: i < len(calls)-1,
		}); err != nil {
			return nil, err
		}
	}
	if err := r.begin(ctx, todo); err != nil {
		return nil, err
	}
	began, timed := time.Now(), false
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(r.agent.limits.ParallelToolCalls)
	for _, p := range todo {
		if !p.known {
			timed = timed || p.colleague() == nil
			group.Go(func() error { return r.make(groupCtx, p) })
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if timed { // agents have their own time
		r.spent += time.Since(began)
	}
	return r.gather(todo), nil
}

// prepare sorts the calls: known from an earlier life, refused, or to be made.
func (r *run) prepare(calls []chat.ToolCall) ([]*pending, error) {
	todo := make([]*pending, len(calls))
	for i, c := range calls {
		p := &pending{call: c, step: "tool/" + strconv.Itoa(r.step) + "/" + strconv.Itoa(i), tool: r.tools[c.Name]}
		todo[i] = p
		if p.tool != nil {
			p.spec = p.tool.Spec()
		}
		r.calls++
		payload, known := r.task.Journal.Done(p.step)
		if known {
			if err := json.Unmarshal(payload, &p.entry); err != nil {
				return nil, fmt.Errorf("decode journalled step %s: %w", p.step, err)
			}
			p.known, p.stale = true, true
			continue
		}
		if _, p.begun = r.task.Journal.Done(started(p.step)); p.begun && !p.repeatable() {
			return nil, fault.Errorf(fault.Failed, "UNKNOWN_OUTCOME",
				"a call of tool %s was cut and it is unknown whether it took effect; check before asking again", c.Name)
		}
		if why := r.refuse(p, len(calls) == 1); why != "" {
			p.known, p.entry.Refused = true, true
			p.entry.ToolResult = chat.ToolResult{CallID: c.ID, IsError: true, Content: why}
		}
	}
	return todo, nil
}

// started is the mark of a call in the journal: it is durable before the tool
// is touched, so a call that has it and no result is one whose outcome nobody
// knows. Calls that may be repeated need none.
func started(step string) string { return step + "/started" }

// begin journals, in one commit, the model step, what was refused of it, and
// the marks of the calls that are made at once.
func (r *run) begin(ctx context.Context, todo []*pending) error {
	steps := make([]Step, 0, len(todo)+1)
	if r.unsaved != nil {
		steps = append(steps, Step{"model/" + strconv.Itoa(r.step-1), r.unsaved})
		r.unsaved = nil
	}
	begins := 0
	for _, p := range todo {
		switch {
		case p.stale:
		case p.known:
			payload, err := p.entry.encode()
			if err != nil {
				return err
			}
			steps = append(steps, Step{p.step, payload})
		default:
			if begins++; begins <= r.agent.limits.ParallelToolCalls && !p.begun && !p.repeatable() {
				steps = append(steps, Step{started(p.step), []byte("{}")})
				p.begun = true
			}
		}
	}
	if len(steps) == 0 {
		return nil
	}
	if err := r.task.Journal.SaveAll(ctx, steps); err != nil {
		return fmt.Errorf("journal model step: %w", err)
	}
	return nil
}

// gather adds the results to the conversation and closes the tools when a
// limit is reached.
func (r *run) gather(todo []*pending) *entry {
	var seen []chat.Part
	var ending *entry
	for _, p := range todo {
		e := &p.entry
		content := e.Content
		parts, hidden := r.seen(e.Parts)
		if seen = append(seen, parts...); hidden > 0 {
			content += fmt.Sprintf("\n[%d files came with it that can't be shown to you]", hidden)
		}
		r.messages = append(r.messages, chat.Message{Role: chat.Tool, Content: content, CallID: p.call.ID})
		r.usage = r.usage.Add(e.Usage)
		r.agents = append(r.agents, e.Agents...)
		r.widgets = append(r.widgets, e.Widgets...)
		if e.ends() {
			ending = e
		}
	}
	if len(seen) > 0 {
		r.messages = append(r.messages, chat.Message{Role: chat.User, Content: "[What the tools returned:]", Parts: seen})
	}
	for _, p := range todo {
		r.noteError(p.call.Name, p.entry.ToolResult)
	}
	limits := r.agent.limits
	if r.calls >= limits.ToolCalls {
		r.close(fmt.Sprintf("%d tool calls were made, which is the most in one turn.", limits.ToolCalls))
	}
	if r.spent >= limits.ToolsTimeout {
		r.close(fmt.Sprintf("The tools have used their time of %s.", limits.ToolsTimeout))
	}
	return ending
}

// seen are the parts that the agent's model can be shown, and how many others
// there are.
func (r *run) seen(parts []chat.Part) (out []chat.Part, hidden int) {
	for _, p := range parts {
		use, _, ok := r.agent.cfg.Formation.LLM.For(capabilities[p.Kind], r.agent.cfg.Agent.LLM.Models)
		if ok && use.ID == r.use.ID {
			out = append(out, p)
		} else {
			hidden++
		}
	}
	return out, hidden
}

// noteError closes the tools of a run that keeps hitting the same error.
func (r *run) noteError(tool string, res chat.ToolResult) {
	if !res.IsError {
		r.lastErr, r.sameErr = "", 0
		return
	}
	key := tool + ": " + res.Content
	if key != r.lastErr {
		r.lastErr, r.sameErr = key, 0
	}
	if r.sameErr++; r.sameErr >= r.agent.limits.RepeatedErrors {
		r.close(fmt.Sprintf("Tool %s failed %d times in a row with the same error: %s", tool, r.sameErr, sentence(res.Content)))
	}
}

// sentence is the first line of a text, short, with a full stop.
func sentence(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 200 {
		line = strings.ToValidUTF8(line[:200], "") + "…"
	}
	return strings.TrimRight(line, ".") + "."
}

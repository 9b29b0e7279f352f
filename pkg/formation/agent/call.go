package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// Ending is an error of a call before which the user has to do something. It
// ends the run with its Answer, whose words no model changes.
type Ending interface {
	error
	Answer() chat.Answer
}

// make makes one call and journals what came of it.
func (r *run) make(ctx context.Context, p *pending) (err error) {
	if !p.begun && !p.repeatable() {
		if err := r.task.Journal.Save(ctx, started(p.step), []byte("{}")); err != nil {
			return fmt.Errorf("journal tool call: %w", err)
		}
	}
	if colleague := p.colleague(); colleague != nil {
		err = r.consult(ctx, p, colleague)
	} else {
		err = r.call(ctx, p)
	}
	if err != nil || p.entry.ends() {
		return err
	}
	p.entry.CallID = p.call.ID
	limit(&p.entry.ToolResult, r.agent.limits.ToolOutput)
	payload, err := p.entry.encode()
	if err != nil {
		return err
	}
	// What was done is kept also when the turn has been cut meanwhile: else the
	// next life would not know.
	if err := r.task.Journal.Save(context.WithoutCancel(ctx), p.step, payload); err != nil {
		return fmt.Errorf("journal tool result: %w", err)
	}
	return nil
}

// consult lets a colleague work.
func (r *run) consult(ctx context.Context, p *pending, c Colleague) error {
	work, err := c.Work(ctx, r.invocation(p, nil), r.texts)
	if err != nil {
		return err
	}
	p.entry = entry{ToolResult: work.Result, Usage: work.Usage, Agents: work.Agents, handed: work.Answer, last: work.Last}
	if work.Shown && work.Answer == nil {
		return r.restart()
	}
	return nil
}

func (r *run) invocation(p *pending, show func(chat.ToolProgress)) chat.Invocation {
	in := r.who()
	in.CallID, in.Step, in.Args, in.Progress = p.call.ID, p.step, p.call.Args, show
	return in
}

// call makes a call of a tool, once more when it was cut and may be repeated.
// That it was cut is an answer, too, which the model is told.
func (r *run) call(ctx context.Context, p *pending) error {
	ctx, span := telemetry.Start(ctx, telemetry.KindTool, p.call.Name)
	left := max(r.agent.limits.ToolsTimeout-r.spent, time.Millisecond)
	limit := min(r.agent.limits.ToolTimeout, left)
	limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: more than %s", errToolTimeout, limit))
	defer cancel()
	var err error
	if p.entry.ToolResult, err = r.attempt(limited, p); err != nil && p.repeatable() && limited.Err() == nil && mayHelp(err) {
		p.entry.ToolResult, err = r.attempt(limited, p)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		span.End(cause)
		return cause
	}
	if need, ok := errors.AsType[Ending](err); ok {
		answer := need.Answer()
		answer.Fixed = true
		p.entry.last = &answer
		p.entry.ToolResult = chat.ToolResult{IsError: true, Content: sentence(need.Error())}
	} else if err != nil {
		telemetry.Log(ctx, r.agent.cfg.Log).Warn().Err(err).Str("agent", r.agent.cfg.Agent.ID).Str("tool", p.call.Name).Msg("tool call was cut")
		p.entry.ToolResult = chat.ToolResult{IsError: true, Content: cutText(p, err)}
	}
	r.record(ctx, span, p)
	return nil
}

// mayHelp tells whether another attempt may: not when the user is needed first,
// nor when the error comes from who knows how far the call came: it has tried
// again where that is right. A server that died of a call would die again.
func mayHelp(err error) bool {
	if _, ends := errors.AsType[Ending](err); ends {
		return false
	}
	_, ok := errors.AsType[beginner](err)
	return !ok
}

// beginner is an error that knows whether the call was begun.
type beginner interface {
	error
	Begun() bool
}

var errToolTimeout = errors.New("the call took too long")

// attempt makes one attempt. It returns when ctx ends, also when the tool does
// not.
func (r *run) attempt(ctx context.Context, p *pending) (chat.ToolResult, error) {
	show := &progress{tool: p.call.Name, sink: r.sink}
	defer show.end()
	type outcome struct {
		result chat.ToolResult
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		var out outcome
		defer func() {
			if v := recover(); v != nil {
				out.err = fmt.Errorf("the tool panicked: %v", v)
			}
			done <- out
		}()
		out.result, out.err = p.tool.Call(ctx, r.invocation(p, show.show))
	}()
	select {
	case out := <-done:
		if out.err != nil && ctx.Err() != nil {
			out.err = context.Cause(ctx)
		}
		return out.result, out.err
	case <-ctx.Done():
		return chat.ToolResult{}, context.Cause(ctx)
	}
}

// cutText tells the model of a call that did not come to its end.
func cutText(p *pending, err error) string {
	text := sentence(err.Error())
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		text = sentence(f.Message)
	}
	b, ok := errors.AsType[beginner](err)
	switch {
	case ok && !b.Begun():
		return "The tool could not be called, nothing was done: " + text
	case p.repeatable():
		return "The call did not come to its end: " + text
	}
	return "The call was cut and its outcome is unknown: " + text +
		" It may have taken effect. Do not simply repeat it: find out first, or tell the user that it is not known."
}

// record tells observers of a call, made or refused.
func (r *run) record(ctx context.Context, span *telemetry.Span, p *pending) {
	defer span.End(nil)
	if telemetry.Listening(ctx) && !p.stale {
		telemetry.Emit(ctx, r.calledEvent(p))
	}
	if span == nil {
		return
	}
	server, name, ok := strings.Cut(p.call.Name, "__")
	if !ok {
		server, name = "", p.call.Name
	}
	if server != "" && p.tool != nil { // a tool that does not exist has the name only that the model gave it
		span.Set(telemetry.AttrServer, server)
	}
	if p.tool != nil {
		span.Set(telemetry.AttrTool, name)
	}
	if p.entry.Refused {
		span.Set(telemetry.AttrRefused, true)
	}
	span.Set(telemetry.AttrAgent, r.agent.cfg.Agent.ID)
	span.Set("read_only", p.spec.ReadOnly)
	span.Set(telemetry.AttrIsError, p.entry.IsError)
	if len(p.call.Args) > 0 {
		span.Set(telemetry.AttrArguments, p.call.Args)
	}
	span.Set(telemetry.AttrResult, p.entry.Content)
}

// calledEvent tells of a call.
func (r *run) calledEvent(p *pending) telemetry.Event {
	e := telemetry.Event{
		Name: "agent.tool_called", AgentID: r.agent.cfg.Agent.ID, Message: "Agent " + r.agent.cfg.Agent.ID + " called " + p.call.Name,
		Data: map[string]any{"tool": p.call.Name, "is_error": p.entry.IsError},
	}
	if p.entry.Refused {
		e.Name, e.Message = "agent.tool_refused", "A call of "+p.call.Name+" by agent "+r.agent.cfg.Agent.ID+" was refused: "+sentence(p.entry.Content)
	}
	return e
}

// limit cuts what a tool returned to so many bytes each of text, structure and
// a file.
func limit(res *chat.ToolResult, most int) {
	if len(res.Content) > most {
		res.Content = strings.ToValidUTF8(res.Content[:most], "") + fmt.Sprintf("\n[cut: %d of %d bytes shown]", most, len(res.Content))
	}
	if len(res.Structured) > most {
		res.Structured = nil
	}
	kept := res.Parts[:0:0]
	for _, p := range res.Parts {
		if len(p.Data) > most {
			res.Content += fmt.Sprintf("\n[%s of %d bytes left out: the limit is %d]", p.Kind, len(p.Data), most)
			continue
		}
		kept = append(kept, p)
	}
	res.Parts = kept
}

// progressText puts progress into words: what the tool says, or how far it is.
func progressText(p chat.ToolProgress) string {
	switch {
	case p.Message != "":
		return p.Message
	case p.Total > 0:
		return fmt.Sprintf("%.0f%%", 100*min(p.Done/p.Total, 1))
	}
	return ""
}

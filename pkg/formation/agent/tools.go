package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
)

// equip asks for the tools of this run.
func (r *run) equip(ctx context.Context) error {
	if r.agent.cfg.Tools == nil {
		return nil
	}
	tools, err := r.agent.cfg.Tools(ctx, r.who())
	if err != nil {
		return fmt.Errorf("tools of agent %s: %w", r.agent.cfg.Agent.ID, err)
	}
	r.tools = make(map[string]Tool, len(tools))
	for _, t := range tools {
		spec := t.Spec()
		if r.tools[spec.Name] == nil {
			r.specs = append(r.specs, spec)
		}
		r.tools[spec.Name] = t
	}
	return nil
}

// who is the part of an invocation that all calls of the run share.
func (r *run) who() chat.Invocation {
	return chat.Invocation{Agent: r.agent.cfg.Agent.ID, User: r.task.User, Session: r.task.Session, Request: r.task.Request}
}

// toolStep runs the calls of one model step, several at once, and adds their
// results to the conversation in the order the model asked.
func (r *run) toolStep(ctx context.Context, calls []chat.ToolCall) error {
	limits := r.agent.cfg.Limits
	if r.step > limits.ToolIterations {
		return fault.Errorf(fault.Failed, "", "agent %s asked for tools %d times in one turn; the limit is %d",
			r.agent.cfg.Agent.ID, r.step, limits.ToolIterations)
	}
	if r.calls += len(calls); r.calls > limits.ToolCalls {
		return fault.Errorf(fault.Failed, "", "agent %s made more than %d tool calls in one turn", r.agent.cfg.Agent.ID, limits.ToolCalls)
	}
	for _, c := range calls {
		if err := r.sink(chat.Event{Type: chat.Progress, Stage: chat.StageToolCall, ToolName: c.Name}); err != nil {
			return err
		}
	}
	results := make([]chat.ToolResult, len(calls))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(max(limits.ParallelToolCalls, 1))
	for i, c := range calls {
		group.Go(func() (err error) {
			results[i], err = r.call(groupCtx, "tool/"+strconv.Itoa(r.step)+"/"+strconv.Itoa(i), c)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, res := range results {
		r.messages = append(r.messages, chat.Message{Role: chat.Tool, Content: res.Content, CallID: calls[i].ID})
		if err := r.noteError(calls[i].Name, res); err != nil {
			return err
		}
	}
	return nil
}

// call runs one tool, or returns what it answered in an earlier life. The
// mark "started" is durable before the tool is touched: a call that has it and
// no result is one whose outcome nobody knows.
func (r *run) call(ctx context.Context, step string, c chat.ToolCall) (chat.ToolResult, error) {
	journal := r.task.Journal
	if payload, ok := journal.Done(step); ok {
		var res chat.ToolResult
		if err := json.Unmarshal(payload, &res); err != nil {
			return chat.ToolResult{}, fmt.Errorf("decode journalled step %s: %w", step, err)
		}
		return res, nil
	}
	res, known := r.refuse(c)
	if !known {
		tool := r.tools[c.Name]
		spec := tool.Spec()
		if _, started := journal.Done(step + "/started"); started && !spec.ReadOnly && !spec.Idempotent {
			return chat.ToolResult{}, fault.Errorf(fault.Failed, "UNKNOWN_OUTCOME",
				"a call of tool %s was cut and it is unknown whether it took effect; check before asking again", c.Name)
		}
		if err := journal.Save(ctx, step+"/started", []byte("{}")); err != nil {
			return chat.ToolResult{}, fmt.Errorf("journal tool call: %w", err)
		}
		in := r.who()
		in.CallID, in.Args = c.ID, c.Args
		var err error
		if res, err = tool.Call(ctx, in); err != nil {
			return chat.ToolResult{}, fmt.Errorf("call tool %s: %w", c.Name, err)
		}
	}
	res.CallID = c.ID
	if limit := r.agent.cfg.Limits.ToolOutput; len(res.Content) > limit {
		res.Content = strings.ToValidUTF8(res.Content[:limit], "") + fmt.Sprintf("\n[cut: %d of %d bytes shown]", limit, len(res.Content))
	}
	payload, err := json.Marshal(res)
	if err != nil {
		return chat.ToolResult{}, fmt.Errorf("encode tool result: %w", err)
	}
	if err := journal.Save(ctx, step, payload); err != nil {
		return chat.ToolResult{}, fmt.Errorf("journal tool result: %w", err)
	}
	return res, nil
}

// refuse answers calls that can't be made, for the model to mend.
func (r *run) refuse(c chat.ToolCall) (chat.ToolResult, bool) {
	if _, ok := r.tools[c.Name]; !ok {
		return chat.ToolResult{IsError: true, Content: fmt.Sprintf("There is no tool named %q.", c.Name)}, true
	}
	if len(c.Args) > 0 && !json.Valid(c.Args) {
		return chat.ToolResult{IsError: true, Content: "The arguments are not valid JSON. Send them again as one JSON object."}, true
	}
	return chat.ToolResult{}, false
}

// noteError ends a run that keeps hitting the same error.
func (r *run) noteError(tool string, res chat.ToolResult) error {
	if !res.IsError {
		r.lastErr, r.sameErr = "", 0
		return nil
	}
	key := tool + ": " + res.Content
	if key != r.lastErr {
		r.lastErr, r.sameErr = key, 0
	}
	if r.sameErr++; r.sameErr >= r.agent.cfg.Limits.RepeatedErrors {
		return fault.Errorf(fault.Failed, "", "tool %s failed %d times in a row with the same error: %s", tool, r.sameErr, firstLine(res.Content))
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	if len(line) > 200 {
		line = strings.ToValidUTF8(line[:200], "") + "…"
	}
	return line
}

package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// partBreak stands between the texts of two model steps in one answer.
const partBreak = "\n\n"

// modelStep asks the model once. A step that asks for tools is journalled by
// the tool step, in one commit with what that begins; the last step commits
// with the end of the turn.
func (r *run) modelStep(ctx context.Context) (modelReply, error) {
	if r.step >= r.agent.limits.ToolIterations {
		r.close(fmt.Sprintf("Tools were asked for %d times, which is the most in one turn.", r.step))
	}
	reply, done, err := r.journalled(ctx, "model/"+strconv.Itoa(r.step))
	switch {
	case err != nil:
	case done:
		err = r.delta(reply.Text, true)
	default:
		reply, err = r.think(ctx)
	}
	if err != nil {
		return modelReply{}, err
	}
	if r.closed != "" && len(reply.Calls) > 0 {
		if reply.Calls = nil; reply.Text == "" {
			return modelReply{}, fault.Errorf(fault.Failed, "", "agent %s found no answer. %s", r.agent.cfg.Agent.ID, r.closed)
		}
	}
	r.step++
	r.usage, r.model = r.usage.Add(reply.Usage), reply.Model
	if reply.Text != "" {
		r.texts = append(slices.Clip(r.texts), reply.Text)
	}
	if len(reply.Calls) > 0 {
		r.messages = append(r.messages, chat.Message{Role: chat.Assistant, Content: reply.Text, Calls: reply.Calls})
		if !done {
			if r.unsaved, err = reply.encode(); err != nil {
				return modelReply{}, fmt.Errorf("encode model step: %w", err)
			}
		}
	}
	return reply, nil
}

// close ends the use of tools in this run and tells the model so. The first
// reason stands.
func (r *run) close(reason string) {
	if r.closed != "" {
		return
	}
	r.closed = reason
	for i := len(r.messages) - 1; i >= 0 && r.messages[i].Role != chat.Assistant; i-- {
		if m := &r.messages[i]; m.Role == chat.Tool {
			m.Content += "\n\n[" + reason + " No more tools can be called now. Answer with what is known so far, and say what could not be done.]"
			return
		}
	}
}

func (r *run) journalled(ctx context.Context, step string) (reply modelReply, ok bool, err error) {
	payload, ok := r.task.Journal.Done(step)
	if !ok {
		return modelReply{}, false, nil
	}
	if reply, err = decodeReply(payload); err != nil {
		return modelReply{}, false, fmt.Errorf("decode journalled step %s: %w", step, err)
	}
	span := telemetry.Replayed(ctx, telemetry.KindModel, reply.Model)
	span.Set(telemetry.AttrAgent, r.agent.cfg.Agent.ID)
	span.Set(telemetry.AttrModel, reply.Model)
	span.Set(telemetry.AttrTokens, telemetry.Tokens{
		Input: reply.Usage.PromptTokens, Output: reply.Usage.CompletionTokens, Cached: reply.Usage.CachedTokens,
	})
	span.End(nil)
	return reply, true, nil
}

// think asks the model, and once more with less context when it says that
// there was too much.
func (r *run) think(ctx context.Context) (modelReply, error) {
	if r.step > 0 {
		if err := r.emit(chat.Event{Type: chat.Progress, Stage: chat.StageThinking, Content: "Thinking about what the tools answered"}); err != nil {
			return modelReply{}, err
		}
	}
	if r.use.ID == "" {
		return modelReply{}, fault.Errorf(fault.Failed, "", "agent %s has no text model: set llm.models in the manifest", r.agent.cfg.Agent.ID)
	}
	messages := r.trimmed()
	reply, err := r.ask(ctx, messages)
	if err == nil || ctx.Err() != nil || !tooLong(err) {
		return reply, err
	}
	if less, ok := r.shorter(messages); ok {
		telemetry.Log(ctx, r.agent.cfg.Log).Warn().Err(err).Str("agent", r.agent.cfg.Agent.ID).Msg("the conversation is too long for the model; asking with shorter tool results")
		return r.ask(ctx, less)
	}
	return reply, err
}

func (r *run) ask(ctx context.Context, messages []chat.Message) (modelReply, error) {
	req := llm.Request{
		Messages: messages, Settings: r.settings, Deltas: r.task.Deltas, Purpose: "agent",
		Account: r.account(), Tools: r.specs, NoCalls: r.closed != "",
		// Two versions of a long document look like two wordings of one question.
		Fresh: len(r.task.Files) > 0,
	}
	var text []byte
	var last llm.Chunk
	for chunk, err := range r.agent.cfg.Models.Stream(ctx, r.use.ID, req) {
		if err != nil {
			return modelReply{}, err
		}
		if chunk.Restarted {
			text = text[:0]
			if err := r.restart(); err != nil {
				return modelReply{}, err
			}
		}
		if chunk.Text != "" {
			if err := r.delta(chunk.Text, len(text) == 0); err != nil {
				return modelReply{}, err
			}
			text = append(text, chunk.Text...)
		}
		if chunk.Done {
			last = chunk
		}
	}
	return modelReply{Text: string(text), Calls: last.Calls, Usage: last.Usage, Model: last.Model}, nil
}

// delta shows a piece of the answer; first tells that it begins a part.
func (r *run) delta(text string, first bool) error {
	if first && len(r.texts) > 0 && text != "" {
		text = partBreak + text
	}
	return r.emit(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: text})
}

// restart voids what was emitted and emits the parts that still stand, so that
// the reader sees the same text from its beginning.
func (r *run) restart() error {
	if err := r.emit(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Restart: true}); err != nil {
		return err
	}
	for i, text := range r.texts {
		if i > 0 {
			text = partBreak + text
		}
		if err := r.emit(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: text}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) emit(e chat.Event) error {
	if e.Type == chat.Content && (!r.task.Deltas || (e.Content == "" && !e.Restart)) {
		return nil
	}
	return r.sink(e)
}

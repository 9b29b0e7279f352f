package overlord

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// refuse answers a threat with a fixed text; no agent and no further model sees
// the message.
func (o *Overlord) refuse(ctx context.Context, in Input, d Decision, sink chat.Sink) (chat.Answer, error) {
	telemetry.Log(ctx, o.cfg.Log).Warn().Str("threat", d.Threat()).Msg("a message was refused")
	telemetry.Emit(ctx, telemetry.Event{
		Level: telemetry.Warning, Name: "chat.refused", Message: "The message was refused", Data: map[string]any{"threat_type": d.Threat()},
	})
	answer := chat.Answer{Content: refusals[d.Threat()]}
	if !in.Deltas {
		return answer, nil
	}
	return answer, sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: answer.Content})
}

// converse answers small talk in the formation's own voice. When that does not
// work the agent of the decision answers.
func (o *Overlord) converse(ctx context.Context, in Input, d Decision, sink chat.Sink) (chat.Answer, error) {
	said := false
	answer, err := o.talk(ctx, in, func(e chat.Event) error {
		if !in.Deltas || e.Content == "" && !e.Restart {
			return nil
		}
		said = true
		e.Type, e.Stage = chat.Content, chat.StageResponseGeneration
		return sink(e)
	})
	if cause := context.Cause(ctx); cause != nil {
		return chat.Answer{}, cause
	}
	if err == nil {
		return answer, nil
	}
	telemetry.Log(ctx, o.cfg.Log).Warn().Err(err).Msg("small talk by model did not work; an agent answers")
	if said {
		if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Restart: true}); err != nil {
			return chat.Answer{}, err
		}
	}
	return o.runAgent(ctx, in, d, sink)
}

func (o *Overlord) talk(ctx context.Context, in Input, say chat.Sink) (chat.Answer, error) {
	use := o.cfg.Formation.OverlordUse()
	messages := make([]chat.Message, 0, len(in.History)+2)
	messages = append(messages, chat.Message{Role: chat.System, Content: o.own()})
	messages = append(messages, in.History...)
	messages = append(messages, chat.Message{Role: chat.User, Content: in.Message})
	return o.speak(ctx, in, use, speech{"overlord", "the overlord's model", messages}, say)
}

// speech is something that the overlord has a model say.
type speech struct {
	purpose, model string // model names it for people
	messages       []chat.Message
}

// speak asks a model and shows what it says, as it is said. Saying nothing is an
// error.
func (o *Overlord) speak(ctx context.Context, in Input, use manifest.ModelUse, s speech, say chat.Sink) (chat.Answer, error) {
	var text strings.Builder
	var last llm.Chunk
	for chunk, err := range o.cfg.Models.Stream(ctx, use.ID, llm.Request{
		Messages: s.messages, Settings: agent.CallSettings(use.Settings), Deltas: in.Deltas, Purpose: s.purpose,
		Account: llm.Account{User: in.UserID, Request: in.RequestID},
	}) {
		if err != nil {
			return chat.Answer{}, fmt.Errorf("ask %s: %w", s.model, err)
		}
		if chunk.Restarted {
			text.Reset()
		}
		if err := say(chat.Event{Content: chunk.Text, Restart: chunk.Restarted}); err != nil {
			return chat.Answer{}, err
		}
		text.WriteString(chunk.Text)
		if chunk.Done {
			last = chunk
		}
	}
	if strings.TrimSpace(text.String()) == "" {
		return chat.Answer{}, fmt.Errorf("%s %s said nothing", s.model, use.ID)
	}
	return chat.Answer{Content: text.String(), Model: last.Model, Usage: last.Usage}, nil
}

// own is the system prompt of the overlord when it speaks itself.
func (o *Overlord) own() string {
	var b strings.Builder
	if soul := o.cfg.Formation.Soul; soul != "" {
		b.WriteString(soul + "\n\n")
	}
	b.WriteString("You are the voice of a team. The user greets you, thanks you or makes small talk: answer briefly and kindly, in the language " +
		"of the message. Do no work and claim no facts; when the user seems to want something, say what the team can do. The team:\n")
	for i := range o.cfg.Formation.Agents {
		a := &o.cfg.Formation.Agents[i]
		b.WriteString("- " + a.Name + ": " + a.Description + "\n")
	}
	return strings.TrimSpace(b.String() + "\n" + agent.FormatLine(o.cfg.Formation.Overlord.Response.Format))
}

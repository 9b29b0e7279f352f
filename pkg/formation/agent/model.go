package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// partBreak stands between the texts of two model steps in one answer.
const partBreak = "\n\n"

// modelReply is a finished model step.
type modelReply struct {
	Text  string
	Calls []chat.ToolCall
	Usage chat.Usage
	Model string
}

// storedReply is a model step in the journal. Arguments are kept as text: a
// model may have written what is no JSON.
type storedReply struct {
	Text  string       `json:"text"`
	Calls []storedCall `json:"calls"`
	Usage chat.Usage   `json:"usage"`
	Model string       `json:"model"`
}

type storedCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Args string `json:"args"`
	Seal string `json:"seal,omitempty"`
}

func (m modelReply) encode() ([]byte, error) {
	s := storedReply{Text: m.Text, Usage: m.Usage, Model: m.Model}
	for _, c := range m.Calls {
		s.Calls = append(s.Calls, storedCall{ID: c.ID, Name: c.Name, Args: string(c.Args), Seal: c.Seal})
	}
	return json.Marshal(s)
}

func decodeReply(payload []byte) (modelReply, error) {
	var s storedReply
	if err := json.Unmarshal(payload, &s); err != nil {
		return modelReply{}, err
	}
	m := modelReply{Text: s.Text, Usage: s.Usage, Model: s.Model}
	for _, c := range s.Calls {
		m.Calls = append(m.Calls, chat.ToolCall{ID: c.ID, Name: c.Name, Args: json.RawMessage(c.Args), Seal: c.Seal})
	}
	return m, nil
}

// modelStep asks the model once. A step that asks for tools is journalled
// before they run; the last step commits with the end of the turn.
func (r *run) modelStep(ctx context.Context) (modelReply, error) {
	step := "model/" + strconv.Itoa(r.step)
	reply, done, err := r.journalled(step)
	if err != nil {
		return modelReply{}, err
	}
	if done {
		err = r.emit(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: r.lead() + reply.Text})
	} else {
		reply, err = r.ask(ctx)
	}
	if err != nil {
		return modelReply{}, err
	}
	if !done && len(reply.Calls) > 0 {
		payload, err := reply.encode()
		if err != nil {
			return modelReply{}, fmt.Errorf("encode model step: %w", err)
		}
		if err := r.task.Journal.Save(ctx, step, payload); err != nil {
			return modelReply{}, fmt.Errorf("journal model step: %w", err)
		}
	}
	r.step++
	r.usage, r.model = r.usage.Add(reply.Usage), reply.Model
	if reply.Text != "" {
		r.texts = append(r.texts, reply.Text)
	}
	if len(reply.Calls) > 0 {
		r.messages = append(r.messages, chat.Message{Role: chat.Assistant, Content: reply.Text, Calls: reply.Calls})
	}
	return reply, nil
}

func (r *run) journalled(step string) (reply modelReply, ok bool, err error) {
	payload, ok := r.task.Journal.Done(step)
	if !ok {
		return modelReply{}, false, nil
	}
	if reply, err = decodeReply(payload); err != nil {
		return modelReply{}, false, fmt.Errorf("decode journalled step %s: %w", step, err)
	}
	return reply, true, nil
}

// lead is what separates this step's text from the text before it.
func (r *run) lead() string {
	if len(r.texts) == 0 {
		return ""
	}
	return partBreak
}

func (r *run) ask(ctx context.Context) (modelReply, error) {
	req := llm.Request{
		Messages: r.messages, Settings: r.agent.settings, Deltas: r.task.Deltas, Purpose: "agent",
		Account: r.account(),
		// Two versions of a long document look like two wordings of one question.
		Fresh: len(r.task.Files) > 0,
	}
	if r.step < r.agent.cfg.Limits.ToolIterations {
		req.Tools = r.specs
	}
	if r.agent.use.ID == "" {
		return modelReply{}, fault.Errorf(fault.Failed, "", "agent %s has no text model: set llm.models in the manifest", r.agent.cfg.Agent.ID)
	}
	var text []byte
	var last llm.Chunk
	for chunk, err := range r.agent.cfg.Models.Stream(ctx, r.agent.use.ID, req) {
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

func (r *run) delta(text string, first bool) error {
	if first {
		text = r.lead() + text
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

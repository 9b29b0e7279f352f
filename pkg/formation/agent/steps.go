package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentformation/service/pkg/formation/chat"
)

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

// entry is a tool call whose outcome is known, as it is in the journal.
type entry struct {
	chat.ToolResult
	// Of a Colleague.
	Usage  chat.Usage `json:",omitzero"`
	Agents []string   `json:",omitempty"`
	// Refused tells that the call was not made: the result says why.
	Refused bool `json:",omitempty"`

	// handed is the answer of a colleague that has taken over; last is what the
	// answer ends with, because the user is needed. They are not journalled: the
	// end of the turn is.
	handed *chat.Answer
	last   *chat.Answer
}

// ends tells that the run ends with this call.
func (e *entry) ends() bool { return e.handed != nil || e.last != nil }

func (e *entry) encode() ([]byte, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode tool result: %w", err)
	}
	return payload, nil
}

// Below returns the journal of a run that is part of another: its steps have
// names that begin with prefix.
func Below(j Journal, prefix string) Journal { return below{j, prefix} }

type below struct {
	journal Journal
	prefix  string
}

func (b below) Done(step string) ([]byte, bool) { return b.journal.Done(b.prefix + step) }

func (b below) Save(ctx context.Context, step string, payload []byte) error {
	return b.journal.Save(ctx, b.prefix+step, payload)
}

func (b below) SaveAll(ctx context.Context, steps []Step) error {
	own := make([]Step, len(steps))
	for i, s := range steps {
		own[i] = Step{Name: b.prefix + s.Name, Payload: s.Payload}
	}
	return b.journal.SaveAll(ctx, own)
}

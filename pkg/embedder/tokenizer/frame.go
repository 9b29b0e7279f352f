package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// frame reads the special tokens that stand around a single text.
func (t *Tokenizer) frame(raw json.RawMessage) error {
	if absent(raw) {
		return nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return err
	}
	switch kind {
	case "BertProcessing", "RobertaProcessing":
		var p struct {
			Sep, Cls namedToken
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return err
		}
		t.prefix, t.suffix = []special{{id: p.Cls.id}}, []special{{id: p.Sep.id}}
		return nil
	case "TemplateProcessing":
		return t.template(raw)
	case "Sequence":
		var seq struct {
			Parts []json.RawMessage `json:"processors"`
		}
		if err := json.Unmarshal(raw, &seq); err != nil {
			return err
		}
		for _, part := range seq.Parts {
			if err := t.frame(part); err != nil {
				return err
			}
		}
		return nil
	}
	return unsupported(kind, "BertProcessing, RobertaProcessing, TemplateProcessing or a Sequence of these")
}

// namedToken is ["[CLS]", 101].
type namedToken struct{ id int64 }

// UnmarshalJSON reads the pair of token and id.
func (n *namedToken) UnmarshalJSON(data []byte) error {
	var name string
	pair := []any{&name, &n.id}
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if len(pair) != 2 || n.id < 0 {
		return fmt.Errorf("%s is no pair of token and id", data)
	}
	return nil
}

func (t *Tokenizer) template(raw json.RawMessage) error {
	var p struct {
		Single []struct {
			Special  *templatePart `json:"SpecialToken"`
			Sequence *templatePart `json:"Sequence"`
		} `json:"single"`
		Tokens map[string]struct {
			IDs []int64 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	text := 0
	var before, after []special
	for _, part := range p.Single {
		switch {
		case part.Sequence != nil:
			text++
			t.kind = part.Sequence.Type
		case part.Special != nil:
			token, ok := p.Tokens[part.Special.ID]
			if !ok || slices.ContainsFunc(token.IDs, func(id int64) bool { return id < 0 }) {
				return fmt.Errorf("the template names %q, which special_tokens has no id for", part.Special.ID)
			}
			for _, id := range token.IDs {
				s := special{id, part.Special.Type}
				if text == 0 {
					before = append(before, s)
				} else {
					after = append(after, s)
				}
			}
		}
	}
	if text != 1 {
		return errors.New("the template for a single text does not hold the text once")
	}
	t.prefix, t.suffix = before, after
	return nil
}

type templatePart struct {
	ID   string `json:"id"`
	Type int64  `json:"type_id"`
}

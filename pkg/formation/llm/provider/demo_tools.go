package provider

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agentformation/service/pkg/formation/chat"
)

// callTools calls the first tool that the message names.
func (d *demo) callTools(tools []chat.ToolSpec, message string) []chat.ToolCall {
	for _, t := range tools {
		if !names(message, ownName(t.Name)) {
			continue
		}
		return []chat.ToolCall{{
			// The id is made of the message, so that the same one is always the same.
			ID:   fmt.Sprintf("call_demo_%d", len(message)),
			Name: t.Name,
			Args: d.arguments(t, message),
		}}
	}
	return nil
}

// ownName is what a tool is called at its server: people do not say the rest.
func ownName(tool string) string {
	if _, own, ok := strings.Cut(tool, "__"); ok && own != "" {
		return own
	}
	return tool
}

// names tells whether message holds the tool's name, or all words of it.
func names(message, tool string) bool {
	message = strings.ToLower(message)
	if strings.Contains(message, strings.ToLower(tool)) {
		return true
	}
	parts := strings.FieldsFunc(strings.ToLower(tool), notWord)
	spoken := strings.FieldsFunc(message, notWord)
	for _, part := range parts {
		if !slices.Contains(spoken, part) {
			return false
		}
	}
	return len(parts) > 0
}

// toolSchema is the part of a tool's schema that the demo can serve.
type toolSchema struct {
	Properties map[string]struct {
		Type    string `json:"type"`
		Enum    []any  `json:"enum"`
		Default any    `json:"default"`
	} `json:"properties"`
	Required []string `json:"required"`
}

// arguments fills the required arguments, or the only one there is: numbers
// with the numbers of the message in their order, texts with its quoted parts
// and then with what follows the tool's name.
func (d *demo) arguments(t chat.ToolSpec, message string) json.RawMessage {
	var s toolSchema
	if json.Unmarshal(t.Schema, &s) != nil || len(s.Properties) == 0 {
		return json.RawMessage("{}")
	}
	fields := s.Required
	if len(fields) == 0 && len(s.Properties) == 1 {
		for name := range s.Properties {
			fields = append(fields, name)
		}
	}
	numbers := d.numbers.FindAllString(message, -1)
	texts := d.texts(message, ownName(t.Name))
	args := make(map[string]any, len(fields))
	for _, name := range fields {
		p := s.Properties[name]
		switch {
		case p.Type == "number" || p.Type == "integer":
			args[name], numbers = nextNumber(numbers)
		case p.Type == "boolean":
			args[name] = true
		case len(p.Enum) > 0:
			args[name] = mentioned(p.Enum, message)
		case len(texts) > 0:
			args[name] = texts[0]
			texts = texts[min(1, len(texts)-1):]
		}
	}
	out, err := json.Marshal(args)
	if err != nil {
		return json.RawMessage("{}")
	}
	return out
}

// texts are the quoted parts of the message, else what follows the tool's
// name, or a colon, else the whole message.
func (d *demo) texts(message, tool string) []string {
	var out []string
	for _, m := range d.quoted.FindAllStringSubmatch(message, 8) {
		out = append(out, m[1]+m[2]+m[3])
	}
	if len(out) > 0 {
		return out
	}
	if i := strings.Index(strings.ToLower(message), strings.ToLower(tool)); i >= 0 && i+len(tool) <= len(message) {
		if rest := strings.Trim(message[i+len(tool):], " \t\n:,.?!"); rest != "" {
			return []string{rest}
		}
	}
	if _, rest, ok := strings.Cut(message, ": "); ok && strings.TrimSpace(rest) != "" {
		return []string{strings.TrimSpace(rest)}
	}
	return []string{message}
}

func nextNumber(numbers []string) (json.Number, []string) {
	if len(numbers) == 0 {
		return "0", nil
	}
	if _, err := strconv.ParseFloat(numbers[0], 64); err != nil {
		return "0", numbers[1:]
	}
	return json.Number(numbers[0]), numbers[1:]
}

func mentioned(options []any, message string) any {
	for _, o := range options {
		if s, ok := o.(string); ok && strings.Contains(strings.ToLower(message), strings.ToLower(s)) {
			return o
		}
	}
	return options[0]
}

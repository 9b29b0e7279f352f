package fakellm

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// schema is the part of a JSON Schema that choose understands.
type schema struct {
	Type       any               `json:"type"`
	Enum       []any             `json:"enum"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// choose fills a JSON schema. A string with an enum gets the value whose lines
// in the conversation share most words with the user's message: that is how
// routing to the agent with the best description works without a rule.
func choose(q *query) string {
	var s schema
	_ = json.Unmarshal(q.ResponseFormat.JSONSchema.Schema, &s)
	out, err := json.Marshal(fill(&s, q))
	if err != nil {
		return "{}"
	}
	return string(out)
}

func fill(s *schema, q *query) any {
	switch {
	case len(s.Enum) > 0:
		return pick(s.Enum, q)
	case s.Properties != nil:
		out := make(map[string]any, len(s.Properties))
		for name, p := range s.Properties {
			out[name] = fill(&p, q)
		}
		return out
	}
	kind, _ := s.Type.(string)
	switch kind {
	case "number", "integer":
		return 1
	case "boolean":
		return false
	case "array":
		return []any{}
	case "object":
		return map[string]any{}
	default:
		return "scripted"
	}
}

// pick returns the option with most words in common with the user's message;
// the first one wins a tie.
func pick(options []any, q *query) any {
	var names []string
	for _, o := range options {
		if name, ok := o.(string); ok {
			names = append(names, name)
		}
	}
	var lines []string
	for _, m := range q.Messages {
		lines = append(lines, strings.Split(m.text(), "\n")...)
	}
	asked := wordSet(strings.Join(slices.DeleteFunc(strings.Split(q.user, "\n"), func(line string) bool {
		return mentions(line, names)
	}), "\n"))
	best, most := options[0], 0
	for _, o := range options {
		name, ok := o.(string)
		if !ok {
			continue
		}
		if n := shared(asked, lines, name); n > most {
			best, most = o, n
		}
	}
	return best
}

func mentions(line string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return n != "" && strings.Contains(line, n) })
}

// shared counts the asked words on the lines that name the option.
func shared(asked map[string]bool, lines []string, name string) int {
	n := 0
	seen := map[string]bool{}
	for _, line := range lines {
		if name == "" || !strings.Contains(line, name) {
			continue
		}
		for w := range wordSet(line) {
			if asked[w] && !seen[w] {
				seen[w] = true
				n++
			}
		}
	}
	return n
}

// wordSet holds the lower-case words of more than three letters, without a
// plural s.
func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if len(w) > 3 {
			set[strings.TrimSuffix(w, "s")] = true
		}
	}
	return set
}

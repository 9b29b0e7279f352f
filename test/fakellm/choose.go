package fakellm

import (
	"encoding/json"
	"maps"
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
// in the prompt share most words with the user's message: that is how
// routing to the agent with the best description works without a rule.
func choose(q *query) string {
	var s schema
	_ = json.Unmarshal(q.schema, &s)
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

// pick returns the option whose lines in the prompt share most words with what
// the user asks. A word that few options have counts more; a tie goes to the
// option that the preamble of the message names, then to the first.
func pick(options []any, q *query) any {
	before, asked, ok := strings.Cut(q.user, "Message:\n")
	if !ok {
		before, asked = "", q.user
	}
	about := make([]map[string]bool, len(options))
	best, most := 0, 0
	for i, o := range options {
		name, _ := o.(string)
		about[i] = describe(q, name, options)
		if name != "" && strings.Contains(before, `"`+name+`"`) {
			best = i
		}
	}
	last := best
	points := score(wordSet(asked), about)
	for i, n := range points {
		if n > most || n == most && n > 0 && i == last {
			best, most = i, n
		}
	}
	return options[best]
}

// describe returns the words of the lines that name an option, and of the
// indented lines below them, in the system messages.
func describe(q *query, name string, options []any) map[string]bool {
	set := wordSet(name)
	inside := false
	for _, m := range q.Messages {
		if m.Role != "system" && m.Role != "developer" {
			continue
		}
		for line := range strings.SplitSeq(m.text(), "\n") {
			if !strings.HasPrefix(line, " ") {
				inside = name != "" && longest(line, options) == name
			}
			if inside {
				maps.Copy(set, wordSet(line))
			}
		}
	}
	return set
}

// longest returns the longest option that line names.
func longest(line string, options []any) string {
	found := ""
	for _, o := range options {
		if name, ok := o.(string); ok && len(name) > len(found) && strings.Contains(line, name) {
			found = name
		}
	}
	return found
}

func score(asked map[string]bool, about []map[string]bool) []int {
	points := make([]int, len(about))
	for w := range asked {
		var have []int
		for i, set := range about {
			if set[w] {
				have = append(have, i)
			}
		}
		for _, i := range have {
			points[i] += 60 * len(about) / len(have)
		}
	}
	return points
}

// wordSet holds the lower-case words of more than two letters without their
// plainest endings.
func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		if len(w) > 2 && !strings.Contains(plainWords, " "+w+" ") {
			set[stem(w)] = true
		}
	}
	return set
}

const plainWords = " the and for are was were has have had this that with from into about what which who when where why how " +
	"can could will would should you your our their them not all any some more most please agent answers questions "

func stem(w string) string {
	for _, ending := range []string{"ing", "ers", "er", "ed", "es", "s", "e"} {
		if base, ok := strings.CutSuffix(w, ending); ok && len(base) >= 3 {
			return base
		}
	}
	return w
}

package provider

import (
	"encoding/json"
	"maps"
	"strings"
	"unicode"

	"github.com/agentformation/service/pkg/formation/chat"
)

func notWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// words returns the stems of the words of text that carry meaning.
func words(text string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsFuncSeq(strings.ToLower(text), notWord) {
		if len(w) > 2 && !strings.Contains(plainWords, " "+w+" ") {
			set[stem(w)] = true
		}
	}
	return set
}

// plainWords say nothing about a subject.
const plainWords = " the and for are was were has have had this that these those with from into about what which who whom whose " +
	"when where why how can could will would shall should may might must you your yours our ours their they them his her its not " +
	"but all any some more most much many one two does did done get got let please tell give need want like help there here just work works "

func stem(w string) string {
	for _, ending := range []string{"ing", "ers", "er", "ed", "es", "s", "e", "y"} {
		if base, ok := strings.CutSuffix(w, ending); ok && len(base) >= 3 {
			return base
		}
	}
	return w
}

// demoSchema is the part of a JSON Schema that the demo can fill.
type demoSchema struct {
	Type       any                   `json:"type"`
	Enum       []any                 `json:"enum"`
	Properties map[string]demoSchema `json:"properties"`
}

// fillSchema answers a request for JSON. A choice among named options goes to
// the one whose description in the prompt shares most words with the message.
func fillSchema(schema json.RawMessage, messages []chat.Message) string {
	var s demoSchema
	if json.Unmarshal(schema, &s) != nil {
		return "{}"
	}
	out, err := json.Marshal(s.fill(messages))
	if err != nil {
		return "{}"
	}
	return string(out)
}

func (s demoSchema) fill(messages []chat.Message) any {
	if len(s.Enum) > 0 {
		return choose(s.Enum, messages)
	}
	if s.Properties != nil {
		object := make(map[string]any, len(s.Properties))
		for name, p := range s.Properties {
			object[name] = p.fill(messages)
		}
		return object
	}
	switch s.Type {
	case "number", "integer":
		return 1
	case "boolean":
		return false
	case "array":
		return []any{}
	case "object":
		return map[string]any{}
	default:
		return "chosen by shared words (" + demoLabel + ")"
	}
}

// choose picks an option for the last message. Without any shared word it
// stays with the option that the message's preamble names, else takes the first.
func choose(options []any, messages []chat.Message) any {
	var names []string
	for _, o := range options {
		if name, ok := o.(string); ok && name != "" {
			names = append(names, name)
		}
	}
	conv := readConversation(messages)
	before, message, ok := strings.Cut(conv.message, "Message:\n")
	if !ok {
		before, message = "", conv.message
	}
	best, most := options[0], 0
	last := ""
	for _, name := range names {
		if strings.Contains(before, `"`+name+`"`) {
			best, last = name, name
		}
	}
	asked := words(message)
	if findSum(message) != "" { // "12 * 7" has no words, yet it is clear who is meant
		maps.Copy(asked, words("calculate number sum arithmetic mathematics"))
	}
	points := scores(asked, describe(conv.system, names))
	for _, name := range names {
		if n := points[name]; n > most || n == most && n > 0 && name == last {
			best, most = name, n
		}
	}
	return best
}

// describe collects what the prompt says of each name: the list item that
// holds the name and the indented lines below it.
func describe(prompt string, names []string) map[string]map[string]bool {
	about := make(map[string]map[string]bool, len(names))
	for _, n := range names {
		about[n] = words(n)
	}
	current := ""
	for line := range strings.SplitSeq(prompt, "\n") {
		if !strings.HasPrefix(line, " ") {
			current = named(line, names)
		}
		if current != "" {
			for w := range words(line) {
				about[current][w] = true
			}
		}
	}
	return about
}

// named returns the longest name that stands in line as a whole word.
func named(line string, names []string) string {
	found := ""
	for _, n := range names {
		i := strings.Index(line, n)
		if i < 0 || len(n) <= len(found) {
			continue
		}
		end := i + len(n)
		if (i == 0 || !nameByte(line[i-1])) && (end == len(line) || !nameByte(line[end])) {
			found = n
		}
	}
	return found
}

func nameByte(b byte) bool {
	return b == '-' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// scores sums the shared words; a word that many descriptions have counts less.
func scores(asked map[string]bool, about map[string]map[string]bool) map[string]int {
	out := make(map[string]int, len(about))
	for w := range asked {
		var have []string
		for name, set := range about {
			if set[w] {
				have = append(have, name)
			}
		}
		for _, name := range have {
			out[name] += 60 * len(about) / len(have)
		}
	}
	return out
}

// fromInstructions quotes the sentence of the agent's instructions that has
// most words of the question. Commands to the agent are not quoted.
func fromInstructions(c conversation) string {
	asked := words(c.message)
	best, most := "", 0
	for _, sentence := range sentences(c.system) {
		first, _, _ := strings.Cut(sentence, " ")
		if strings.Contains(commandWords, " "+strings.ToLower(first)+" ") {
			continue
		}
		n := 0
		for w := range words(sentence) {
			if asked[w] {
				n++
			}
		}
		if n > most {
			best, most = sentence, n
		}
	}
	if most < min(2, len(asked)) || most == 0 {
		return ""
	}
	return "From what I was told: " + best + "\n\n(The " + demoLabel + " found this by matching words.)"
}

// commandWords begin sentences that are meant for the agent, not for the user.
const commandWords = " you your answer never always do don't if when be keep use say write give reply explain format cover handle " +
	"choose ask tell help go break gather carry suggest recommend prefer make offer refuse avoid speak begin end show - * "

func sentences(text string) []string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		for sentence := range strings.SplitAfterSeq(line, ". ") {
			if sentence = strings.TrimSpace(sentence); sentence != "" {
				out = append(out, sentence)
			}
		}
	}
	return out
}

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

const (
	// maxFaults is how many lines a model is told of what is wrong, and
	// maxFaultText how many bytes each may have.
	maxFaults    = 8
	maxFaultText = 400
	// maxSchemas is how many compiled schemas an agent keeps. Tools come and go
	// with their servers.
	maxSchemas = 512
)

// schemas checks arguments; each schema is compiled when it is first needed.
type schemas struct {
	mu       sync.Mutex        // guards the field that follows
	compiled map[string]*shape // by text; nil for one that is none
}

// check tells how args break a schema, a line for each fault; "" when they do
// not. A schema that can't be read is left to the tool.
func (s *schemas) check(schema json.RawMessage, args any) string {
	if len(schema) == 0 {
		return ""
	}
	compiled := s.get(string(schema))
	if compiled == nil {
		return ""
	}
	lines := compiled.faults(args)
	if len(lines) > maxFaults {
		lines = append(lines[:maxFaults], "- …")
	}
	for i := range lines {
		lines[i] = clip(lines[i], maxFaultText)
	}
	return strings.Join(lines, "\n")
}

func (s *schemas) get(text string) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	compiled, ok := s.compiled[text]
	if ok {
		return compiled
	}
	if s.compiled == nil || len(s.compiled) >= maxSchemas {
		s.compiled = make(map[string]*shape)
	}
	compiled = newShape(text)
	s.compiled[text] = compiled
	return compiled
}

// shape is the schema of a tool's arguments.
type shape struct {
	schema *jsonschema.Schema
	whole  *jsonschema.Resolved
	// loose is the schema for one argument alone, to find all that are wrong:
	// the library stops at the first, and that is any. nil when there is none.
	loose *jsonschema.Resolved
}

// newShape compiles a schema; nil when it is none. It reads no other address or
// file, whatever the schema refers to.
func newShape(text string) *shape {
	var schema jsonschema.Schema
	if json.Unmarshal([]byte(text), &schema) != nil || !ends(&schema) {
		return nil
	}
	schema.Schema = draft(schema.Schema)
	whole, err := schema.Resolve(nil)
	if err != nil {
		return nil
	}
	s := &shape{schema: &schema, whole: whole}
	if schema.Ref == "" {
		one := schema.CloneSchemas()
		one.Required, one.DependentRequired, one.DependencyStrings, one.MinProperties = nil, nil, nil, nil
		one.DependentSchemas, one.DependencySchemas, one.UnevaluatedProperties = nil, nil, nil
		one.AllOf, one.AnyOf, one.OneOf, one.Not, one.If, one.Then, one.Else = nil, nil, nil, nil, nil, nil, nil
		if loose, err := one.Resolve(nil); err == nil {
			s.loose = loose
		}
	}
	return s
}

// draft is the one of the two drafts that the library knows to which a schema's
// own is nearest.
func draft(uri string) string {
	for _, old := range []string{"draft-03", "draft-04", "draft-06", "draft-07"} {
		if strings.Contains(uri, old) {
			return "http://json-schema.org/draft-07/schema#"
		}
	}
	return ""
}

// faults returns a line for everything that is wrong with the arguments, in the
// order of their names.
func (s *shape) faults(args any) []string {
	err := s.whole.Validate(args)
	if err == nil {
		return nil
	}
	object, _ := args.(map[string]any)
	var lines []string
	if s.loose != nil {
		for _, name := range s.schema.Required {
			if _, given := object[name]; !given {
				lines = append(lines, fmt.Sprintf("- missing property '%s'", name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if err := s.loose.Validate(map[string]any{name: object[name]}); err != nil {
				lines = append(lines, line(err))
			}
		}
	}
	if len(lines) == 0 { // what is wrong concerns several of them
		lines = append(lines, line(err))
	}
	return lines
}

// line is a fault as a model is told it. The library's says by which schemas it
// got there, "validating root: validating /properties/city: …"; the last of them
// tells the place.
func line(err error) string {
	text, place := err.Error(), ""
	for {
		inner, ok := strings.CutPrefix(text, "validating ")
		path, rest, found := strings.Cut(inner, ": ")
		if !ok || !found {
			break
		}
		text, place = rest, path
	}
	place = strings.ReplaceAll("/"+strings.TrimPrefix(place, "/"), "/properties/", "/")
	if place == "/root" || place == "/" {
		return "- " + wording(text)
	}
	return "- at '" + place + "': " + wording(text)
}

// wording leaves out of a fault what the model has written itself and knows, and
// writes numbers as people do.
func wording(text string) string {
	keyword, _, _ := strings.Cut(text, ":")
	switch keyword {
	case "type":
		if i := strings.LastIndex(text, " has type "); i >= 0 {
			return strings.ReplaceAll("got "+text[i+len(" has type "):], `"`, "")
		}
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
		return strings.NewReplacer("/1 ", " ", ".000000", "").Replace(text)
	}
	return text
}

// clip cuts a text to at most n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

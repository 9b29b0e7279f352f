package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// refuse tells the model what is wrong with a call that can't be made; "" when
// it can. only tells that it is the only one of its step.
func (r *run) refuse(p *pending, only bool) string {
	limits := r.agent.limits
	switch c := p.colleague(); {
	case p.tool == nil:
		return fmt.Sprintf("There is no tool named %q.", p.call.Name)
	case r.calls > limits.ToolCalls:
		return fmt.Sprintf("Not called: %d tool calls is the most in one turn.", limits.ToolCalls)
	case c != nil && c.Alone() && !only:
		return "Not called: " + p.call.Name + " must be the only call. Call it again alone, or finish without it."
	}
	if len(p.call.Args) == 0 {
		p.call.Args = json.RawMessage("{}")
	}
	args, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.call.Args))
	if err != nil {
		return "The arguments are not valid JSON. Send them again as one JSON object."
	}
	if _, ok := args.(map[string]any); !ok {
		return "The arguments are no JSON object. Send them again as one JSON object."
	}
	if at, text := placeholder("", args); text != "" {
		return fmt.Sprintf("Not called: %s is the placeholder %s. Placeholders are not filled in: send the value itself, as the user or a tool gave it.", at, text)
	}
	if wrong := r.agent.schemas.check(p.spec.Schema, args); wrong != "" {
		return "Not called, the arguments do not fit the tool's schema:\n" + wrong
	}
	return ""
}

// placeholder finds a value that is nothing but a reference to be filled in,
// as {{NAME.field}} or ${{ secrets.X }}. A longer text that holds one may be a
// template that is meant so.
func placeholder(at string, v any) (where, text string) {
	switch v := v.(type) {
	case string:
		s := strings.TrimSpace(v)
		inner, ok := strings.CutPrefix(strings.TrimPrefix(s, "$"), "{{")
		if inner, closed := strings.CutSuffix(inner, "}}"); ok && closed && !strings.ContainsAny(inner, "{}\n") && strings.TrimSpace(inner) != "" {
			return at, s
		}
	case []any:
		for i, item := range v {
			if where, text = placeholder(fmt.Sprintf("%s/%d", at, i), item); text != "" {
				return where, text
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if where, text = placeholder(at+"/"+key, v[key]); text != "" {
				return where, text
			}
		}
	}
	return "", ""
}

// maxFaults is how many lines a model is told of what is wrong.
const maxFaults = 8

// maxSchemas is how many compiled schemas an agent keeps. Tools come and go
// with their servers.
const maxSchemas = 512

// schemas checks arguments; each schema is compiled when it is first needed.
type schemas struct {
	mu       sync.Mutex                    // guards the field that follows
	compiled map[string]*jsonschema.Schema // by text; nil for one that is none
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
	var wrong *jsonschema.ValidationError
	if !errors.As(compiled.Validate(args), &wrong) {
		return ""
	}
	lines := strings.Split(wrong.Error(), "\n")
	if len(lines) > 1 {
		lines = lines[1:] // the first names the schema
	}
	if len(lines) > maxFaults {
		lines = append(lines[:maxFaults], "- …")
	}
	return strings.Join(lines, "\n")
}

func (s *schemas) get(text string) *jsonschema.Schema {
	s.mu.Lock()
	defer s.mu.Unlock()
	compiled, ok := s.compiled[text]
	if ok {
		return compiled
	}
	if s.compiled == nil || len(s.compiled) >= maxSchemas {
		s.compiled = make(map[string]*jsonschema.Schema)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		c := jsonschema.NewCompiler()
		c.UseLoader(noLoader{})
		if err = c.AddResource(schemaName, doc); err == nil {
			compiled, err = c.Compile(schemaName)
		}
	}
	if err != nil {
		compiled = nil
	}
	s.compiled[text] = compiled
	return compiled
}

const schemaName = "tool:arguments"

// noLoader keeps a tool server's schema from reading files and addresses.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) { return nil, fmt.Errorf("%s is not read", url) }

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	var args any
	if json.Unmarshal(p.call.Args, &args) != nil {
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

package manifest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// anotherName begins the description of a key that is another name of one.
const anotherName = "Another name of "

// absentBlocks are the blocks that stand for something only when they are
// written: without them it is off.
func absentBlocks() []string {
	return []string{
		"scheduler", "middleware", "proactive", "heartbeat", "commands", "coding", "rce", "runtime", "mcps", "auth", "limits", "extensions", "models", "llm_models",
	}
}

// Effective returns the manifest as it applies: what was written, with
// placeholders kept, keys under their first names, and the defaults of what was
// not written. Durations that were not written are numbers in the unit of their
// key. What stands in files of its own is named as the manifest names it. The
// tree is the caller's; literal keys in it are not masked, see MaskSecrets.
func (f *Formation) Effective() map[string]any {
	out := withDefaults(f.Raw, schemaOf(FileFormation))
	f.settle(out)
	return out
}

// EffectiveAgents returns the active agents as Effective does, each with its
// file's keys. What an agent takes over from the formation is not repeated.
func (f *Formation) EffectiveAgents() []map[string]any {
	schema := schemaOf(FileAgent)
	list := make([]map[string]any, len(f.Agents))
	for i := range f.Agents {
		raw := f.Agents[i].Raw
		list[i] = withDefaults(raw, schema)
		for _, key := range []string{"memory", "knowledge", "rate_limiting", "timeout", "a2a"} {
			if raw[key] == nil {
				delete(list[i], key)
			}
		}
	}
	return list
}

// settle adds the defaults that no schema has.
func (f *Formation) settle(out map[string]any) {
	block := func(in map[string]any, key string) map[string]any {
		b, ok := in[key].(map[string]any)
		if !ok {
			b = map[string]any{}
			if in[key] == nil {
				in[key] = b
			}
		}
		return b
	}
	set := func(in map[string]any, key string, value any) {
		if in[key] == nil {
			in[key] = value
		}
	}
	set(out, "name", f.Name)
	if f.Soul != "" {
		block(out, "overlord")["soul"] = f.Soul
	}
	settings := block(block(out, "llm"), "settings")
	set(settings, "temperature", f.LLM.Settings.Temperature)
	set(settings, "max_tokens", f.LLM.Settings.MaxTokens)
	set(settings, "timeout_seconds", f.LLM.Settings.Timeout.Seconds())
	set(settings, "max_retries", f.LLM.Settings.MaxRetries)
	workflow := block(block(out, "overlord"), "workflow")
	set(workflow, "complexity_weights", weightsOf(f.Overlord.Workflow.ComplexityWeights))
	set(block(block(out, "artifacts"), "storage"), "path", f.Artifacts.Path)
	set(block(out, "rbac"), "active", f.RBAC.Active)
	retry := block(block(block(out, "overlord"), "response"), "retry_async")
	if f.Overlord.Response.RetryAsync.Deadline == 0 {
		retry["deadline"] = nil
	}
}

func weightsOf(w map[string]float64) map[string]any {
	out := make(map[string]any, len(w))
	for name, weight := range w {
		out[name] = weight
	}
	return out
}

// withDefaults returns a copy of a block with the defaults of its schema.
func withDefaults(raw map[string]any, s *jsonschema.Schema) map[string]any {
	out := make(map[string]any, len(raw))
	for key, value := range raw {
		p := s.Properties[key]
		if p == nil {
			out[key] = copied(value)
			continue
		}
		if first, ok := strings.CutPrefix(p.Description, anotherName); ok {
			key, _, _ = strings.Cut(first, ".")
		}
		if below, ok := value.(map[string]any); ok && p.Properties != nil {
			out[key] = withDefaults(below, p)
		} else if value != nil {
			out[key] = copied(value)
		}
	}
	for key, p := range s.Properties {
		if out[key] != nil || strings.HasPrefix(p.Description, anotherName) || slices.Contains(absentBlocks(), key) {
			continue
		}
		switch {
		case p.Default != nil:
			out[key] = plainDefault(p)
		case p.Properties != nil:
			if below := withDefaults(nil, p); len(below) > 0 {
				out[key] = below
			}
		}
	}
	return out
}

// copied returns a deep copy of a plain value.
func copied(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := maps.Clone(v)
		for key := range out {
			out[key] = copied(out[key])
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = copied(out[i])
		}
		return out
	}
	return v
}

// plainDefault returns the default of a key; it was written by note.go, so it is
// JSON.
func plainDefault(p *jsonschema.Schema) any {
	var v any
	if json.Unmarshal(p.Default, &v) != nil {
		return nil
	}
	return v
}

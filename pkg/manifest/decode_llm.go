package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	providerShape = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	localShape    = regexp.MustCompile(`^local/[^/:\s]+/[^/:\s]+(:[^:\s]+)?$`)
)

func capabilities() []string {
	return []string{
		CapabilityText, CapabilityEmbedding, CapabilityVision, CapabilityAudio, CapabilityVideo,
		CapabilityDocuments, CapabilityStreaming,
	}
}

// providers are the model providers that need no endpoint.
func providers() []string {
	return []string{"openai", "anthropic", "google", "ollama", "local", "demo"}
}

func (d *decoder) llmBlock(o *object, l *LLM) {
	d.llm = l
	l.APIKeys = o.textMap("api_keys", func(_ string, v *node, key string) bool {
		d.literal(v, key)
		return true
	})
	l.Endpoints = o.textMap("endpoints", func(name string, v *node, key string) bool {
		if !providerShape.MatchString(name) {
			d.fault(v, key, RuleModelProvider, "%q is no provider name; it has a-z, 0-9 and . _ -", shorten(name))
			return false
		}
		return d.baseURL(v, key)
	})
	l.Aliases = d.aliases(o)
	l.Settings = l.Settings.With(d.settings(o.block("settings")))
	l.Models = d.models(o.take("models"), o.key("models"))
	o.inert("prices", "currency")
	o.end()
}

// aliases reads the short names of models. They are checked against providers
// only, so that no alias names another.
func (d *decoder) aliases(o *object) map[string]string {
	return o.textMap("aliases", func(name string, v *node, key string) bool {
		switch {
		case slices.Contains(capabilities(), name):
			d.fault(v, key, RuleModelAlias, "%q is a capability; give the alias another name", name)
		case strings.Contains(name, "/"):
			d.fault(v, key, RuleModelAlias, "an alias has no slash")
		case !strings.Contains(v.text, "/"):
			d.fault(v, key, RuleModelAlias, `%q is no model; an alias names "provider/model"`, shown(v, key))
		default:
			return d.checkModel(v, key, "")
		}
		return false
	})
}

func (d *decoder) settings(o *object) Overrides {
	s := Overrides{
		Temperature: o.float("temperature", 0, 2),
		MaxTokens:   o.integer("max_tokens", 1, unlimited),
		Timeout:     o.duration("timeout_seconds", time.Millisecond),
		MaxRetries:  o.integer("max_retries", 0, 10),
	}
	if id := d.modelID(o, "fallback_model", CapabilityText); id != "" {
		s.FallbackModel = &id
	}
	o.inert("caching")
	o.end()
	return s
}

// models reads the list form or the map form of a models block.
func (d *decoder) models(n *node, key string) []Model {
	var out []Model
	seen := map[string]bool{}
	add := func(m *Model, at *node, key string) {
		if m == nil {
			return
		}
		if seen[m.Capability] {
			d.fault(at, key, RuleModelCapability, "a second %s model; keep one", m.Capability)
			return
		}
		seen[m.Capability] = true
		out = append(out, *m)
	}
	switch {
	case n == nil:
	case n.kind == kindList:
		for i, item := range n.items {
			at := fmt.Sprintf("%s[%d]", key, i)
			add(d.modelItem(item, at), item, at)
		}
	case n.kind == kindMap:
		for _, e := range n.keys {
			at := join(key, e.key)
			add(d.modelEntry(n, e, key), e.value, at)
		}
	default:
		d.typeFault(n, key, kindList)
	}
	return out
}

// modelItem reads {<capability>: id, api_key?, settings?}.
func (d *decoder) modelItem(n *node, key string) *Model {
	o := d.object(n, key)
	if o.n == nil {
		return nil
	}
	var m *Model
	for _, c := range capabilities() {
		if o.take(c) == nil {
			continue
		}
		if m != nil {
			d.fault(n, key, RuleModelCapability, "one item holds both %s and %s; write two items", m.Capability, c)
			return nil
		}
		m = &Model{Capability: c}
	}
	if m == nil {
		d.fault(n, key, RuleModelCapability, "the item names no capability; write it like {text: openai/gpt-5-mini}")
		o.free("api_key", "settings")
		d.faults[len(d.faults)-1].Suggestion = nearCapability(o.n)
		return nil
	}
	return d.modelRest(o, m, m.Capability)
}

// modelEntry reads one key of the map form, an id or {model, api_key?, settings?}.
func (d *decoder) modelEntry(n *node, e entry, key string) *Model {
	at := &node{file: n.file, at: e.at}
	if !slices.Contains(capabilities(), e.key) {
		d.fault(at, join(key, e.key), RuleModelCapability, "%q is no capability (one of %s)", shorten(e.key), strings.Join(capabilities(), ", "))
		d.faults[len(d.faults)-1].Suggestion = nearest(e.key, capabilities())
		return nil
	}
	m := &Model{Capability: e.key}
	if e.value.kind == kindText {
		o := &object{d: d, n: &node{kind: kindMap, file: n.file, at: e.at, keys: []entry{e}}, path: key}
		return d.modelRest(o, m, e.key)
	}
	o := d.object(e.value, join(key, e.key))
	o.require("model", "model: provider/model")
	return d.modelRest(o, m, "model")
}

// modelRest reads the id, which stands at idKey, and what surrounds it.
func (d *decoder) modelRest(o *object, m *Model, idKey string) *Model {
	m.ID = d.modelID(o, idKey, m.Capability)
	set(&m.APIKey, o.text("api_key"))
	d.literal(o.take("api_key"), o.key("api_key"))
	if m.Capability == CapabilityText {
		m.Settings = d.settings(o.block("settings"))
	} else if o.n != nil {
		o.free("settings")
		o.warnKey(idKey, RuleNoEffect, "%s models have no effect in this release", m.Capability)
	}
	o.end()
	if m.ID == "" {
		return nil
	}
	return m
}

func nearCapability(n *node) string {
	for _, e := range n.keys {
		if c := nearest(e.key, capabilities()); c != "" {
			return c
		}
	}
	return ""
}

// modelID reads a model id or alias and returns the id, "" when it is absent
// or wrong.
func (d *decoder) modelID(o *object, key, capability string) string {
	s := o.word(key)
	if s == nil || !d.checkModel(o.n.get(key), o.key(key), capability) {
		return ""
	}
	return d.llm.Resolve(*s)
}

// checkModel reports what is wrong with a model id.
func (d *decoder) checkModel(v *node, key, capability string) bool {
	id := d.llm.Resolve(v.text)
	provider, model := SplitModel(id)
	switch {
	case provider == "" || model == "" || !providerShape.MatchString(provider) || strings.ContainsAny(id, " \t\n"):
		d.fault(v, key, RuleModelID, `%q is no model; write "provider/model"`, shown(v, key))
		d.faults[len(d.faults)-1].Suggestion = d.guessModel(id)
	case provider == "local" && !localShape.MatchString(id):
		d.fault(v, key, RuleModelLocal, "%q lacks the owner of the model; write local/<owner>/<name>", shown(v, key))
	case provider == "local" && capability == CapabilityText:
		d.fault(v, key, RuleModelLocal, "local models only embed; a text model has another provider")
	case !slices.Contains(providers(), provider) && d.llm.Endpoints[provider] == "":
		d.fault(v, key, RuleModelProvider, "the provider %q is unknown; give it a base URL in llm.endpoints.%s", provider, provider)
		if near := nearest(provider, providers()); near != "" {
			d.faults[len(d.faults)-1].Suggestion = near + "/" + model
		}
	default:
		return true
	}
	return false
}

// guessModel adds the provider that a well-known model name lacks.
func (d *decoder) guessModel(name string) string {
	for prefix, provider := range map[string]string{"gpt-": "openai", "claude": "anthropic", "gemini": "google"} {
		if strings.HasPrefix(name, prefix) {
			return provider + "/" + name
		}
	}
	var names []string
	for alias := range d.llm.Aliases {
		names = append(names, alias)
	}
	slices.Sort(names)
	return nearest(name, names)
}

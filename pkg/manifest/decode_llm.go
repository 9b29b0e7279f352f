package manifest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

var (
	providerShape = lazily(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	localShape    = lazily(`^local/[^/:\s]+/[^/:\s]+(:[^:\s]+)?$`)
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
	if s := o.note("endpoints"); s != nil {
		s.PropertyNames = &jsonschema.Schema{Pattern: providerShape().String()}
	}
	l.Endpoints = o.textMap("endpoints", func(name string, v *node, key string) bool {
		if !providerShape().MatchString(name) {
			d.fault(v, key, RuleModelProvider, "%q is no provider name; it has a-z, 0-9 and . _ -", shorten(name))
			return false
		}
		return d.baseURL(v, key)
	})
	if s := o.note("endpoints"); s != nil {
		s.AdditionalProperties.Pattern = `^[hH][tT][tT][pP][sS]?://[^/?#]+[^?#]*$|\$\{\{`
	}
	l.Aliases = d.aliases(o)
	l.Settings = l.Settings.With(d.settings(o.block("settings")))
	l.Settings.Caching = *d.cachingOf(o.block("settings").block("caching"), l.Settings.Caching)
	l.Models = d.models(o.slot("models"), l.Media)
	l.Prices = d.prices(o)
	currency := o.word("currency")
	patterned(currency.schema, currencyShape().String())
	set(&l.Currency, currency)
	if v := currency.v; v != nil && !currencyShape().MatchString(*v) {
		d.fault(o.n.get("currency"), o.key("currency"), RuleCurrency, "%q is no currency; write its code like USD or EUR", shorten(*v))
	}
	o.end()
}

var currencyShape = lazily(`^[A-Z]{3}$`)

// prices reads the price of each model.
func (d *decoder) prices(o *object) map[string]Price {
	out := map[string]Price{}
	o.each("prices", func(name string, s *slot) {
		b := s.block()
		s.end()
		if b == nil {
			return
		}
		var p Price
		b.require("input", "input: 2.50")
		set(&p.Input, b.float("input", 0, mostCount))
		set(&p.Output, b.float("output", 0, mostCount))
		p.Cached = p.Input
		set(&p.Cached, b.float("cached", 0, mostCount))
		b.end()
		if b.n == nil {
			return
		}
		id := d.llm.Resolve(name)
		if provider, model := SplitModel(id); provider == "" || model == "" {
			d.fault(&node{file: b.n.file, at: b.n.at}, s.path, RuleModelID, `%q is no model; a price stands under "provider/model"`, shorten(name))
			d.faults[len(d.faults)-1].Suggestion = d.guessModel(name)
			return
		}
		out[id] = p
	})
	return out
}

// cachingOf reads the cache of answers over what is given.
func (d *decoder) cachingOf(o *object, c LLMCaching) *LLMCaching {
	set(&c.Enabled, o.boolean("enabled"))
	set(&c.MaxEntries, o.integer("max_entries", 1, unlimited))
	set(&c.Similarity, o.float("p", 0, 1))
	set(&c.HashOnly, o.boolean("hash_only"))
	set(&c.TTL, o.duration("ttl", time.Second))
	set(&c.StreamChunkStrategy, o.enum("stream_chunk_strategy", "a way to cut", "words", "sentences", "paragraphs", "characters"))
	set(&c.StreamChunkLength, o.integer("stream_chunk_length", 1, unlimited))
	o.end()
	return &c
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
		Temperature: o.float("temperature", 0, 2).v,
		MaxTokens:   o.integer("max_tokens", 1, unlimited).v,
		Timeout:     o.duration("timeout_seconds", time.Millisecond).v,
		MaxRetries:  o.integer("max_retries", 0, 10).v,
	}
	if id := d.modelID(o, "fallback_model", CapabilityText); id != "" {
		s.FallbackModel = &id
	}
	if o.path == "llm.settings" {
		o.used = append(o.used, "caching")
	} else {
		o.inert("agent.llm.settings")
	}
	o.end()
	return s
}

// models reads the list form or the map form of a models block.
func (d *decoder) models(s *slot, media Media) []Model {
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
	s.list(func(_ int, item *slot) {
		if o := item.block(); o != nil {
			add(d.modelItem(o, media), item.n, item.path)
		}
		before := len(d.faults)
		item.end()
		if _, model := SplitModel(textOf(item.n)); model != "" && len(d.faults) > before {
			d.faults[before].Suggestion = "text: " + shorten(item.n.text)
		}
	})
	if s.n != nil && s.n.kind == kindMap {
		s.met = true
		for _, e := range s.n.keys {
			add(d.modelEntry(s.n, e, s.path, media), e.value, join(s.path, e.key))
		}
	}
	if s.schema != nil {
		d.modelMapSchema(s, media)
	}
	if s.n != nil && !s.met && !s.n.broken {
		d.typeFault(s.n, s.path, kindList)
	}
	return out
}

// textOf returns the text of a value, "" when it is none.
func textOf(n *node) string {
	if n == nil || n.kind != kindText {
		return ""
	}
	return n.text
}

// modelMapSchema notes the map form of a models block.
func (d *decoder) modelMapSchema(s *slot, media Media) {
	o := s.block()
	for _, c := range capabilities() {
		entry := o.slot(c)
		entry.text("a model")
		b := entry.block()
		b.require("model", "model: provider/model")
		d.modelRest(b, &Model{Capability: c}, "model", media)
	}
	o.close()
}

// modelItem reads {<capability>: id, api_key?, settings?}.
func (d *decoder) modelItem(o *object, media Media) *Model {
	if o.schema != nil {
		d.modelItemSchema(o, media)
		return nil
	}
	var m *Model
	for _, c := range capabilities() {
		if o.take(c) == nil {
			continue
		}
		if m != nil {
			d.fault(o.n, o.path, RuleModelCapability, "one item holds both %s and %s; write two items", m.Capability, c)
			return nil
		}
		m = &Model{Capability: c}
	}
	if m == nil {
		d.fault(o.n, o.path, RuleModelCapability, "the item names no capability; write it like {text: openai/gpt-5-mini}")
		o.free("api_key", "settings")
		d.faults[len(d.faults)-1].Suggestion = nearCapability(o.n)
		return nil
	}
	return d.modelRest(o, m, m.Capability, media)
}

// modelItemSchema notes an item of the list form: one schema per capability.
func (d *decoder) modelItemSchema(o *object, media Media) {
	for _, c := range capabilities() {
		one := &jsonschema.Schema{}
		b := &object{d: d, path: o.path, schema: one}
		b.require(c, c+": provider/model")
		d.modelRest(b, &Model{Capability: c}, c, media)
		o.schema.OneOf = append(o.schema.OneOf, one)
	}
}

// modelEntry reads one key of the map form, an id or {model, api_key?, settings?}.
func (d *decoder) modelEntry(n *node, e entry, key string, media Media) *Model {
	at := &node{file: n.file, at: e.at}
	if !slices.Contains(capabilities(), e.key) {
		d.fault(at, join(key, e.key), RuleModelCapability, "%q is no capability (one of %s)", shorten(e.key), strings.Join(capabilities(), ", "))
		d.faults[len(d.faults)-1].Suggestion = d.guess(e.key, capabilities())
		return nil
	}
	m := &Model{Capability: e.key}
	if e.value.kind == kindText {
		o := &object{d: d, n: &node{kind: kindMap, file: n.file, at: e.at, keys: []entry{e}}, path: key}
		return d.modelRest(o, m, e.key, media)
	}
	o := d.object(e.value, join(key, e.key))
	o.require("model", "model: provider/model")
	return d.modelRest(o, m, "model", media)
}

// modelRest reads the id, which stands at idKey, and what surrounds it.
func (d *decoder) modelRest(o *object, m *Model, idKey string, media Media) *Model {
	m.ID = d.modelID(o, idKey, m.Capability)
	set(&m.APIKey, o.secret("api_key"))
	switch m.Capability {
	case CapabilityText, CapabilityStreaming:
		m.Settings = d.settings(o.block("settings"))
	case CapabilityVision, CapabilityAudio, CapabilityVideo, CapabilityDocuments:
		m.Media = &media
		m.Settings = d.mediaSettings(o.block("settings"), m.Capability, m.Media)
	default:
		o.free("settings")
	}
	o.end()
	if m.ID == "" {
		return nil
	}
	return m
}

// mediaSettings reads the settings of a model that is shown files, beside the
// settings of any model.
func (d *decoder) mediaSettings(o *object, capability string, m *Media) Overrides {
	switch capability {
	case CapabilityVision:
		image := o.block("image")
		set(&m.Vision.MaxSizeMB, image.integer("max_size_mb", 1, 1024))
		for _, b := range []*object{image.block("preprocessing"), o.block("preprocessing")} {
			set(&m.Vision.Resize, b.boolean("resize"))
			set(&m.Vision.MaxWidth, b.integer("max_width", 1, 65_536))
			set(&m.Vision.MaxHeight, b.integer("max_height", 1, 65_536))
			b.end()
		}
		image.end()
	case CapabilityAudio:
		set(&m.Audio.MaxSizeMB, o.integer("max_size_mb", 1, 1024))
		set(&m.Audio.Language, o.word("language"))
	case CapabilityVideo:
		set(&m.Video.MaxSizeMB, o.integer("max_size_mb", 1, 10_240))
		set(&m.Video.MaxDuration, o.duration("max_duration_seconds", time.Second))
	case CapabilityDocuments:
		set(&m.Documents.MaxSizeMB, o.integer("max_size_mb", 1, 1024))
		e := o.block("extraction")
		set(&m.Documents.ChunkSize, e.integer("chunk_size", 1, unlimited))
		set(&m.Documents.Overlap, e.integer("overlap", 0, unlimited))
		set(&m.Documents.Strategy, e.enum("strategy", "a strategy", "adaptive", "fixed", "semantic", "paragraph"))
		if m.Documents.Overlap >= m.Documents.ChunkSize {
			e.faultAt("overlap", "chunk_size", RuleRange, "overlap is %d, but chunk_size only %d; the overlap is smaller", m.Documents.Overlap, m.Documents.ChunkSize)
		}
		e.end()
		set(&m.Documents.CacheTTL, o.duration("cache_ttl_seconds", 0))
		o.inert("llm.documents")
	}
	return d.settings(o)
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
	if s.v == nil || !d.checkModel(o.n.get(key), o.key(key), capability) {
		return ""
	}
	return d.llm.Resolve(*s.v)
}

// checkModel reports what is wrong with a model id.
func (d *decoder) checkModel(v *node, key, capability string) bool {
	id := d.llm.Resolve(v.text)
	provider, model := SplitModel(id)
	switch {
	case provider == "" || model == "" || !providerShape().MatchString(provider) || strings.ContainsAny(id, " \t\n"):
		d.fault(v, key, RuleModelID, `%q is no model; write "provider/model"`, shown(v, key))
		d.faults[len(d.faults)-1].Suggestion = d.guessModel(id)
	case provider == "local" && strings.HasSuffix(id, ":"):
		d.fault(v, key, RuleModelLocal, "%q has an empty revision; write one behind the colon or leave the colon out", shown(v, key))
		d.faults[len(d.faults)-1].Suggestion = strings.TrimSuffix(id, ":")
	case provider == "local" && !localShape().MatchString(id):
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

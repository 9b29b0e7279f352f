package manifest

import (
	"strings"
	"time"
)

// The model capabilities, the keys of llm.models items.
const (
	CapabilityText      = "text"
	CapabilityEmbedding = "embedding"
	CapabilityVision    = "vision"
	CapabilityAudio     = "audio"
	CapabilityVideo     = "video"
	CapabilityDocuments = "documents"
	CapabilityStreaming = "streaming"
)

// LLM is the manifest's llm block.
type LLM struct {
	// APIKeys maps a provider to a secret placeholder.
	APIKeys map[string]string
	// Endpoints maps a provider to the base URL used instead of its own.
	Endpoints map[string]string
	Settings  Settings
	Models    []Model
	// Prices maps "provider/model" to its price; a model without one is
	// unpriced.
	Prices   map[string]Price
	Currency string // USD
	// Media are the limits of what the formation's models are shown.
	Media Media
	// Aliases maps a short name to "provider/model"; every model id of this
	// package's results is already resolved through it.
	Aliases map[string]string
}

// Settings are sampling and transport settings with all defaults filled in.
type Settings struct {
	Temperature   float64       // 0-2, 0.7
	MaxTokens     int           // 4096
	Timeout       time.Duration // of one call, 30s
	MaxRetries    int           // attempts after the first, 3
	FallbackModel string        // "provider/model" or ""
	// TemperatureGiven and MaxTokensGiven tell that a file sets the value. An
	// adapter may leave out a mere default that a model refuses.
	TemperatureGiven bool
	MaxTokensGiven   bool
	// Caching is that of the whole formation; no agent changes it.
	Caching LLMCaching
}

// LLMCaching is the cache of answers, llm.settings.caching.
type LLMCaching struct {
	Enabled             bool          // true
	MaxEntries          int           // 10000
	Similarity          float64       // p: of questions that share an answer, 0-1, 0.98
	HashOnly            bool          // only the very same question shares an answer
	TTL                 time.Duration // 24h
	StreamChunkStrategy string        // how a cached answer is streamed: words, sentences, paragraphs, characters
	StreamChunkLength   int           // in pieces of that kind, 1
}

// Price is money per million tokens, in LLM.Currency.
type Price struct {
	Input  float64
	Output float64
	Cached float64 // of input tokens that the provider had cached; Input when the file has none
}

// Media bounds files that a model is shown.
type Media struct {
	Vision    VisionSettings
	Audio     AudioSettings
	Video     VideoSettings
	Documents DocumentSettings
}

// VisionSettings bound images.
type VisionSettings struct {
	MaxSizeMB int  // 5
	Resize    bool // true: to MaxWidth and MaxHeight, keeping the proportions
	MaxWidth  int  // pixels, 1024
	MaxHeight int  // pixels, 1024
}

// AudioSettings bound recordings.
type AudioSettings struct {
	MaxSizeMB int    // 10
	Language  string // a language code, or auto
}

// VideoSettings bound films.
type VideoSettings struct {
	MaxSizeMB   int           // 100
	MaxDuration time.Duration // 300s
}

// DocumentSettings bound documents and say how their text is cut.
type DocumentSettings struct {
	MaxSizeMB int           // 20
	ChunkSize int           // 1000
	Overlap   int           // 100, below ChunkSize
	Strategy  string        // adaptive
	CacheTTL  time.Duration // 1h
}

// Overrides are settings of which only the non-nil ones apply.
type Overrides struct {
	Temperature   *float64
	MaxTokens     *int
	Timeout       *time.Duration
	MaxRetries    *int
	FallbackModel *string
}

// With returns s changed by the values that o sets.
func (s Settings) With(o Overrides) Settings {
	if o.Temperature != nil {
		s.Temperature, s.TemperatureGiven = *o.Temperature, true
	}
	if o.MaxTokens != nil {
		s.MaxTokens, s.MaxTokensGiven = *o.MaxTokens, true
	}
	if o.Timeout != nil {
		s.Timeout = *o.Timeout
	}
	if o.MaxRetries != nil {
		s.MaxRetries = *o.MaxRetries
	}
	if o.FallbackModel != nil {
		s.FallbackModel = *o.FallbackModel
	}
	return s
}

// Model is one entry of llm.models or llm_models.
type Model struct {
	Capability string
	ID         string // "provider/model"
	APIKey     string // placeholder that wins over LLM.APIKeys, or ""
	Settings   Overrides
	// Media is nil for text, embedding and streaming models. Only the part of
	// the capability is the model's own.
	Media *Media
}

// ModelUse is everything needed to call a model.
type ModelUse struct {
	ID       string // "provider/model"; "" when no text model is configured
	Settings Settings
	APIKey   string // placeholder or key; "" when none is configured
	Endpoint string // base URL of the provider; "" means the provider's own
}

// Provider returns the part of the model id before the first slash.
func (u ModelUse) Provider() string { p, _ := SplitModel(u.ID); return p }

// Model returns the part of the model id that the provider understands.
func (u ModelUse) Model() string { _, m := SplitModel(u.ID); return m }

// SplitModel cuts "provider/model" at its first slash. Without a slash both
// parts are empty.
func SplitModel(id string) (provider, model string) {
	provider, model, ok := strings.Cut(id, "/")
	if !ok {
		return "", ""
	}
	return provider, model
}

// TextModel returns the formation's text model with its settings; the id is
// "" when the manifest names none.
func (l *LLM) TextModel() (id string, s Settings) {
	u := l.Use(nil, Overrides{})
	return u.ID, u.Settings
}

// Use merges the formation's settings with one file's own models and
// overrides. Settings of a model entry belong to that entry only: an own model
// does not inherit those of the formation's model.
func (l *LLM) Use(own []Model, o Overrides) ModelUse {
	if m := modelFor(own, CapabilityText); m != nil {
		return l.use(m, l.Settings.With(o).With(m.Settings))
	}
	if m := modelFor(l.Models, CapabilityText); m != nil {
		return l.use(m, l.Settings.With(m.Settings).With(o))
	}
	return ModelUse{Settings: l.Settings.With(o)}
}

// UseStreamed is Use for answers that are read while they are made: by the
// streaming model of own; else by that of the formation, unless own has a text
// model, which is nearer. It is false when there is none.
func (l *LLM) UseStreamed(own []Model, o Overrides) (ModelUse, bool) {
	if m := modelFor(own, CapabilityStreaming); m != nil {
		return l.use(m, l.Settings.With(o).With(m.Settings)), true
	}
	m := modelFor(l.Models, CapabilityStreaming)
	if m == nil || modelFor(own, CapabilityText) != nil {
		return ModelUse{}, false
	}
	return l.use(m, l.Settings.With(m.Settings).With(o)), true
}

func (l *LLM) use(m *Model, s Settings) ModelUse {
	u := l.ByID(m.ID, s)
	if m.APIKey != "" {
		u.APIKey = m.APIKey
	}
	return u
}

// For returns what is needed to use a capability other than text: the first
// model that has it, in own, then in the formation; false when there is none.
func (l *LLM) For(capability string, own []Model) (ModelUse, Media, bool) {
	for _, list := range [][]Model{own, l.Models} {
		for i := range list {
			m := &list[i]
			if m.Capability != capability {
				continue
			}
			media := l.Media
			if m.Media != nil {
				media = *m.Media
			}
			return l.use(m, l.Settings.With(m.Settings)), media, true
		}
	}
	return ModelUse{}, l.Media, false
}

// ByID returns what is needed to call the model "provider/model", or an alias
// of one, with settings s.
func (l *LLM) ByID(id string, s Settings) ModelUse {
	id = l.Resolve(id)
	provider, _ := SplitModel(id)
	return ModelUse{ID: id, Settings: s, APIKey: l.APIKeys[provider], Endpoint: l.Endpoints[provider]}
}

// Resolve returns the model id behind an alias, or id itself.
func (l *LLM) Resolve(id string) string {
	if to, ok := l.Aliases[id]; ok {
		return to
	}
	return id
}

// OverlordUse returns the model that the overlord thinks with: base, else its
// model, else the formation's text model.
func (f *Formation) OverlordUse() ModelUse {
	o := f.Overlord.LLM
	switch {
	case o.Base.ID != "":
		return f.LLM.Use([]Model{o.Base}, o.Settings)
	case o.Model != "":
		return f.LLM.Use([]Model{{Capability: CapabilityText, ID: o.Model}}, o.Settings)
	}
	return f.LLM.Use(nil, o.Settings)
}

// SynthesisUse returns the model that words the final answer, the overlord's
// when the manifest names none.
func (f *Formation) SynthesisUse() ModelUse {
	o := f.Overlord.LLM
	if o.Synthesis.ID == "" {
		return f.OverlordUse()
	}
	return f.LLM.Use([]Model{o.Synthesis}, o.Settings)
}

func modelFor(models []Model, capability string) *Model {
	for i := range models {
		if models[i].Capability == capability {
			return &models[i]
		}
	}
	return nil
}

package llm

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
)

// Config is what a Router is made of. Providers is required.
type Config struct {
	// Providers are the known providers by the name in front of the slash.
	Providers map[string]Provider
	// Compatible serves every other name that has an endpoint; nil refuses them.
	Compatible Provider
	// Endpoints replace base URLs by provider name (llm.endpoints).
	Endpoints map[string]string
	// Aliases are short names for model ids (llm.aliases).
	Aliases map[string]string
	// Key returns the API key of a provider, "" when none is configured. It is
	// asked at every call: one that has changed opens the provider anew, so it
	// must be quick. nil means no keys.
	Key func(provider string) (Secret, error)
	// Meter allows and counts calls; nil counts nothing.
	Meter Meter
	// Price tells what a use of a model costs; false for a model without a price.
	// nil means that none has one.
	Price func(modelID string, u chat.Usage) (amount float64, currency string, ok bool)
	// Local serves the embeddings of "local/…"; nil refuses them.
	Local Embedder
	// Caching reuses answers (llm.settings.caching); zero does not.
	Caching Caching
	// Transport carries all calls; nil makes one tuned for many calls to few hosts.
	Transport http.RoundTripper
	// Redact takes secrets out of the words of providers, which are served and
	// stored; nil takes none but the provider's key.
	Redact func(text string) string
	Log    zerolog.Logger
}

// Router finds the model behind an id and makes calls that survive what can be
// survived: it retries, restarts broken streams and falls back to another
// model. It is safe for concurrent use. Nothing is connected before the first call.
type Router struct {
	cfg   Config
	cache *cache // nil when caching is off

	mu       sync.Mutex          // guards the fields that follow
	opened   map[string]opened   // by provider
	circuits map[string]*breaker // by model id
	own      *http.Transport     // made at the first use when Config.Transport is nil
}

// NewRouter checks cfg and returns a Router; it opens nothing.
func NewRouter(cfg Config) (*Router, error) {
	r := &Router{cfg: cfg, cache: newCache(cfg.Caching), opened: make(map[string]opened, len(cfg.Providers)), circuits: map[string]*breaker{}}
	for name, id := range cfg.Aliases {
		if err := r.Check(id); err != nil {
			return nil, fmt.Errorf("alias %q: %w", name, err)
		}
	}
	return r, nil
}

// Check tells whether modelID, an id or an alias, names a known provider. It
// does not connect.
func (r *Router) Check(modelID string) error {
	_, err := r.split(modelID)
	return err
}

// Stream runs one completion with the model behind modelID ("provider/model"
// or an alias); req.Model is ignored. Settings.MaxRetries, Timeout and Fallback
// are applied here. An error that ends the sequence is a *fault.Error naming
// the model, never the key.
func (r *Router) Stream(ctx context.Context, modelID string, req Request) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		ctx, span := r.trace(ctx, modelID, req.Purpose, req.Account)
		c := call{router: r, req: req, yield: span.listen(yield)}
		if c.replay(ctx, modelID) {
			span.end(nil)
			return
		}
		err := c.run(ctx, modelID)
		span.end(err)
		if err != nil && !c.stopped {
			yield(Chunk{}, err)
		}
		if err == nil {
			c.keep.store()
		}
	}
}

// Model returns the model behind modelID as a Model whose calls go through
// the Router.
func (r *Router) Model(modelID string) Model { return bound{router: r, id: modelID} }

// Close releases idle connections. Calls that run are not disturbed.
func (r *Router) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own != nil {
		r.own.CloseIdleConnections()
	}
}

type bound struct {
	router *Router
	id     string
}

func (b bound) Stream(ctx context.Context, req Request) iter.Seq2[Chunk, error] {
	return b.router.Stream(ctx, b.id, req)
}

// target is a resolved model id.
type target struct {
	id       string // "provider/model", aliases resolved
	provider string
	model    string
	open     Provider
}

// split resolves aliases and cuts the id at its first slash; model names may
// hold more of them ("openrouter/meta/llama").
func (r *Router) split(modelID string) (target, error) {
	id := modelID
	if to, ok := r.cfg.Aliases[id]; ok {
		id = to
	}
	provider, model, ok := strings.Cut(id, "/")
	if !ok || provider == "" || model == "" {
		return target{}, fault.Errorf(fault.Failed, "", "model id %q: want provider/model, for example openai/gpt-5-mini", modelID)
	}
	t := target{id: id, provider: provider, model: model, open: r.cfg.Providers[provider]}
	if provider == localProvider {
		return t, r.checkLocal(modelID, model)
	}
	if t.open == nil && r.cfg.Endpoints[provider] != "" {
		t.open = r.cfg.Compatible
	}
	if t.open == nil {
		return target{}, fault.Errorf(fault.Failed, "",
			"model id %q: unknown provider %q; known are %s, or set llm.endpoints.%s to the base URL of an OpenAI-compatible server",
			modelID, provider, strings.Join(slices.Sorted(maps.Keys(r.cfg.Providers)), ", "), provider)
	}
	return t, nil
}

// opened is a provider's Model with the key that it was made with.
type opened struct {
	model Model
	key   Secret
}

// model returns the provider's Model, made at the first call and again when the
// provider has another key. Calls that run go on with the one they have.
func (r *Router) model(t target) (Model, error) {
	var key Secret
	if r.cfg.Key != nil {
		var err error
		if key, err = r.cfg.Key(t.provider); err != nil {
			return nil, fmt.Errorf("api key of provider %s: %w", t.provider, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have, again := r.opened[t.provider]
	if again && have.key == key {
		return have.model, nil
	}
	m, err := t.open(Endpoint{
		Name: t.provider, BaseURL: r.cfg.Endpoints[t.provider], Key: key, Transport: r.transport(), Hide: r.cfg.Redact,
	})
	if err != nil {
		return nil, fmt.Errorf("open provider %s: %w", t.provider, err)
	}
	r.opened[t.provider] = opened{m, key}
	if again {
		// What failed with the other key says nothing about this one.
		maps.DeleteFunc(r.circuits, func(id string, _ *breaker) bool { return strings.HasPrefix(id, t.provider+"/") })
		r.cfg.Log.Info().Str("provider", t.provider).Msg("the key of a model provider has changed")
	}
	return m, nil
}

// circuit returns the breaker of a model.
func (r *Router) circuit(t target) *breaker {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.circuits[t.id]
	if !ok {
		b = &breaker{}
		r.circuits[t.id] = b
	}
	return b
}

// transport returns the shared transport; the caller holds mu.
func (r *Router) transport() http.RoundTripper {
	if r.cfg.Transport != nil {
		return r.cfg.Transport
	}
	if r.own == nil {
		r.own = newTransport()
	}
	return r.own
}

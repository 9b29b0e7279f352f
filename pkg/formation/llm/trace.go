package llm

import (
	"context"
	"sync"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// asked is one call as its span tells it. A nil one tells nothing: nobody
// traces.
type asked struct {
	router *Router
	span   *telemetry.Span

	mu       sync.Mutex // guards the fields that follow
	model    string     // that was asked last
	attempts int
	used     chat.Usage
	amount   float64
	currency string
	unpriced bool
	whole    bool // the answer came to its end
}

type askedKey struct{}

// trace opens the span of a call. Attempts find it in the context.
func (r *Router) trace(ctx context.Context, modelID, purpose string, who Account) (context.Context, *asked) {
	t, err := r.split(modelID)
	if err != nil {
		t = target{id: modelID}
	}
	ctx, span := telemetry.Start(ctx, telemetry.KindModel, t.id)
	if span == nil {
		return ctx, nil
	}
	a := &asked{router: r, span: span, model: t.id}
	span.Set(telemetry.AttrProvider, t.provider)
	span.Set(telemetry.AttrModel, t.model)
	switch purpose {
	case "":
	case telemetry.OperationEmbeddings, telemetry.OperationTranscription:
		span.Set(telemetry.AttrOperation, purpose)
	default:
		span.Set("purpose", purpose)
	}
	if who.Agent != "" {
		span.Set(telemetry.AttrAgent, who.Agent)
	}
	return context.WithValue(ctx, askedKey{}, a), a
}

func askedIn(ctx context.Context) *asked {
	a, _ := ctx.Value(askedKey{}).(*asked)
	return a
}

// attempt notes that a model is about to be asked, which may be the fallback.
func (a *asked) attempt(modelID string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attempts++
	if modelID == a.model {
		return
	}
	if t, err := a.router.split(modelID); err == nil {
		a.model = modelID
		a.span.Set(telemetry.AttrProvider, t.provider)
		a.span.Set(telemetry.AttrModel, t.model)
		a.span.Rename(t.id)
	}
}

// use adds what an attempt used.
func (a *asked) use(modelID string, u chat.Usage) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = a.used.Add(u)
	if a.router.cfg.Price == nil {
		a.unpriced = true
		return
	}
	amount, currency, ok := a.router.cfg.Price(modelID, u)
	if !ok {
		a.unpriced = true
		return
	}
	a.amount, a.currency = a.amount+amount, currency
}

// listen returns yield with an ear for the last chunk.
func (a *asked) listen(yield func(Chunk, error) bool) func(Chunk, error) bool {
	if a == nil {
		return yield
	}
	return func(chunk Chunk, err error) bool {
		if chunk.Done {
			a.heard(chunk)
		}
		return yield(chunk, err)
	}
}

// heard notes the last chunk of an answer.
func (a *asked) heard(last Chunk) {
	if last.Finish != "" {
		a.span.Set(telemetry.AttrFinish, last.Finish)
	}
	if last.Model != "" {
		a.span.Set(telemetry.AttrResponseModel, last.Model)
	}
	a.span.Set(telemetry.AttrCached, last.Cached)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.whole = true
}

// made notes which model has answered.
func (a *asked) made(model string) {
	if a != nil && model != "" {
		a.span.Set(telemetry.AttrResponseModel, model)
	}
}

// end closes the span with what the attempts have used.
func (a *asked) end(err error) {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.span.Set(telemetry.AttrTokens, telemetry.Tokens{
		Input: a.used.PromptTokens, Output: a.used.CompletionTokens, Cached: a.used.CachedTokens,
	})
	var cost *telemetry.Cost
	if a.currency != "" && !a.unpriced {
		cost = &telemetry.Cost{Amount: a.amount, Currency: a.currency}
	}
	a.span.Set(telemetry.AttrCost, cost)
	a.span.Set("retries", max(0, a.attempts-1))
	if a.whole { // a reader may leave with the last chunk
		err = nil
	}
	a.mu.Unlock()
	a.span.End(err)
}

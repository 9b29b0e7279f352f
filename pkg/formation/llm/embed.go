package llm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// The tasks of an EmbedRequest: models that know them place a question near
// the texts that answer it.
const (
	TaskQuery    = "query"
	TaskDocument = "document"
)

// EmbedRequest asks for one vector per text.
type EmbedRequest struct {
	// Model is the name behind the provider prefix; the Router sets it.
	Model string
	// Texts are embedded in this order; none may be empty.
	Texts []string
	// Task is "", TaskQuery or TaskDocument. Models without tasks ignore it.
	Task    string
	Account Account
}

// Embedding is the answer to an EmbedRequest: one vector per text, in order
// and all of one dimension.
type Embedding struct {
	Vectors [][]float32
	Usage   chat.Usage
	Model   string // the model that answered, as the provider names it
}

// Embedder makes vectors of texts. The Model of a provider may implement it;
// implementations are safe for concurrent use.
type Embedder interface {
	Embed(ctx context.Context, req EmbedRequest) (Embedding, error)
}

// localProvider is the name in front of models that this host runs.
const localProvider = "local"

// How embeddings are asked for. There is no fallback: the vectors of two
// models do not compare.
const (
	embedBatch   = 96               // texts in one call; the least that all providers take is 100
	embedRetries = 3                // attempts of one call after the first
	embedTimeout = 60 * time.Second // of one attempt
)

// Embed returns the vectors of req.Texts by the model behind modelID
// ("provider/model" or an alias); req.Model is ignored. Long lists are sent in
// several calls. "local/…" is served by Config.Local.
func (r *Router) Embed(ctx context.Context, modelID string, req EmbedRequest) (out Embedding, err error) {
	ctx, span := r.trace(ctx, modelID, telemetry.OperationEmbeddings, req.Account)
	defer func() { span.made(out.Model); span.end(err) }()
	t, err := r.split(modelID)
	if err != nil {
		return Embedding{}, err
	}
	req.Model = t.model
	if len(req.Texts) == 0 {
		return Embedding{Model: t.model}, nil
	}
	if t.provider == localProvider {
		return r.embedLocal(ctx, t, req)
	}
	model, err := r.model(t)
	if err != nil {
		return Embedding{}, unopened(t, err)
	}
	embedder, ok := model.(Embedder)
	if !ok {
		return Embedding{}, unable("model " + t.id + ": provider " + t.provider + " makes no embeddings")
	}
	var sum Embedding
	for from := 0; from < len(req.Texts); from += embedBatch {
		batch := req
		batch.Texts = req.Texts[from:min(from+embedBatch, len(req.Texts))]
		part, err := r.embedRemote(ctx, t, embedder, batch)
		if err != nil {
			return Embedding{}, err
		}
		if from > 0 && len(part.Vectors[0]) != len(sum.Vectors[0]) {
			return Embedding{}, (&CallError{Reason: Garbled, Detail: "vectors of two dimensions"}).asFault(t.id)
		}
		sum.Vectors = append(sum.Vectors, part.Vectors...)
		sum.Usage, sum.Model = sum.Usage.Add(part.Usage), part.Model
	}
	return sum, nil
}

// embedLocal costs nothing and does not travel: it is neither metered nor
// repeated, as the host's process restarts by itself.
func (r *Router) embedLocal(ctx context.Context, t target, req EmbedRequest) (Embedding, error) {
	out, err := r.cfg.Local.Embed(ctx, req)
	if err != nil {
		return Embedding{}, fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+t.id+": "+fault.From(err).Message, err)
	}
	if err := checkVectors(out, req); err != nil {
		return Embedding{}, err.asFault(t.id)
	}
	return out, nil
}

// embedRemote makes one call, again when it may help.
func (r *Router) embedRemote(ctx context.Context, t target, embedder Embedder, req EmbedRequest) (out Embedding, err error) {
	prompt := 0
	for _, text := range req.Texts {
		prompt += textTokens(text)
	}
	c := call{router: r}
	err = c.persist(ctx, t, embedRetries, func() error {
		book, err := r.reserve(ctx, Call{ModelID: t.id, Account: req.Account, Prompt: prompt, Embedding: true})
		if err != nil {
			return c.refuse(err)
		}
		defer book.close(ctx)
		attempt, cancel := context.WithTimeoutCause(ctx, embedTimeout, errSilent)
		defer cancel()
		out, err = embedder.Embed(attempt, req)
		if err == nil {
			if bad := checkVectors(out, req); bad != nil {
				err = bad
			}
		}
		if err != nil {
			book.leave(attempt)
			return c.verdict(attempt, err, embedTimeout)
		}
		out.Usage = plausible(out.Usage)
		book.done(out.Usage)
		return nil
	})
	return out, err
}

// checkVectors finds what would break an index later.
func checkVectors(e Embedding, req EmbedRequest) *CallError {
	if len(e.Vectors) != len(req.Texts) {
		return &CallError{Reason: Garbled, Detail: fmt.Sprintf("%d vectors for %d texts", len(e.Vectors), len(req.Texts))}
	}
	for _, v := range e.Vectors {
		if len(v) == 0 || len(v) != len(e.Vectors[0]) {
			return &CallError{Reason: Garbled, Detail: "vectors of no or of two dimensions"}
		}
	}
	return nil
}

// unopened is the fault of a provider that could not be set up.
func unopened(t target, err error) error {
	return fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+t.id+": "+err.Error(), err)
}

// checkLocal tells whether "local/…" can be served at all.
func (r *Router) checkLocal(modelID, model string) error {
	owner, name, ok := strings.Cut(model, "/")
	if !ok || owner == "" || name == "" {
		return fault.Errorf(fault.Failed, "", "model id %q: want local/owner/name", modelID)
	}
	if r.cfg.Local == nil {
		return fault.Errorf(fault.Failed, "", "model id %q: this host has no embedding process", modelID)
	}
	return nil
}

package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/genai"

	"github.com/agentformation/service/pkg/formation/llm"
)

const (
	googleBase    = "https://generativelanguage.googleapis.com"
	googleVersion = "v1beta" // the documented one for tools and schemas
)

// google speaks the Gemini API through the official SDK, which reads and writes
// the bodies. What the SDK makes of faults is not used: trip tells them.
type google struct {
	peer
	base      *url.URL
	version   string
	transport http.RoundTripper
	// noSchema holds the models that take no schema of a reply.
	noSchema sync.Map

	once   sync.Once
	client *genai.Client // made by the first call
}

// NewGoogle makes the adapter of Google's Gemini API, or of a server that
// speaks it at the endpoint's base URL, with or without the version. It is an
// llm.Provider.
func NewGoogle(ep llm.Endpoint) (llm.Model, error) {
	u, err := baseURL(ep, googleBase)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(u.Host, ".googleapis.com") && ep.Key == "" {
		return nil, fmt.Errorf("no API key: set llm.api_keys.%s to a secret reference", ep.Name)
	}
	g := &google{peer: newPeer(ep), base: u, version: googleVersion, transport: ep.Transport}
	u.Path = strings.TrimRight(u.Path, "/")
	for _, version := range []string{"v1", "v1alpha", "v1beta"} {
		if path, ok := strings.CutSuffix(u.Path, "/"+version); ok {
			u.Path, g.version = path, version
		}
	}
	return g, nil
}

// models returns the SDK's service. The client opens nothing, but makes more
// than thirty services, so that a formation without Google has none.
func (g *google) models(ctx context.Context) (*genai.Models, error) {
	g.once.Do(func() {
		key := g.key
		if key == "" {
			key = noKey // the SDK would look into the environment
		}
		g.client, _ = genai.NewClient(ctx, &genai.ClientConfig{ // its error shows the key
			APIKey:  key,
			Backend: genai.BackendGeminiAPI,
			HTTPClient: &http.Client{
				Transport:     tripper{g.transport},
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
			HTTPOptions: genai.HTTPOptions{BaseURL: g.base.String(), APIVersion: g.version},
		})
	})
	if g.client == nil {
		return nil, &llm.CallError{Reason: llm.Refused, Detail: "the client could not be set up; check llm.endpoints." + g.name}
	}
	return g.client.Models, nil
}

// Stream runs one completion; see llm.Model.
func (g *google) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		out := &contentReply{out: answer{model: req.Model, yield: yield}}
		err := g.run(ctx, req, out)
		if err != nil && !out.out.stopped {
			yield(llm.Chunk{}, g.scrubbed(err))
		}
	}
}

// run makes the call, again without the schema when the model takes none.
func (g *google) run(ctx context.Context, req llm.Request, out *contentReply) error {
	models, err := g.models(ctx)
	if err != nil {
		return err
	}
	_, noSchema := g.noSchema.Load(req.Model)
	for {
		contents, config, hinted, err := g.contents(req, noSchema)
		if err != nil {
			return err
		}
		out.out.hold = hinted
		t := &trip{}
		call := context.WithValue(ctx, tripKey{}, t)
		if req.Deltas {
			err = out.stream(models.GenerateContentStream(call, req.Model, contents, config))
		} else {
			err = out.plain(models.GenerateContent(call, req.Model, contents, config))
		}
		if err == nil && t.err == nil {
			if noSchema {
				g.noSchema.Store(req.Model, true)
			}
			return out.out.end(!req.Deltas)
		}
		failed := g.verdict(t, err)
		if noSchema || len(req.Schema) == 0 || failed.Status != http.StatusBadRequest || !strings.Contains(strings.ToLower(failed.Detail), "schema") {
			return failed
		}
		noSchema = true
	}
}

// verdict classifies a call that did not end well.
func (g *google) verdict(t *trip, err error) *llm.CallError {
	var api genai.APIError
	var known *llm.CallError
	switch {
	case errors.As(err, &known):
		return known
	case t.status == 0:
		return g.unreached(t.err)
	case t.status != http.StatusOK:
		return g.refused(t, err)
	case t.err != nil:
		failed, _ := errors.AsType[*llm.CallError](streamFailure(t.err))
		return failed
	case t.page:
		return &llm.CallError{Reason: llm.Missing, Detail: "a web page answered instead of a model; check llm.endpoints." + g.name}
	case errors.As(err, &api):
		return said{message: api.Message, kind: api.Status}.inStream()
	}
	return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of a Gemini reply", Cause: err}
}

// refused reads an error with the details that Google adds: when to come again,
// and which quota is used up. One of a day is not worth waiting for.
func (g *google) refused(t *trip, err error) *llm.CallError {
	failed := g.refusal(refusal{status: t.status, header: t.header, said: readError(t.body), cause: err})
	var body struct {
		Error struct {
			Details []struct {
				RetryDelay string `json:"retryDelay"`
				Violations []struct {
					QuotaID string `json:"quotaId"`
				} `json:"violations"`
			} `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(t.body, &body) != nil {
		return failed
	}
	for _, d := range body.Error.Details {
		if wait, err := time.ParseDuration(d.RetryDelay); err == nil && wait > 0 && failed.RetryAfter == 0 {
			failed.RetryAfter = wait
		}
		for _, v := range d.Violations {
			if failed.Reason == llm.Throttled && strings.Contains(v.QuotaID, "PerDay") {
				failed.Reason = llm.Exhausted
			}
		}
	}
	return failed
}

// Embed makes vectors of texts; see llm.Embedder. The provider does not count
// their tokens.
func (g *google) Embed(ctx context.Context, req llm.EmbedRequest) (llm.Embedding, error) {
	models, err := g.models(ctx)
	if err != nil {
		return llm.Embedding{}, err
	}
	contents := make([]*genai.Content, len(req.Texts))
	for i, text := range req.Texts {
		contents[i] = genai.NewContentFromText(text, genai.RoleUser)
	}
	config := &genai.EmbedContentConfig{}
	switch req.Task {
	case llm.TaskQuery:
		config.TaskType = "RETRIEVAL_QUERY"
	case llm.TaskDocument:
		config.TaskType = "RETRIEVAL_DOCUMENT"
	}
	t := &trip{}
	res, err := models.EmbedContent(context.WithValue(ctx, tripKey{}, t), req.Model, contents, config)
	if err != nil || t.err != nil {
		return llm.Embedding{}, g.scrubbed(g.verdict(t, err))
	}
	out := llm.Embedding{Model: req.Model}
	for _, e := range res.Embeddings {
		out.Vectors = append(out.Vectors, e.Values)
	}
	return out, nil
}

package provider

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/formation/llm"
)

// The address that Ollama listens on, and bounds of asking it for its models.
const (
	ollamaBase    = "http://127.0.0.1:11434"
	tagsTimeout   = 2 * time.Second
	maxTags       = 1 << 20 // bytes
	maxTagsListed = 10
)

// ollama speaks Ollama's OpenAI-compatible protocol, and its own where it tells
// which models are installed.
type ollama struct {
	*openAI
	tags      string
	transport http.RoundTripper
}

// NewOllama makes the adapter of an Ollama server: the endpoint's base URL, with
// or without "/v1", or the one on this host. It needs no key. It is an
// llm.Provider.
func NewOllama(ep llm.Endpoint) (llm.Model, error) {
	u, err := baseURL(ep, ollamaBase)
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	ep.BaseURL = u.JoinPath("v1").String()
	m, err := NewOpenAI(ep)
	if err != nil {
		return nil, err
	}
	inner, _ := m.(*openAI)
	return &ollama{openAI: inner, tags: u.JoinPath("api/tags").String(), transport: ep.Transport}, nil
}

// Stream runs one completion; see llm.Model.
func (o *ollama) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		for chunk, err := range o.openAI.Stream(ctx, req) {
			if err != nil {
				err = o.explain(ctx, req.Model, err)
			}
			if !yield(chunk, err) {
				return
			}
		}
	}
}

// Embed makes vectors of texts; see llm.Embedder.
func (o *ollama) Embed(ctx context.Context, req llm.EmbedRequest) (llm.Embedding, error) {
	out, err := o.openAI.Embed(ctx, req)
	if err != nil {
		err = o.explain(ctx, req.Model, err)
	}
	return out, err
}

// explain adds to an error what its reader has to do on the host.
func (o *ollama) explain(ctx context.Context, model string, err error) error {
	failed, ok := errors.AsType[*llm.CallError](err)
	switch {
	case !ok:
	case failed.Reason == llm.Missing:
		failed.Detail = "model " + model + " is not installed; run: ollama pull " + model
		if installed := o.installed(ctx); len(installed) > 0 {
			failed.Detail += " (installed: " + strings.Join(installed, ", ") + ")"
		}
		o.scrub(failed)
	case failed.Detail == refusedDetail:
		failed.Detail = "connection refused; is ollama running at " + o.host() + "?"
	}
	return err
}

func (o *ollama) host() string {
	u, err := url.Parse(o.tags)
	if err != nil {
		return ollamaBase
	}
	return u.Host
}

// installed lists the models of the server, nil when it does not tell.
func (o *ollama) installed(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, tagsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.tags, nil)
	if err != nil {
		return nil
	}
	if o.key != "" {
		req.Header.Set("Authorization", "Bearer "+o.key)
	}
	res, err := o.transport.RoundTrip(req)
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	var list struct {
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxTags)).Decode(&list) != nil {
		return nil
	}
	var names []string
	for _, m := range list.Models[:min(len(list.Models), maxTagsListed)] {
		names = append(names, m.Name)
	}
	return names
}

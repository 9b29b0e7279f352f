package provider

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/agentformation/service/pkg/formation/llm"
)

const anthropicBase = "https://api.anthropic.com"

// anthropic speaks the Messages protocol. The official SDK makes the request
// and carries it; the reply is read here, as that of OpenAI is: within bounds,
// and sorted by what may be tried again.
type anthropic struct {
	wire
	client sdk.Client
	// quirks holds what a model was found not to take: model name to messageQuirks.
	quirks sync.Map
}

// messageQuirks are optional fields that a model refuses.
type messageQuirks struct {
	noTemperature bool
	noSchema      bool // JSON by a tool that must be called instead
}

// NewAnthropic makes the adapter of Anthropic, or of a server that speaks its
// protocol at the endpoint's base URL, with or without "/v1". It is an
// llm.Provider.
func NewAnthropic(ep llm.Endpoint) (llm.Model, error) {
	u, err := baseURL(ep, anthropicBase)
	if err != nil {
		return nil, err
	}
	if u.Host == "api.anthropic.com" && ep.Key == "" {
		return nil, fmt.Errorf("no API key: set llm.api_keys.%s to a secret reference", ep.Name)
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1") + "/"
	options := []option.RequestOption{
		option.WithBaseURL(u.String()),
		option.WithMaxRetries(0), // the Router retries
		option.WithHTTPClient(exchanger{ep.Transport}),
	}
	if ep.Key != "" {
		options = append(options, option.WithAPIKey(string(ep.Key)))
	}
	return &anthropic{
		// Not NewClient: it reads the environment and the files of a user.
		client: sdk.Client{Options: options},
		wire:   wire{peer: newPeer(ep)},
	}, nil
}

// Stream runs one completion; see llm.Model.
func (a *anthropic) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		reply := newMessageReply(req.Model, yield)
		res, err := a.post(ctx, req, reply)
		if err != nil {
			yield(llm.Chunk{}, err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		a.read(res, reply, cancel)
	}
}

// post sends the request, again without a field that the model refuses, and
// tells reply in which form JSON will come.
func (a *anthropic) post(ctx context.Context, req llm.Request, reply *messageReply) (*http.Response, error) {
	var known messageQuirks
	if q, ok := a.quirks.Load(req.Model); ok {
		known, _ = q.(messageQuirks)
	}
	q := known
	for {
		params, hinted, err := a.params(req, q)
		if err != nil {
			return nil, err
		}
		var more []option.RequestOption
		if req.Deltas {
			more = append(more, option.WithJSONSet("stream", true))
		}
		var res *http.Response
		err = a.client.Post(ctx, "v1/messages", params, &res, more...)
		if err == nil && res.StatusCode == http.StatusOK {
			if q != known {
				a.quirks.Store(req.Model, q)
			}
			reply.out.hold, reply.forced = hinted, params.ToolChoice.OfTool != nil
			return res, nil
		}
		failed, said := a.failure(res, err)
		relaxed, ok := q.relax(failed.Status, said.all())
		if !ok {
			return nil, failed
		}
		q = relaxed
	}
}

// relax returns the quirks to try after a refusal in these words; ok is false
// when the refusal is not about an optional field.
func (q messageQuirks) relax(status int, refusal string) (relaxed messageQuirks, ok bool) {
	text := strings.ToLower(refusal)
	if status != http.StatusBadRequest || !containsAny(text, refusals[:]) && !strings.Contains(text, "deprecated") {
		return q, false
	}
	switch {
	case strings.Contains(text, "temperature") && !q.noTemperature:
		q.noTemperature = true
	case containsAny(text, []string{"output_config", "output format", "output_format", "structured output", "schema"}) && !q.noSchema:
		q.noSchema = true
	default:
		return q, false
	}
	return q, true
}

package provider

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"sync"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

const openAIBase = "https://api.openai.com/v1"

// openAI speaks the chat completions protocol. It uses the official SDK for
// addresses, keys and transport, and its own encoder and decoder: the SDK's
// cost several times more (see the benchmarks of this package).
type openAI struct {
	wire
	client openai.Client
	// native tells that the other side is OpenAI itself, not a server that
	// speaks its protocol.
	native bool

	// quirks holds what a model was found not to understand: model name to quirks.
	quirks sync.Map
}

// NewOpenAI makes the adapter of OpenAI, or of the OpenAI-compatible server at
// the endpoint's base URL. It is an llm.Provider.
func NewOpenAI(ep llm.Endpoint) (llm.Model, error) {
	u, err := baseURL(ep, openAIBase)
	if err != nil {
		return nil, err
	}
	native := u.Host == "api.openai.com"
	if native && ep.Key == "" {
		return nil, fmt.Errorf("no API key: set llm.api_keys.%s to a secret reference", ep.Name)
	}
	return &openAI{
		// Not NewClient: it reads the environment and makes thirty services.
		client: openai.Client{Options: []option.RequestOption{
			option.WithBaseURL(u.String()),
			option.WithAPIKey(string(ep.Key)),
			option.WithMaxRetries(0), // the Router retries
			option.WithHTTPClient(exchanger{ep.Transport}),
		}},
		wire: wire{peer: newPeer(ep)}, native: native,
	}, nil
}

// Stream runs one completion; see llm.Model.
func (o *openAI) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		res, err := o.post(ctx, req)
		if err != nil {
			yield(llm.Chunk{}, err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		reply := newReply(req.Model, yield)
		reply.out.hold = wantsJSON(req) && o.quirksOf(req.Model).format == noFormat
		o.read(res, reply, cancel)
	}
}

// post sends the request. When the server says that it does not understand an
// optional field, the call is made again without it, and so are later calls.
func (o *openAI) post(ctx context.Context, req llm.Request) (*http.Response, error) {
	if err := o.takes(&req); err != nil {
		return nil, err
	}
	known := o.quirksOf(req.Model)
	q := known
	for {
		var res *http.Response
		err := o.client.Post(ctx, "chat/completions", encodeRequest(req, q), &res)
		if err == nil && res.StatusCode == http.StatusOK {
			if q != known {
				o.quirks.Store(req.Model, q)
			}
			return res, nil
		}
		failed, said := o.failure(res, err)
		relaxed, ok := q.relax(failed.Status, said.all())
		if !ok {
			return nil, failed
		}
		q = relaxed
	}
}

func (o *openAI) quirksOf(model string) quirks {
	if q, ok := o.quirks.Load(model); ok {
		if q, ok := q.(quirks); ok {
			return q
		}
	}
	return quirks{newLimitName: o.native}
}

// takes finds media that this server is known not to take, so that the error
// names them. Servers that speak OpenAI's protocol may take more than OpenAI.
func (o *openAI) takes(req *llm.Request) error {
	for i := range req.Messages {
		for _, p := range req.Messages[i].Parts {
			if o.native && p.Kind == chat.Video {
				return untaken(o.name, p)
			}
		}
	}
	return nil
}

// untaken is the refusal of a part, before anything is sent.
func untaken(name string, p chat.Part) *llm.CallError {
	return &llm.CallError{Reason: llm.Refused, Detail: fmt.Sprintf("%s takes no %s of type %q", name, p.Kind, p.MediaType)}
}

package provider

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/agentformation/service/pkg/formation/llm"
)

const (
	openAIBase = "https://api.openai.com/v1"
	// drainTime bounds how long a finished call waits for the end of its
	// stream, which lets the connection be used again.
	drainTime = 50 * time.Millisecond
	readSize  = 4 << 10
)

// openAI speaks the chat completions protocol. It uses the official SDK for
// addresses, keys and transport, and its own encoder and decoder: the SDK's
// cost several times more (see the benchmarks of this package).
type openAI struct {
	client openai.Client
	name   string
	key    string
	// native tells that the other side is OpenAI itself, not a server that
	// speaks its protocol.
	native bool

	// quirks holds what a model was found not to understand: model name to quirks.
	quirks  sync.Map
	readers sync.Pool // *bufio.Reader
	buffers sync.Pool // *bytes.Buffer
}

// NewOpenAI makes the adapter of OpenAI, or of the OpenAI-compatible server at
// the endpoint's base URL. It is an llm.Provider.
func NewOpenAI(ep llm.Endpoint) (llm.Model, error) {
	base := ep.BaseURL
	if base == "" {
		base = openAIBase
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, fmt.Errorf("llm.endpoints.%s: want an http or https URL without a user, for example %s", ep.Name, openAIBase)
	}
	native := u.Host == "api.openai.com"
	if native && ep.Key == "" {
		return nil, fmt.Errorf("no API key: set llm.api_keys.%s to a secret reference", ep.Name)
	}
	return &openAI{
		// Not NewClient: it reads the environment and makes thirty services.
		client: openai.Client{Options: []option.RequestOption{
			option.WithBaseURL(base),
			option.WithAPIKey(string(ep.Key)),
			option.WithMaxRetries(0), // the Router retries
			option.WithHTTPClient(exchanger{ep.Transport}),
		}},
		name: ep.Name, key: string(ep.Key), native: native,
	}, nil
}

// exchanger makes one exchange and follows no redirect, as a key must not
// travel to another host.
type exchanger struct{ transport http.RoundTripper }

// Do sends req without the SDK's description of this machine, and bounds the
// bodies of errors, which the SDK reads whole.
func (e exchanger) Do(req *http.Request) (*http.Response, error) {
	for name := range req.Header {
		if strings.HasPrefix(name, "X-Stainless-") {
			delete(req.Header, name)
		}
	}
	res, err := e.transport.RoundTrip(req)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		res.Body = boundedBody{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, err
}

type boundedBody struct {
	io.Reader
	io.Closer
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
		if isEventStream(res) {
			err = o.readStream(res.Body, reply, cancel)
		} else {
			err = o.readPlain(res, reply)
		}
		if err != nil && !reply.stopped {
			yield(llm.Chunk{}, err)
		}
	}
}

// post sends the request. When the server says that it does not understand an
// optional field, the call is made again without it, and so are later calls.
func (o *openAI) post(ctx context.Context, req llm.Request) (*http.Response, error) {
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
		failed, refusal := o.failure(res, err)
		relaxed, ok := q.relax(failed.Status, refusal)
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

func isEventStream(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}

// readStream passes the stream's events to reply.
func (o *openAI) readStream(body io.Reader, reply *reply, cancel func()) error {
	in := o.reader(body)
	defer o.putReader(in)
	events := eventReader{in: in}
	for {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return reply.end(false)
		}
		if err != nil {
			return streamFailure(err)
		}
		data = bytes.TrimSpace(data)
		if len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			if err := reply.end(true); err != nil {
				return err
			}
			stop := time.AfterFunc(drainTime, cancel)
			defer stop.Stop()
			_, _ = io.CopyN(io.Discard, in, readSize)
			return nil
		}
		if err := reply.event(data); err != nil {
			return o.scrubbed(err)
		}
		if reply.stopped {
			return nil
		}
	}
}

func (o *openAI) reader(body io.Reader) *bufio.Reader {
	if in, ok := o.readers.Get().(*bufio.Reader); ok {
		in.Reset(body)
		return in
	}
	return bufio.NewReaderSize(body, readSize)
}

func (o *openAI) putReader(in *bufio.Reader) {
	in.Reset(nil)
	o.readers.Put(in)
}

// readPlain reads a reply that comes in one piece.
func (o *openAI) readPlain(res *http.Response, reply *reply) error {
	buf, ok := o.buffers.Get().(*bytes.Buffer)
	if !ok {
		buf = new(bytes.Buffer)
	}
	buf.Reset()
	defer func() {
		if buf.Cap() <= 1<<20 {
			o.buffers.Put(buf)
		}
	}()
	n, err := buf.ReadFrom(io.LimitReader(res.Body, maxReply+1))
	switch {
	case err != nil:
		return streamFailure(err)
	case n > maxReply:
		return streamFailure(errReplyTooLong)
	case strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		return &llm.CallError{Reason: llm.Missing, Detail: "a web page answered instead of a model; check llm.endpoints." + o.name}
	}
	if err := reply.event(buf.Bytes()); err != nil {
		return o.scrubbed(err)
	}
	return reply.end(true)
}

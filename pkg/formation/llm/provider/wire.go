package provider

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/llm"
)

const (
	// drainTime bounds how long a finished call waits for the end of its
	// stream, which lets the connection be used again.
	drainTime = 50 * time.Millisecond
	readSize  = 4 << 10
)

// wire reads the replies of the protocols that stream server-sent events.
type wire struct {
	peer
	readers sync.Pool // *bufio.Reader
	buffers sync.Pool // *bytes.Buffer
}

// decoder understands the objects of one reply.
type decoder interface {
	// event reads an object of a stream; done tells that the answer is complete.
	event(data []byte) (done bool, err error)
	// plain reads a reply that comes in one piece.
	plain(data []byte) error
	// end yields the Done chunk. complete tells that the server said it was
	// done; else the stream just ended.
	end(complete bool) error
	// answer is what has been understood so far.
	answer() *answer
}

// baseURL returns where to connect: the endpoint's own address, or normal.
func baseURL(ep llm.Endpoint, normal string) (*url.URL, error) {
	base := ep.BaseURL
	if base == "" {
		base = normal
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, fmt.Errorf("llm.endpoints.%s: want an http or https URL without a user, for example %s", ep.Name, normal)
	}
	return u, nil
}

// exchanger makes one exchange and follows no redirect, as a key must not
// travel to another host.
type exchanger struct{ transport http.RoundTripper }

// Do sends req without the SDK's description of this machine, and bounds the
// bodies of errors, which the SDK reads whole. A body that can be had anew is:
// in the SDK's wrapper net/http does not know that it is in memory, and sends
// the header in a packet of its own before.
func (e exchanger) Do(req *http.Request) (*http.Response, error) {
	if req.GetBody != nil {
		if body, err := req.GetBody(); err == nil {
			req.Body = body
		}
	}
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

// read passes a reply to d and yields its error, if any. The caller closes it.
func (w *wire) read(res *http.Response, d decoder, cancel func()) {
	var err error
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = w.readStream(res.Body, d, cancel)
	} else {
		err = w.readPlain(res, d)
	}
	if a := d.answer(); err != nil && !a.stopped {
		a.yield(llm.Chunk{}, w.scrubbed(err))
	}
}

// readStream passes the stream's events to d.
func (w *wire) readStream(body io.Reader, d decoder, cancel func()) error {
	in := w.reader(body)
	defer w.putReader(in)
	events := eventReader{in: in}
	for {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return d.end(false)
		}
		if err != nil {
			return streamFailure(err)
		}
		if data = bytes.TrimSpace(data); len(data) == 0 {
			continue
		}
		done, err := d.event(data)
		if err != nil {
			return err
		}
		if done {
			if err := d.end(true); err != nil {
				return err
			}
			stop := time.AfterFunc(drainTime, cancel)
			defer stop.Stop()
			_, _ = io.CopyN(io.Discard, in, readSize)
			return nil
		}
		if d.answer().stopped {
			return nil
		}
	}
}

func (w *wire) reader(body io.Reader) *bufio.Reader {
	if in, ok := w.readers.Get().(*bufio.Reader); ok {
		in.Reset(body)
		return in
	}
	return bufio.NewReaderSize(body, readSize)
}

func (w *wire) putReader(in *bufio.Reader) {
	in.Reset(nil)
	w.readers.Put(in)
}

// readPlain reads a reply that comes in one piece.
func (w *wire) readPlain(res *http.Response, d decoder) error {
	return w.whole(res, func(data []byte) error {
		if err := d.plain(data); err != nil {
			return err
		}
		return d.end(true)
	})
}

// whole reads a body to its end and passes it to use, which must not keep it.
func (w *wire) whole(res *http.Response, use func(data []byte) error) error {
	buf, ok := w.buffers.Get().(*bytes.Buffer)
	if !ok {
		buf = new(bytes.Buffer)
	}
	buf.Reset()
	defer func() {
		if buf.Cap() <= 1<<20 {
			w.buffers.Put(buf)
		}
	}()
	n, err := buf.ReadFrom(io.LimitReader(res.Body, maxReply+1))
	switch {
	case err != nil:
		return streamFailure(err)
	case n > maxReply:
		return streamFailure(errReplyTooLong)
	case strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		return &llm.CallError{Reason: llm.Missing, Detail: "a web page answered instead of a model; check llm.endpoints." + w.name}
	}
	return use(buf.Bytes())
}

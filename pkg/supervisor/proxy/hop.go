package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
)

const (
	// maxSmall is the largest body, in bytes, that is kept to be sent again.
	maxSmall = 64 << 10
	// maxSends bounds how often one request is sent. Each time but the last, no
	// process had read it.
	maxSends = 4
	// maxInformed bounds the 1xx answers before the real one.
	maxInformed = 8
	// uploadGrace is how long an answer waits for the body's end, so that a
	// body which was just read is not taken for one that is still on its way.
	uploadGrace = 50 * time.Millisecond
)

// hop is one request on its way to a formation. It is the http.RoundTripper of
// its ReverseProxy.
type hop struct {
	p    *Proxy
	key  key
	keep string // what of our prefix the formation sees

	member  *member
	backend *backend

	// upload is the exchange that sends a large body, nil when there is none.
	upload *exchange
}

// RoundTrip sends r and returns the answer. A request that nobody can have read
// is sent again, to the process that serves then; one that changes nothing is
// sent once more even if somebody may have read it.
func (h *hop) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := takeBody(r)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "ValidationError", "the body could not be read", err)
	}
	defer body.release()
	again := changesNothing(r.Method)
	for sends := 1; ; sends++ {
		res, unread, err := h.send(r, body)
		if err == nil {
			return res, nil
		}
		ctx := r.Context()
		if !body.whole || sends == maxSends || ctx.Err() != nil || !unread && !again {
			return nil, err
		}
		again = again && unread
		h.p.cfg.Log.Debug().Err(err).Str("formation", h.key.id).Bool("unread", unread).Msg("a request is sent again")
		if err := h.find(ctx); err != nil {
			return nil, err
		}
		r.URL.Host = h.backend.target.Addr
	}
}

// changesNothing tells of methods that may be repeated as one likes.
func changesNothing(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// payload is a request's body: whole in memory, or what is to be streamed.
type payload struct {
	whole  bool
	text   []byte // when whole
	pooled *[usualSize]byte
	rest   io.Reader // when not
}

// usualSize is what most bodies fit into, in bytes.
const usualSize = 4 << 10

// A pool of empty buffers has no identity.
var usual = sync.Pool{New: func() any { return new([usualSize]byte) }}

func (b *payload) release() {
	if b.pooled != nil {
		usual.Put(b.pooled)
		b.pooled = nil
	}
}

// takeBody reads a small body whole. Of one of unknown length it reads so much
// that it is known not to be small.
func takeBody(r *http.Request) (*payload, error) {
	switch {
	case r.Body == nil, r.Body == http.NoBody:
		return &payload{whole: true}, nil
	case r.ContentLength > maxSmall:
		return &payload{rest: r.Body}, nil
	case r.ContentLength < 0:
		var buf bytes.Buffer
		n, err := io.Copy(&buf, io.LimitReader(r.Body, maxSmall+1))
		if err != nil {
			return nil, err
		}
		if n > maxSmall {
			return &payload{rest: io.MultiReader(&buf, r.Body)}, nil
		}
		return &payload{whole: true, text: buf.Bytes()}, nil
	}
	b := &payload{whole: true}
	if r.ContentLength <= usualSize {
		b.pooled = usual.Get().(*[usualSize]byte)
		b.text = b.pooled[:r.ContentLength]
	} else {
		b.text = make([]byte, r.ContentLength)
	}
	if _, err := io.ReadFull(r.Body, b.text); err != nil {
		b.release()
		return nil, err
	}
	return b, nil
}

// send sends r once. unread says that no process has read the whole of it.
func (h *hop) send(r *http.Request, body *payload) (_ *http.Response, unread bool, err error) {
	ctx := r.Context()
	c, err := h.backend.take(ctx)
	if err != nil {
		return nil, true, fmt.Errorf("connect to the formation: %w", err)
	}
	// The formation's request ends with the client's.
	x := &exchange{c: c, b: h.backend, stop: context.AfterFunc(ctx, func() { c.Close() })}
	defer func() {
		if err != nil {
			x.drop()
		}
	}()
	if err := h.write(r, body, x); err != nil {
		return nil, true, fmt.Errorf("send the request: %w", err)
	}
	if _, err := c.r.Peek(1); err != nil {
		return nil, c.verdict(err), fmt.Errorf("read the answer: %w", err)
	}
	res, err := x.readHead(r)
	if err != nil {
		return nil, false, fmt.Errorf("read the answer: %w", err)
	}
	x.body, x.reusable = res.Body, !res.Close
	if res.Body == http.NoBody {
		x.end()
		return res, false, nil
	}
	res.Body = x
	return res, false, nil
}

// A pool of empty writers has no identity.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 16<<10) }}

// write sends head and body, a large body by a goroutine: the answer may begin
// before its end.
func (h *hop) write(r *http.Request, body *payload, x *exchange) error {
	x.c.left = maxHeader
	out := *r // the fields are changed for this sending only
	if body.whole {
		out.Body, out.ContentLength = nil, int64(len(body.text))
		if len(body.text) > 0 {
			out.Body = io.NopCloser(bytes.NewReader(body.text))
		}
		out.TransferEncoding = nil
		return writeTo(x.c, &out)
	}
	out.Body = io.NopCloser(body.rest)
	x.uploaded = make(chan struct{})
	h.upload = x
	go func() {
		defer close(x.uploaded)
		if err := writeTo(x.c, &out); err != nil {
			x.failed.Store(true)
			// A formation that refuses the body has answered before; if it has
			// not, the end of the connection shows it.
			_ = x.c.CloseWrite()
		}
	}()
	return nil
}

func writeTo(w io.Writer, r *http.Request) error {
	bw := writers.Get().(*bufio.Writer)
	bw.Reset(w)
	defer func() {
		bw.Reset(nil)
		writers.Put(bw)
	}()
	if err := r.Write(bw); err != nil {
		return err
	}
	return bw.Flush()
}

// unfinished tells that the answer begins although the formation has not taken
// the whole body: it is still on its way, or could not be sent to its end.
func (h *hop) unfinished() bool {
	if h.upload == nil {
		return false
	}
	grace := time.NewTimer(uploadGrace)
	defer grace.Stop()
	select {
	case <-h.upload.uploaded:
		return h.upload.failed.Load()
	case <-grace.C:
		return true
	}
}

// finish waits for the goroutine that sends a large body. It may be waiting for
// the client; then the client's connection ends with the answer, since the rest
// of the body would be taken for the next request.
func (h *hop) finish(c echo.Context, rc *http.ResponseController) {
	if h.upload == nil {
		return
	}
	select {
	case <-h.upload.uploaded:
		return
	default:
	}
	c.Response().Header().Set("Connection", "close")
	_ = rc.SetReadDeadline(time.Unix(1, 0))
	<-h.upload.uploaded
}

// informed passes a 1xx answer on.
func informed(ctx context.Context, res *http.Response) error {
	if t := httptrace.ContextClientTrace(ctx); t != nil && t.Got1xxResponse != nil {
		return t.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header))
	}
	return nil
}

package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/agentformation/service/pkg/version"
)

// expectTimeout is how long an upload waits for the server's word before the
// body follows anyway.
const expectTimeout = 2 * time.Second

// The waits between attempts: 0.5 s, doubled each time, at most 30 s, and up
// to a tenth more. A server that asks for a longer wait ends the retries.
const (
	firstWait = 500 * time.Millisecond
	maxWait   = 30 * time.Second
	jitter    = 0.1
)

// caller sends the calls of one API.
type caller struct {
	base    *url.URL
	http    *http.Client
	prefix  string
	retries int
	// authorize closes over the keys: fmt shows a function as an address.
	authorize func(h http.Header, c *call)
}

// call is one logical call; its attempts share the idempotency key.
type call struct {
	method string
	path   string // decoded, from the slash on, without the base's path: what is signed
	raw    string // the same, escaped
	query  url.Values
	header http.Header

	body   []byte        // a JSON body, or
	stream io.ReadSeeker // a body that is sent once
	size   int64
	hash   string // of the body, "" without one

	key     string        // idempotency key
	bad     string        // a segment that no server could tell from another path
	timeout time.Duration // of one attempt; 0 means none but the context's
}

// newCall makes a call of the path that the segments build. A segment is
// escaped, so that an id from outside stays one segment.
func newCall(method string, segments ...string) *call {
	c := &call{method: method, header: http.Header{}, query: url.Values{}, key: newUUID(), timeout: PlainTimeout}
	var path, raw strings.Builder
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			c.bad = fmt.Sprintf("%q", s)
		}
		path.WriteString("/" + s)
		raw.WriteString("/" + url.PathEscape(s))
	}
	c.path, c.raw = path.String(), raw.String()
	return c
}

// withJSON gives the call a body.
func (c *call) withJSON(v any) (*call, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	c.body, c.hash = body, hashBytes(body)
	c.header.Set("Content-Type", "application/json")
	return c, nil
}

// wantEvents asks for a stream.
func (c *call) wantEvents() *call {
	c.header.Set("Accept", "text/event-stream")
	return c
}

// json performs the call with its retries and decodes the reply's data into
// dst, unless dst is nil.
func (r *caller) json(ctx context.Context, c *call, dst any) error {
	body, err := r.fetch(ctx, c)
	if err != nil || dst == nil {
		return err
	}
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &envelope); err != nil || len(envelope.Data) == 0 {
		return badReply(http.StatusOK, "a body without data")
	}
	if err := json.Unmarshal(envelope.Data, dst); err != nil {
		return badReply(http.StatusOK, err.Error())
	}
	return nil
}

// fetch performs the call with its retries and returns the body of the reply.
func (r *caller) fetch(ctx context.Context, c *call) ([]byte, error) {
	tries := uint(1)
	if c.method == http.MethodGet || c.method == http.MethodDelete {
		tries += uint(max(0, r.retries))
	}
	w := &waits{}
	body, err := backoff.Retry(ctx, func() ([]byte, error) {
		body, err := r.attempt(ctx, c)
		if e, ok := errors.AsType[*Error](err); ok && mayRetry(e) {
			w.asked = e.RetryAfter
			return nil, err
		}
		if err != nil {
			return nil, backoff.Permanent(err)
		}
		return body, nil
	}, backoff.WithBackOff(w), backoff.WithMaxTries(tries), backoff.WithMaxElapsedTime(0))
	if p, ok := errors.AsType[*backoff.PermanentError](err); ok {
		err = p.Unwrap() // the library leaves it wrapped at the last try
	}
	return body, err
}

func mayRetry(e *Error) bool {
	if e.IsDown() {
		return false
	}
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return e.RetryAfter <= maxWait
	}
	return false
}

// attempt sends the call once and reads the reply whole.
func (r *caller) attempt(ctx context.Context, c *call) ([]byte, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	resp, err := r.open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := readReply(resp.Body)
	if err != nil {
		return nil, unreachable(r.base.String(), err)
	}
	return body, nil
}

// open sends the call once. A reply that is no success is an *Error; the body
// of any other is the caller's to read and close.
func (r *caller) open(ctx context.Context, c *call) (*http.Response, error) {
	req, err := r.request(ctx, c)
	if err != nil {
		return nil, err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, unreachable(r.base.String(), err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := readReply(resp.Body)
	if err != nil {
		body = nil // the status still says what went wrong
	}
	return nil, replyError(resp, body)
}

func (r *caller) request(ctx context.Context, c *call) (*http.Request, error) {
	if c.bad != "" {
		return nil, &Error{Status: http.StatusBadRequest, Name: NameInvalidID, Message: c.bad + " is no id"}
	}
	u := *r.base
	u.RawPath = r.base.EscapedPath() + c.raw
	u.Path, u.RawQuery = r.base.Path+c.path, c.query.Encode()
	var body io.Reader
	switch {
	case c.stream != nil:
		body = io.NopCloser(c.stream)
	case len(c.body) > 0:
		body = bytes.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if c.stream != nil {
		req.ContentLength = c.size
	}
	req.Header = c.header.Clone()
	req.Header.Set("X-"+r.prefix+"-SDK", "go/"+version.Version)
	req.Header.Set("X-"+r.prefix+"-Client", runtime.GOOS+"-"+runtime.GOARCH+"/"+runtime.Version())
	req.Header.Set("X-"+r.prefix+"-Idempotency-Key", c.key)
	r.authorize(req.Header, c)
	return req, nil
}

func readReply(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, MaxReply+1))
	if err != nil {
		return nil, fmt.Errorf("read reply: %w", err)
	}
	if len(body) > MaxReply {
		return nil, fmt.Errorf("the reply is over the limit of %d bytes", MaxReply)
	}
	return body, nil
}

// waits is the backoff policy of one call.
type waits struct {
	next  time.Duration
	asked time.Duration // by the last reply; wins when it is longer
}

// Reset makes the next wait the first.
func (w *waits) Reset() { w.next = firstWait }

// NextBackOff returns the wait before the next attempt.
func (w *waits) NextBackOff() time.Duration {
	wait := max(w.next, w.asked)
	w.next = min(2*w.next, maxWait)
	return wait + time.Duration(mathrand.Float64()*jitter*float64(wait)) //nolint:gosec // jitter is no secret
}

// newUUID returns a random UUID (version 4), the form that other clients of
// these APIs use for idempotency keys.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

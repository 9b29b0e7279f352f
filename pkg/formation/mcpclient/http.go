package mcpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	dialTimeout     = 10 * time.Second
	idleConnTimeout = 90 * time.Second
	// streamRetries is how often a stream that broke is taken up again.
	streamRetries = 3
	maxRedirects  = 5
	sessionHeader = "Mcp-Session-Id"
)

// remote is a server over HTTP for one set of credentials. It carries the
// headers of the file to the server and to nobody else.
type remote struct {
	base    *http.Transport
	headers http.Header
	origin  *url.URL
	most    int64
}

func newRemote(t *target, most int) (*remote, error) {
	origin, err := url.Parse(t.endpoint)
	if err != nil || origin.Host == "" {
		return nil, errors.New("its endpoint is no URL")
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &remote{
		base: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: idleConnTimeout, MaxIdleConnsPerHost: 16,
		},
		headers: t.headers, origin: origin, most: int64(most),
	}, nil
}

func (r *remote) client() *http.Client {
	return &http.Client{Transport: r, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errors.New("too many redirects")
		}
		if !sameOrigin(req.URL, r.origin) {
			return fmt.Errorf("a redirect to another host, %s, is not followed", req.URL.Host)
		}
		return nil
	}}
}

func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Host, b.Host)
}

// RoundTrip implements http.RoundTripper.
func (r *remote) RoundTrip(req *http.Request) (*http.Response, error) {
	if !sameOrigin(req.URL, r.origin) {
		return nil, fmt.Errorf("the server names another host, %s, which is not asked", req.URL.Host)
	}
	a := attemptOf(req.Context())
	ctx := req.Context()
	if req.Method == http.MethodPost {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { a.begun.Store(true) }})
	}
	req = req.Clone(ctx)
	maps.Copy(req.Header, r.headers)
	if a.probing && req.Method == http.MethodPost {
		req.Header.Set("Accept", "application/json, text/event-stream, */*")
	}
	resp, err := r.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodPost {
		a.status.Store(int32(resp.StatusCode))
		if resp.StatusCode >= 400 && resp.StatusCode < 500 {
			a.begun.Store(false) // refused
		}
		if resp.StatusCode >= 400 && !a.probing {
			r.refused(a, resp, req.Header.Get(sessionHeader) != "")
		}
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		resp.Body = &limited{ReadCloser: resp.Body, left: r.most}
	}
	return resp, nil
}

// maxRefusal is how much is read of what a server says to a refusal.
const maxRefusal = 64 << 10

// refused looks into the refusal of a message. One by a status alone gets words of
// the protocol: without them the SDK gives the connection up, with the calls of
// all users on it. A session that is not known any more is told by its status, as
// far as the server doesn't say that it is about something else.
func (r *remote) refused(a *attempt, resp *http.Response, inSession bool) {
	if resp.StatusCode == http.StatusNotFound && inSession {
		a.lost.Store(true)
		return
	}
	// What can't be read is no message.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, min(r.most, maxRefusal)))
	resp.Body.Close()
	unknown := resp.StatusCode == http.StatusBadRequest && inSession
	if e := errorIn(body); e != nil {
		unknown = unknown && (e.Code > lastOfProtocol || e.Code < firstOfProtocol)
	} else {
		body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":0,"error":{"code":%d,"message":%q}}`, codeRejected, http.StatusText(resp.StatusCode))
	}
	a.lost.Store(unknown)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// The codes of errors that JSON-RPC itself defines.
const (
	firstOfProtocol = -32768
	lastOfProtocol  = -32100
)

// errorIn is the error of a message that is one, else nil.
func errorIn(body []byte) *jsonrpc.Error {
	if msg, err := jsonrpc.DecodeMessage(body); err == nil {
		if answer, ok := msg.(*jsonrpc.Response); ok {
			e, _ := errors.AsType[*jsonrpc.Error](answer.Error)
			return e
		}
	}
	return nil
}

// limited is a body of which no more than so much is taken.
type limited struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.ReadCloser.Read(p)
	l.left -= int64(n)
	return n, err
}

// How a server over HTTP is spoken to.
const (
	wayStreamable = "streamable-http"
	waySSE        = "sse"
)

// transport returns the SDK's transport for a way.
func (r *remote) transport(way, endpoint string) mcpsdk.Transport {
	if way == waySSE {
		return &mcpsdk.SSEClientTransport{Endpoint: endpoint, HTTPClient: r.client(), MaxEventSize: int(r.most)}
	}
	return &mcpsdk.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: r.client(), MaxRetries: streamRetries, MaxEventSize: int(r.most),
	}
}

// probe asks whether a server is well at an address, which may be a path.
func (r *remote) probe(ctx context.Context, address string) error {
	at, err := r.origin.Parse(address)
	if err != nil {
		return fmt.Errorf("health_check.endpoint: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return err
	}
	client := r.client()
	if !sameOrigin(at, r.origin) {
		client = &http.Client{Transport: r.base} // no credentials there
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}

// Package proxy forwards /api/<formation>/... to the formation's own port.
//
// It promises that the formation sees the request as it was sent (path and
// query still encoded, hop-by-hop headers gone, forwarding headers that can be
// believed), that the client sees the answer as it comes (event streams frame
// by frame), and that the formation's request ends when the client leaves. It
// adds no timeout of its own once the formation has accepted. Where a formation
// answers is asked anew for each request; connections are kept per process, so
// none is reused for a successor. httpapi mounts it.
package proxy

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

const (
	dialTimeout = 5 * time.Second
	// idleTimeout is shorter than the 60 s after which a formation closes an
	// idle connection, so that no request meets a closing one.
	idleTimeout = 45 * time.Second
	idlePerHost = 256
	bufferSize  = 32 << 10
)

// Target says where a formation answers.
type Target struct {
	Addr string // host:port
	// Launch names the process; a new one gets new connections.
	Launch string
}

// Config says how requests are forwarded.
type Config struct {
	Log zerolog.Logger
	// Target finds a formation. Its error is what the client is told; it may
	// wait for a process that is being replaced.
	Target func(ctx context.Context, id string) (Target, error)
	// HeaderPrefix is the word in X-<prefix>-Server, "SVC" when empty.
	HeaderPrefix string
	// Version is the value of that header.
	Version string
	// TrustedProxies are the peers whose forwarding headers are believed.
	TrustedProxies []netip.Prefix
}

// Proxy is safe for concurrent use.
type Proxy struct {
	cfg      Config
	server   string // canonical name of the X-<prefix>-Server header
	buffers  bufferPool
	errorLog *log.Logger

	mu       sync.RWMutex // guards backends
	backends map[string]*backend
}

// backend holds the connections to one process.
type backend struct {
	target    Target
	transport *http.Transport
}

// New returns a Proxy without connections.
func New(cfg Config) *Proxy {
	return &Proxy{
		cfg: cfg, server: http.CanonicalHeaderKey(httpx.HeaderName(cfg.HeaderPrefix, "Server")),
		buffers:  bufferPool{pool: &sync.Pool{New: func() any { return new([bufferSize]byte) }}},
		errorLog: log.New(streamLog{cfg.Log}, "", 0),
		backends: make(map[string]*backend),
	}
}

// streamLog takes the lines of ReverseProxy about streams that broke off: one
// of the two ends left, hence debug.
type streamLog struct{ log zerolog.Logger }

// Write logs one line.
func (l streamLog) Write(p []byte) (int, error) {
	l.log.Debug().Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Mount adds the routes below prefix ("/api"): prefix/:id and all below it.
func (p *Proxy) Mount(e *echo.Echo, prefix string) {
	e.Any(prefix+"/:id", p.handle)
	e.Any(prefix+"/:id/*", p.handle)
}

// Close closes idle connections. Requests in progress go on.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, b := range p.backends {
		b.transport.CloseIdleConnections()
		delete(p.backends, id)
	}
}

func (p *Proxy) handle(c echo.Context) error {
	id := httpx.Param(c, "id")
	b, err := p.backend(c.Request().Context(), id)
	if err != nil {
		return err
	}
	var failed error
	rp := httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { p.rewrite(r, b.target.Addr) },
		ModifyResponse: adapt,
		Transport:      b.transport,
		BufferPool:     p.buffers,
		ErrorLog:       p.errorLog,
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	// Otherwise our server closes the request's body as soon as the answer
	// begins. The transport may still look for that body's end then; it takes the
	// read of a closed one for a fault and cuts the answer off.
	_ = http.NewResponseController(c.Response()).EnableFullDuplex() // a protocol without it has no such rule
	rp.ServeHTTP(c.Response(), c.Request())
	if failed == nil {
		return nil
	}
	if cause := c.Request().Context().Err(); cause != nil {
		return fault.Wrap(fault.Canceled, "", "the client left", errors.Join(cause, failed))
	}
	p.cfg.Log.Warn().Err(failed).Str("formation", id).Str("request_id", httpx.RequestID(c)).Msg("formation did not respond")
	return fault.Wrap(fault.BadGateway, "BadGateway", "Formation did not respond", failed)
}

// backend returns the connections to the process that serves id now.
func (p *Proxy) backend(ctx context.Context, id string) (*backend, error) {
	target, err := p.cfg.Target(ctx, id)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			p.forget(id)
		}
		return nil, err
	}
	p.mu.RLock()
	b := p.backends[id]
	p.mu.RUnlock()
	if b != nil && b.target == target {
		return b, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b = p.backends[id]; b != nil && b.target == target {
		return b, nil
	}
	if b != nil {
		b.transport.CloseIdleConnections()
	}
	b = &backend{target: target, transport: newTransport()}
	p.backends[id] = b
	return b, nil
}

// forget drops the connections to a formation that is gone.
func (p *Proxy) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.backends[id]; b != nil {
		b.transport.CloseIdleConnections()
		delete(p.backends, id)
	}
}

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		DisableCompression:    true, // bodies pass as they are
		MaxIdleConnsPerHost:   idlePerHost,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}
}

// rewrite makes the request that the formation sees. ReverseProxy has dropped
// hop-by-hop and forwarding headers before.
func (p *Proxy) rewrite(r *httputil.ProxyRequest, addr string) {
	raw := strip(r.In.URL.EscapedPath())
	path, err := url.PathUnescape(raw)
	if err != nil { // it was parsed as part of a URL before, so it can't be
		path = raw
	}
	r.Out.URL = &url.URL{
		Scheme: "http", Host: addr, Path: path, RawPath: raw,
		RawQuery: r.In.URL.RawQuery, ForceQuery: r.In.URL.ForceQuery,
	}
	r.Out.Host = ""
	h := r.Out.Header
	h.Del("Connection") // ReverseProxy keeps both for a change of protocol,
	h.Del("Upgrade")    // which formations do not know
	h[p.server] = []string{p.cfg.Version}
	p.forwarded(r)
}

// forwarded sets the X-Forwarded-* headers. What came in counts only when a
// trusted proxy sent it.
func (p *Proxy) forwarded(r *httputil.ProxyRequest) {
	peer := httpx.PeerAddr(&http.Request{RemoteAddr: r.In.RemoteAddr}, nil)
	chain, proto, host := peer, "http", r.In.Host
	if r.In.TLS != nil {
		proto = "https"
	}
	if p.trusted(peer) {
		if in := r.In.Header.Values("X-Forwarded-For"); len(in) > 0 {
			chain = strings.Join(in, ", ") + ", " + peer
		}
		if in := r.In.Header.Get("X-Forwarded-Proto"); in != "" {
			proto = in
		}
		if in := r.In.Header.Get("X-Forwarded-Host"); in != "" {
			host = in
		}
	}
	h := r.Out.Header
	h["X-Forwarded-For"] = []string{chain}
	h["X-Forwarded-Proto"] = []string{proto}
	h["X-Forwarded-Host"] = []string{host}
}

func (p *Proxy) trusted(peer string) bool {
	addr, err := netip.ParseAddr(peer)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	for _, prefix := range p.cfg.TrustedProxies {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// strip removes the first two segments ("/api/<id>") of an escaped path.
func strip(path string) string {
	rest := path
	for range 2 {
		i := strings.IndexByte(rest[min(1, len(rest)):], '/')
		if i < 0 {
			return "/"
		}
		rest = rest[i+1:]
	}
	return rest
}

// adapt removes what our own door has set already: a browser refuses an answer
// that allows an origin twice. A refused body is still on its way, so its
// connection ends with the answer, and the client must not use it again.
func adapt(r *http.Response) error {
	if r.StatusCode == http.StatusRequestEntityTooLarge {
		r.Header.Set("Connection", "close")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(r.Header, name)
		}
	}
	return nil
}

// bufferPool lends buffers to ReverseProxy without an allocation for each.
type bufferPool struct{ pool *sync.Pool }

// Get returns a buffer of 32 KiB.
func (b bufferPool) Get() []byte { return b.pool.Get().(*[bufferSize]byte)[:] }

// Put takes it back.
func (b bufferPool) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }

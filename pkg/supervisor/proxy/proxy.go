// Package proxy forwards /api/<formation>/... to the formation's own port, and
// /draft and /mcp likewise.
//
// It promises that the formation sees the request as it was sent (path and
// query still encoded, hop-by-hop headers gone, forwarding headers that can be
// believed), that the client sees the answer as it comes (event streams frame
// by frame), and that the formation's request ends when the client leaves. It
// adds no timeout of its own once the formation has accepted. Where a formation
// answers is asked anew for each request; connections are kept per process, so
// none is reused for a successor.
//
// A request that meets the death of a formation's process is sent again to its
// successor when it is certain that nobody has read it, and only then: see
// verdict. httpapi mounts the proxy.
package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// copyBuffer is what a stream holds in memory, in bytes, beside its connections.
const copyBuffer = 8 << 10

// Target says where a formation answers.
type Target struct {
	Addr string // host:port
	// Launch names the process; a new one gets new connections.
	Launch string
}

// FindFunc finds a formation. Its error is what the client is told; it may wait
// for a process that is being replaced.
type FindFunc func(ctx context.Context, id string) (Target, error)

// Config says how requests are forwarded.
type Config struct {
	Log zerolog.Logger
	// Target finds what /api and /mcp lead to, Draft what /draft does; a nil Draft
	// finds nothing.
	Target, Draft FindFunc
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

	mu      sync.RWMutex // guards members
	members map[key]*member
}

// key names what is forwarded to: a formation, or a draft of that id.
type key struct {
	id    string
	draft bool
}

// member is one of them. The counter outlives its processes.
type member struct {
	meter   httpx.Meter
	backend *backend // to the present process; Proxy.mu guards it
}

// New returns a Proxy without connections.
func New(cfg Config) *Proxy {
	if cfg.Draft == nil {
		cfg.Draft = func(_ context.Context, id string) (Target, error) {
			return Target{}, fault.Errorf(fault.NotFound, "FormationNotFound", "No formation with id '%s'", id)
		}
	}
	return &Proxy{
		cfg: cfg, server: http.CanonicalHeaderKey(httpx.HeaderName(cfg.HeaderPrefix, "Server")),
		buffers:  bufferPool{pool: &sync.Pool{New: func() any { return new([copyBuffer]byte) }}},
		errorLog: log.New(streamLog{cfg.Log}, "", 0),
		members:  make(map[key]*member),
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

// mount is one way in.
type mount struct {
	prefix string
	draft  bool
	// keep is what of the prefix the formation sees.
	keep string
}

// Mount adds the routes /api, /draft and /mcp with an id and all below it.
func (p *Proxy) Mount(e *echo.Echo) {
	for _, m := range []mount{{prefix: "/api"}, {prefix: "/draft", draft: true}, {prefix: "/mcp", keep: "/mcp"}} {
		handle := func(c echo.Context) error { return p.handle(c, m) }
		e.Any(m.prefix+"/:id", handle)
		e.Any(m.prefix+"/:id/*", handle)
	}
}

// Close closes idle connections. Requests in progress go on.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		m.backend.retire()
	}
	clear(p.members)
}

// Counted returns what was counted for a formation, drafts apart.
func (p *Proxy) Counted(id string) httpx.MeterReading {
	if m := p.known(key{id: id}); m != nil {
		return m.meter.Read()
	}
	return new(httpx.Meter).Read()
}

func (p *Proxy) handle(c echo.Context, m mount) (err error) {
	h := &hop{p: p, key: key{id: httpx.Param(c, "id"), draft: m.draft}, keep: m.keep}
	start := time.Now()
	if err := h.find(c.Request().Context()); err != nil {
		if known := p.known(h.key); known != nil {
			known.meter.Observe(statusOf(c, err), time.Since(start))
		}
		return err
	}
	// Also when the answer breaks off, which is a panic.
	defer func() { h.member.meter.Observe(statusOf(c, err), time.Since(start)) }()
	return h.serve(c)
}

// statusOf is what the client got, 0 when it had left.
func statusOf(c echo.Context, err error) int {
	switch {
	case err == nil:
		return c.Response().Status
	case fault.KindOf(err) == fault.Canceled:
		return 0
	default:
		return fault.KindOf(err).HTTPStatus()
	}
}

// serve forwards one request. An answer that breaks off is a panic with
// http.ErrAbortHandler, which cuts the client's connection.
func (h *hop) serve(c echo.Context) error {
	rc := http.NewResponseController(c.Response())
	// Otherwise our server closes the request's body as soon as the answer
	// begins, while a large one may still be on its way to the formation.
	_ = rc.EnableFullDuplex() // a protocol without it has no such rule
	in := *c.Request()
	if in.Body != nil {
		in.Body = keptOpen{in.Body}
	}
	var failed error
	rp := httputil.ReverseProxy{
		Rewrite:        h.rewrite,
		ModifyResponse: h.adapt,
		Transport:      h,
		BufferPool:     h.p.buffers,
		ErrorLog:       h.p.errorLog,
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	defer h.finish(c, rc)
	rp.ServeHTTP(c.Response(), &in)
	if failed == nil {
		return nil
	}
	if cause := in.Context().Err(); cause != nil {
		return fault.Wrap(fault.Canceled, "", "the client left", errors.Join(cause, failed))
	}
	if _, ok := errors.AsType[*fault.Error](failed); ok {
		return failed
	}
	h.p.cfg.Log.Warn().Err(failed).Str("formation", h.key.id).Str("request_id", httpx.RequestID(c)).Msg("formation did not respond")
	return fault.Wrap(fault.BadGateway, "BadGateway", "Formation did not respond", failed)
}

// keptOpen is a body that our server closes, not ReverseProxy: closing waits for
// a read in progress, and that one may wait for the client.
type keptOpen struct{ io.ReadCloser }

// Close does nothing.
func (keptOpen) Close() error { return nil }

// find asks for the process that serves now, and for the connections to it.
func (h *hop) find(ctx context.Context) error {
	find := h.p.cfg.Target
	if h.key.draft {
		find = h.p.cfg.Draft
	}
	target, err := find(ctx, h.key.id)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			h.p.forget(h.key)
		}
		return err
	}
	h.member, h.backend = h.p.member(h.key, target)
	return nil
}

// known returns what was forwarded to before, nil for the rest.
func (p *Proxy) known(k key) *member {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.members[k]
}

// member returns the connections to target, those to its predecessor retired.
func (p *Proxy) member(k key, target Target) (*member, *backend) {
	p.mu.RLock()
	m := p.members[k]
	if m != nil && m.backend != nil && m.backend.target == target {
		defer p.mu.RUnlock()
		return m, m.backend
	}
	p.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m = p.members[k]; m == nil {
		m = &member{}
		p.members[k] = m
	}
	if m.backend == nil || m.backend.target != target {
		m.backend.retire()
		m.backend = &backend{target: target}
	}
	return m, m.backend
}

// forget drops what is gone.
func (p *Proxy) forget(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[k]; m != nil {
		m.backend.retire()
		delete(p.members, k)
	}
}

// bufferPool lends buffers to ReverseProxy without an allocation for each.
type bufferPool struct{ pool *sync.Pool }

// Get returns a buffer of copyBuffer bytes.
func (b bufferPool) Get() []byte { return b.pool.Get().(*[copyBuffer]byte)[:] }

// Put takes it back.
func (b bufferPool) Put(buf []byte) { b.pool.Put((*[copyBuffer]byte)(buf)) }

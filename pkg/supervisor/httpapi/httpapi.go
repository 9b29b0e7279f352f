// Package httpapi is the supervisor's HTTP door: the management API (one file
// per resource) and, mounted beside it, the proxy to the formations.
//
// It promises that every /rpc call is checked by auth and leaves one audit
// record, refused ones included; that every error is the server envelope with
// a documented name; that /docs lists exactly what is served; and that a client
// which leaves never cuts an operation short. pkg/supervisor serves it.
package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Config is what the API stands on. Deploy, Registry, Auth and Proxy must be set.
type Config struct {
	Log      zerolog.Logger
	Deploy   *deploy.Service
	Registry *registry.Registry
	Auth     *auth.Verifier
	Proxy    *proxy.Proxy
	Server   Server
	// AuditLog takes each audit record as one line of JSON, in one Write; nil
	// keeps the records in the registry only.
	AuditLog io.Writer
	// AuditLogPath is the file that AuditLog writes, for GET /rpc/server/logs,
	// which reads its rotated parts as well; "" is a log without lines.
	AuditLogPath string
	// HeaderPrefix is the word in X-<prefix>-* headers, "SVC" when empty.
	HeaderPrefix string
	// TrustedProxies are the peers whose forwarding headers are believed.
	TrustedProxies []netip.Prefix
	// MaxBundle bounds an uploaded bundle, in bytes.
	MaxBundle int64
	// UploadPatience is how long a client may send nothing of a bundle; 0 is a
	// minute.
	UploadPatience time.Duration
	RateLimit      RateLimit
	// LeasedPorts is how many ports are given out; nil counts the formations.
	LeasedPorts func() int
	// Metrics answers GET /metrics; without it there is no such route. The
	// client must send MetricsToken as a bearer token unless that is empty.
	Metrics      http.Handler
	MetricsToken string
	// Calls counts the management calls; nil counts nothing.
	Calls *httpx.Meter
	// Tracer makes a span of each management call; nil makes none.
	Tracer trace.TracerProvider
	Now    func() time.Time // nil is time.Now
}

// Server is what the supervisor tells about itself.
type Server struct {
	ID                  string
	Version             string
	Port                int
	PortFirst, PortLast int // the formations' range
	StartedAt           time.Time
}

// API answers requests. Close it after its HTTP server has stopped.
type API struct {
	cfg      Config
	echo     *echo.Echo
	now      func() time.Time
	refusals *refusals
	limiter  *limiter
	tracer   trace.Tracer
	table    []route
	byRoute  map[string]*route // method and path
	document []byte            // of /docs
	page     []byte
	// unproven has room for the uploads whose signature covers the body, so
	// that it can be checked only when the body is on disk.
	unproven   chan struct{}
	auditLines lines
}

// maxUnproven bounds what a stranger who knows a key id can make us store: this
// many bundles at once.
const maxUnproven = 8

// New returns the API with its routes.
func New(cfg Config) (*API, error) {
	if cfg.Deploy == nil || cfg.Registry == nil || cfg.Auth == nil || cfg.Proxy == nil {
		return nil, errors.New("httpapi: Deploy, Registry, Auth and Proxy must be set")
	}
	if cfg.HeaderPrefix == "" {
		cfg.HeaderPrefix = "SVC"
	}
	if cfg.UploadPatience == 0 {
		cfg.UploadPatience = time.Minute
	}
	a := &API{
		cfg: cfg, now: cfg.Now, refusals: newRefusals(), limiter: newLimiter(cfg.RateLimit), tracer: newTracer(cfg.Tracer),
		byRoute: make(map[string]*route), unproven: make(chan struct{}, maxUnproven),
	}
	if a.now == nil {
		a.now = time.Now
	}
	a.echo = httpx.NewEcho(httpx.Config{
		Log: cfg.Log, OnError: a.renderError, HeaderPrefix: cfg.HeaderPrefix, AccessLog: true,
	})
	a.echo.Use(a.traced, a.guard, a.limitProxied)
	a.table = a.routes()
	for i, r := range a.table {
		a.byRoute[r.method+r.path] = &a.table[i]
		if r.handler != nil {
			a.echo.Add(r.method, r.path, r.handler)
		}
		if r.head {
			a.echo.HEAD(r.path, r.handler)
		}
	}
	cfg.Proxy.Mount(a.echo)
	return a, a.describe()
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.echo.ServeHTTP(w, r) }

// uptime is in whole seconds.
func (a *API) uptime() int64 { return int64(a.now().Sub(a.cfg.Server.StartedAt) / time.Second) }

// isRPC recognises management calls by the route's pattern as well as by the
// path, so that no way of writing a path passes by.
func isRPC(c echo.Context) bool {
	return strings.HasPrefix(c.Request().URL.Path, "/rpc") || strings.HasPrefix(c.Path(), "/rpc")
}

// base is the address by which the client reached us, without a slash at the
// end. A trusted proxy knows it better than we do.
func (a *API) base(c echo.Context) string {
	r := c.Request()
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if httpx.Trusted(r, a.cfg.TrustedProxies) {
		if proto := r.Header.Get("X-Forwarded-Proto"); proto == "http" || proto == "https" {
			scheme = proto
		}
		if forwarded := r.Header.Get("X-Forwarded-Host"); forwarded != "" {
			host = forwarded
		}
	}
	return scheme + "://" + host
}

// Package httpapi is the supervisor's HTTP door: the management API (one file
// per resource) and, mounted beside it, the proxy to the formations.
//
// It promises that every /rpc call is checked by auth and leaves one audit
// record, refused ones included; that every error is the server envelope with
// a documented name; and that a client which leaves never cuts an operation
// short. pkg/supervisor serves it.
package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Config is what the API stands on. All but AuditLog and Now must be set.
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
	// HeaderPrefix is the word in X-<prefix>-* headers, "SVC" when empty.
	HeaderPrefix string
	// TrustedProxies are the peers whose forwarding headers are believed.
	TrustedProxies []netip.Prefix
	// MaxBundle bounds an uploaded bundle, in bytes.
	MaxBundle int64
	Now       func() time.Time // nil is time.Now
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
	actions  map[string]string // method and route -> audit action
	// unproven has room for the uploads whose signature covers the body, so
	// that it can be checked only when the body is on disk.
	unproven chan struct{}
}

// maxUnproven bounds what a stranger who knows a key id can make us store: this
// many bundles at once.
const maxUnproven = 8

// New returns the API with its routes.
func New(cfg Config) (*API, error) {
	if cfg.Deploy == nil || cfg.Registry == nil || cfg.Auth == nil || cfg.Proxy == nil {
		return nil, errors.New("httpapi: Deploy, Registry, Auth and Proxy must be set")
	}
	a := &API{cfg: cfg, now: cfg.Now, refusals: newRefusals(), actions: make(map[string]string), unproven: make(chan struct{}, maxUnproven)}
	if a.now == nil {
		a.now = time.Now
	}
	a.echo = httpx.NewEcho(httpx.Config{
		Log: cfg.Log, OnError: a.renderError, HeaderPrefix: cfg.HeaderPrefix, AccessLog: true,
	})
	a.echo.Use(a.guard)
	a.routes()
	return a, nil
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.echo.ServeHTTP(w, r) }

func (a *API) routes() {
	a.echo.GET("/ping", a.ping)
	a.echo.GET("/health", a.health)
	for _, r := range []struct {
		method, path, action string
		handler              echo.HandlerFunc
	}{
		{http.MethodPost, "/rpc/formations", actionDeploy, a.deploy},
		{http.MethodGet, "/rpc/formations", "formations.list", a.list},
		{http.MethodGet, "/rpc/formations/:id", "formations.get", a.get},
		{http.MethodDelete, "/rpc/formations/:id", "formations.delete", a.remove},
		{http.MethodPost, "/rpc/formations/:id/start", "formations.start", a.start},
		{http.MethodPost, "/rpc/formations/:id/stop", "formations.stop", a.stop},
		{http.MethodPost, "/rpc/formations/:id/restart", "formations.restart", a.restart},
		{http.MethodGet, "/rpc/formations/:id/logs", "formations.logs", a.logs},
		{http.MethodGet, "/rpc/server/status", "server.status", a.status},
	} {
		a.actions[r.method+r.path] = r.action
		a.echo.Add(r.method, r.path, r.handler)
	}
	a.cfg.Proxy.Mount(a.echo, "/api")
}

// uptime is in whole seconds.
func (a *API) uptime() int64 { return int64(a.now().Sub(a.cfg.Server.StartedAt) / time.Second) }

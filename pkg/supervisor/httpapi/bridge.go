package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/proxy"
)

// BridgeConfig is what a Bridge stands on. Proxy, Runs and Later must be set.
type BridgeConfig struct {
	Log          zerolog.Logger
	HeaderPrefix string
	Server       Server
	// Formations and LeasedPorts are what /health tells.
	Formations, LeasedPorts int
	Proxy                   *proxy.Proxy
	// Runs tells whether requests for a formation can be forwarded.
	Runs func(id string) bool
	// Later answers what only the supervisor can, when it is back. Its error is
	// answered in the server's envelope; the answer has not begun then.
	Later func(http.ResponseWriter, *http.Request) error
}

// Bridge answers in place of an API while the supervisor's program is replaced:
// it forwards to the formations that run and leaves all else for later.
type Bridge struct {
	cfg  BridgeConfig
	echo *echo.Echo
}

// NewBridge returns a Bridge with its routes.
func NewBridge(cfg BridgeConfig) (*Bridge, error) {
	if cfg.Proxy == nil || cfg.Runs == nil || cfg.Later == nil {
		return nil, errors.New("httpapi: Proxy, Runs and Later of a bridge must be set")
	}
	b := &Bridge{cfg: cfg}
	b.echo = httpx.NewEcho(httpx.Config{
		Log: cfg.Log, OnError: b.renderError, HeaderPrefix: cfg.HeaderPrefix, AccessLog: true,
	})
	asked := []string{http.MethodGet, http.MethodHead}
	b.echo.Match(asked, "/ping", func(c echo.Context) error { return c.String(http.StatusOK, "pong") })
	b.echo.Match(asked, "/health", b.health)
	cfg.Proxy.Mount(b.echo)
	return b, nil
}

// ServeHTTP answers one request.
func (b *Bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.answers(r.URL.Path) {
		b.echo.ServeHTTP(w, r)
		return
	}
	if err := b.cfg.Later(w, r); err != nil {
		f := toFailure(err)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(f.Code)
		_ = json.NewEncoder(w).Encode(f) // a failed write means that the client left
	}
}

// answers tells whether a path needs no supervisor.
func (b *Bridge) answers(path string) bool {
	if path == "/ping" || path == "/health" {
		return true
	}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	id, _, _ := strings.Cut(rest, "/")
	return (kind == "api" || kind == "mcp") && b.cfg.Runs(id)
}

func (b *Bridge) health(c echo.Context) error {
	s := b.cfg.Server
	total := s.PortLast - s.PortFirst + 1
	h := health{
		Status: "ok", Version: s.Version, Formations: b.cfg.Formations, Uptime: int64(time.Since(s.StartedAt) / time.Second),
	}
	pool := portPool{Allocated: b.cfg.LeasedPorts, Available: max(0, total-b.cfg.LeasedPorts), Total: total}
	return httpx.JSON(c, http.StatusOK, healthReply{true, h, healthData{h, pool}})
}

func (b *Bridge) renderError(c echo.Context, err error) {
	f := toFailure(err)
	if f.Code == http.StatusServiceUnavailable {
		c.Response().Header().Set("Retry-After", retryAfter)
	}
	if err := httpx.JSON(c, f.Code, f); err != nil {
		b.cfg.Log.Error().Err(err).Msg("an error reply could not be encoded")
	}
}

// Package httpapi is the formation's HTTP API under /v1: one file per resource,
// each a thin translation between HTTP and the turn engine, the request records
// and the sessions.
//
// It promises the envelopes, error codes and stream frames of the
// specification, that a key is checked before anything of a request is read,
// and that no client, however slow, holds a turn. Only the assembly imports it.
package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// Config is what the API stands on. Formation, Turns, Requests, Sessions, Usage
// and Keys are required.
type Config struct {
	Formation *manifest.Formation
	// Version is the deployed version; "" takes the manifest's, else
	// manifest.DefaultVersion.
	Version  string
	Turns    Turns
	Requests Requests
	Sessions Sessions
	Usage    Usage
	// Telemetry is what /v1/events, /v1/logs and /metrics show; nil leaves the
	// routes out.
	Telemetry *telemetry.Hub
	// Files makes files ready for models; without it none are taken.
	Files Files
	// Router serves /v1/route; without it the route answers 503.
	Router Router
	// Secrets serves /v1/secrets; nil leaves the routes out.
	Secrets Secrets
	// Credentials are those of users; nil keeps none.
	Credentials Credentials
	// ToolServers tells how tool servers are; nil knows none.
	ToolServers ToolServers
	// Redact takes secret values out of a text of an error reply; nil takes none.
	Redact func(string) string
	// Keys is asked at every request, so that a rotation needs no restart.
	Keys func() Keys
	// HeaderPrefix is the word in X-<prefix>-* header names, "SVC" when empty.
	HeaderPrefix string
	Started      time.Time // of the process, for /v1/status
	// Draining tells that this process hands over: every answer closes its
	// connection. nil means never.
	Draining func() bool
	// Audit records what an administrator changed; nil records nothing.
	Audit func(context.Context, Change)
	Log   zerolog.Logger
	Now   func() time.Time // time.Now when nil
}

// Change is something that an administrator did, or tried, to a running
// formation.
type Change struct {
	Action    string // "request.cancel"
	Actor     string // "admin"
	Subject   string // what it was done to
	Result    string // "ok" or the code of the error
	Message   string
	RequestID string
	From      string // address of the caller
}

type api struct {
	cfg    Config
	head   headers
	limits *limits // nil: there are none
}

// New returns the handler of the formation's API.
func New(cfg Config) (http.Handler, error) {
	switch {
	case cfg.Formation == nil:
		return nil, errors.New("httpapi: no formation")
	case cfg.Turns == nil || cfg.Requests == nil || cfg.Sessions == nil || cfg.Usage == nil || cfg.Keys == nil:
		return nil, errors.New("httpapi: Turns, Requests, Sessions, Usage and Keys are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Draining == nil {
		cfg.Draining = func() bool { return false }
	}
	if cfg.Redact == nil {
		cfg.Redact = func(text string) string { return text }
	}
	if cfg.Audit == nil {
		cfg.Audit = func(context.Context, Change) {}
	}
	if cfg.Version == "" {
		cfg.Version = cfg.Formation.Version
	}
	if cfg.Version == "" {
		cfg.Version = manifest.DefaultVersion
	}
	a := &api{cfg: cfg, head: newHeaders(cfg.HeaderPrefix), limits: newLimits(cfg.Formation.Server.Limits, cfg.Now)}
	e := httpx.NewEcho(httpx.Config{
		Log: cfg.Log, MaxBody: httpx.MaxFormationBody, OnError: a.renderError, HeaderPrefix: cfg.HeaderPrefix,
		CORSHeaders: []string{"*"}, AccessLog: cfg.Formation.Server.AccessLog, Draining: cfg.Draining,
	})
	a.register(e)
	return e, a.mountMCP(e)
}

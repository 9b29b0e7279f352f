package httpapi

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/mcpserver"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// maxKeyless is the largest body of /mcp without a valid key, in bytes: what is
// open to all is small.
const maxKeyless = 64 << 10

// mountMCP adds /mcp, whose tools are calls of the API that handler serves.
func (a *api) mountMCP(e *echo.Echo) error {
	f := a.cfg.Formation
	cfg := mcpserver.Config{
		Name: strings.ToLower(a.prefix()) + "-" + f.ID, Version: a.cfg.Version, About: f.Description,
		API: e, Routes: a.tools, Resources: a.resources, Fault: a.faultText,
		UserHeader: httpx.HeaderName(a.cfg.HeaderPrefix, "User-ID"),
		Passed:     []string{a.head.admin, a.head.client, a.head.idempotKey, "Traceparent", "X-Forwarded-For"},
		// The caller of a turn leaves it as the last reader leaves a stream.
		CancelTurns: f.Async.OnDisconnect == manifest.DisconnectCancel,
		Hub:         a.cfg.Telemetry, NewID: httpx.NewID, Log: a.cfg.Log,
	}
	if host := f.Server.Host; host != "" && net.ParseIP(host) == nil {
		cfg.Hosts = []string{strings.ToLower(host)}
	}
	server, err := mcpserver.New(cfg)
	if err != nil {
		return err
	}
	e.Any("/mcp", func(c echo.Context) error { return a.serveMCP(c, server) })
	return nil
}

func (a *api) prefix() string {
	if a.cfg.HeaderPrefix == "" {
		return "SVC"
	}
	return a.cfg.HeaderPrefix
}

// serveMCP answers a message of the tool protocol. The key is checked before the
// protocol's server sees anything, so that its refusal looks like that of any
// other route (reference runtime.md 13).
func (a *api) serveMCP(c echo.Context, server *mcpserver.Server) error {
	if err := server.Admit(c.Request()); err != nil {
		if fault.KindOf(err) == fault.NotAllowed {
			c.Response().Header().Set(echo.HeaderAllow, http.MethodPost)
		}
		return err
	}
	header := c.Request().Header
	who, keyed, err := a.open(c.Request(), clientOrAdmin)
	if err != nil {
		return err
	}
	limit := int64(httpx.MaxFormationBody)
	if !keyed {
		limit = maxKeyless
	}
	body, err := httpx.ReadBody(c, limit)
	if err != nil && (keyed || fault.KindOf(err) != fault.TooLarge) {
		return err
	}
	defer body.Release()
	if !keyed && (err != nil || mcpserver.NeedsKey(body.Bytes())) {
		return a.refuse(c, clientOrAdmin, first(header[a.head.adminKey]), first(header[a.head.clientKey]))
	}
	if err := a.countMessage(c.Request(), who, body.Bytes()); err != nil {
		return err
	}
	server.Serve(c.Response(), c.Request(), mcpserver.Request{Body: body.Bytes(), Keyed: keyed})
	return nil
}

// tools are the routes that are tools.
func (a *api) tools() []mcpserver.Route {
	var all []mcpserver.Route
	table := a.table()
	for i := range table {
		if r := &table[i]; r.tool != "" && r.key != adminOnly {
			all = append(all, mcpserver.Route{Tool: r.tool, Turn: r.turn, Route: a.describe(r)})
		}
	}
	return all
}

// faultText is an error as a reply of the API has it.
func (a *api) faultText(err error) []byte {
	e, _ := a.failure(fault.From(err), httpx.NewID("req_"))
	text, err := asJSON(e)
	if err != nil {
		a.cfg.Log.Error().Err(err).Msg("encode error reply")
	}
	return []byte(text)
}

func asJSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

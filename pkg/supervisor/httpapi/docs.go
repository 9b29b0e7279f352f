package httpapi

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/openapi"
)

// The page needs nothing from elsewhere: a host without a way to the network
// shows it as well.
//
//go:embed docs.html
var docsPage string

// describe makes the document and the page of /docs, once: the table does not
// change.
func (a *API) describe() error {
	prefix := a.cfg.HeaderPrefix
	api := openapi.API{
		Info: openapi.Info{
			Title: "Supervisor", Version: a.cfg.Server.Version,
			Description: "The management API, and the way through to the formations. A call is signed with HMAC-SHA256 and " +
				"the secret of a key, in base64, over <timestamp>;<METHOD>;<path>, or with the body's SHA-256 in hexadecimal as a fourth part.",
		},
		Security: []openapi.Security{
			{Name: "hmac", Scheme: map[string]any{
				"type": "apiKey", "in": "header", "name": "Authorization",
				"description": prefix + "-HMAC key=<id>, timestamp=<unix seconds>, signature=<base64>",
			}},
			{Name: "hmacHeaders", Scheme: map[string]any{
				"type": "apiKey", "in": "header", "name": "X-" + prefix + "-Signature",
				"description": "with X-" + prefix + "-Key-ID and X-" + prefix + "-Timestamp; the body is signed as well",
			}},
		},
	}
	if a.cfg.Metrics != nil && a.cfg.MetricsToken != "" {
		api.Security = append(api.Security, openapi.Security{Name: "metricsToken", Scheme: map[string]any{"type": "http", "scheme": "bearer"}})
	}
	type row struct{ Method, Path, About string }
	groups := make(map[string][]row)
	for _, r := range a.table {
		api.Routes = append(api.Routes, openapi.Route{Method: r.method, Path: r.path, Operation: a.operation(r)})
		groups[r.tag] = append(groups[r.tag], row{r.method, openapi.Template(r.path), r.about})
	}
	var err error
	if a.document, err = openapi.Document(api); err != nil {
		return fmt.Errorf("describe the API: %w", err)
	}
	page, err := template.New("docs").Parse(docsPage)
	if err != nil {
		return fmt.Errorf("read the page of the API: %w", err)
	}
	var buf bytes.Buffer
	if err := page.Execute(&buf, map[string]any{"Version": a.cfg.Server.Version, "Groups": groups}); err != nil {
		return fmt.Errorf("write the page of the API: %w", err)
	}
	a.page = buf.Bytes()
	return nil
}

// docs answers with the page, or with the document to a client that wants JSON
// and no HTML.
func (a *API) docs(c echo.Context) error {
	accept := c.Request().Header.Get("Accept")
	if strings.Contains(accept, jsonType) && !strings.Contains(accept, "text/html") {
		return a.openAPI(c)
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	return c.Blob(http.StatusOK, "text/html; charset=utf-8", a.page)
}

func (a *API) openAPI(c echo.Context) error { return c.Blob(http.StatusOK, jsonType, a.document) }

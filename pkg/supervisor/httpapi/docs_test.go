package httpapi_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/openapi"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

func TestDocs_ListExactlyTheServedRoutes(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	documented := map[string]bool{}
	paths, _ := at(d.document(t), "paths").(map[string]any)
	for path, item := range paths {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				documented[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	served := map[string]bool{}
	for _, r := range d.api.Served() {
		method, path, _ := strings.Cut(r, " ")
		// The proxied paths take any method; the document lists those of use.
		if proxied := strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/draft/") || strings.HasPrefix(path, "/mcp/"); proxied &&
			!slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, method) {
			continue
		}
		if method == "HEAD" && slices.Contains(d.api.Served(), "GET "+path) {
			continue // goes without saying
		}
		served[method+" "+openapi.Template(path)] = true
	}
	if diff := cmp.Diff(served, documented); diff != "" || len(served) < 50 {
		t.Errorf("routes (-served +documented), %d in all:\n%s", len(served), diff)
	}
	// Each route of server.md 3.2 and 3.3.
	for _, want := range []string{
		"GET /ping", "GET /health", "GET /metrics", "GET /docs", "POST /rpc/formations", "GET /rpc/formations",
		"GET /rpc/formations/{id}", "PUT /rpc/formations/{id}", "DELETE /rpc/formations/{id}", "POST /rpc/formations/{id}/start",
		"POST /rpc/formations/{id}/stop", "POST /rpc/formations/{id}/restart", "POST /rpc/formations/{id}/rollback",
		"POST /rpc/formations/{id}/cancel-update", "GET /rpc/formations/{id}/logs", "GET /rpc/formations/{id}/download",
		"POST /rpc/formations/{id}/draft/files", "POST /rpc/dev/run", "POST /rpc/dev/stop", "GET /rpc/server/status",
		"GET /rpc/server/logs", "GET /rpc/audit", "GET /rpc/audit/verify", "PATCH /api/{id}/{path}", "GET /api/{id}",
		"POST /draft/{id}/{path}", "DELETE /mcp/{id}", "POST /rpc/formations/{id}/start/stream", "POST /rpc/formations/{id}/restart/stream",
		"POST /rpc/formations/{id}/rollback/stream", "GET /rpc/formations/{id}/logs/stream", "POST /rpc/formations/{id}/deploy",
		"POST /rpc/formations/{id}/update", "POST /rpc/formations/{id}/deploy/stream", "POST /rpc/formations/{id}/update/stream",
	} {
		if !documented[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestDocs_ThePageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	d := setupWith(t, nil, func(c *httpapi.Config) { c.HeaderPrefix = "ACME" })
	res, page := d.do(t, call{method: "GET", path: "/docs", sign: unsigned, header: map[string]string{"Accept": "text/html,*/*"}})
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || !strings.HasPrefix(ct, "text/html") {
		t.Fatalf("%d %s", res.StatusCode, ct)
	}
	for _, want := range []string{`href="/docs/openapi.json"`, "/rpc/formations/{id}/cancel-update", "9.9.9"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	for _, foreign := range []string{"<script", "src=", "http://", "https://"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page has %s", foreign)
		}
	}
	res, text := d.do(t, call{method: "GET", path: "/docs", sign: unsigned, header: map[string]string{"Accept": "application/json"}})
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil || res.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("as JSON: %v", err)
	}
	if got := at(doc, "components", "securitySchemes", "hmacHeaders", "name"); got != "X-ACME-Signature" {
		t.Errorf("the signature's header is %v", got)
	}
	if got := at(doc, "paths", "/rpc/formations", "get", "security"); cmp.Diff([]any{
		map[string]any{"hmac": []any{}}, map[string]any{"hmacHeaders": []any{}},
	}, got) != "" {
		t.Errorf("security of a management call: %v", got)
	}
	if got := at(doc, "paths", "/ping", "get", "security"); cmp.Diff([]any{}, got) != "" {
		t.Errorf("security of /ping: %v", got)
	}
}

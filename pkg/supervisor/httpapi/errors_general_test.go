package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

// managed lists the routes below /rpc.
func (d *door) managed(t *testing.T) []string {
	t.Helper()
	var all []string
	for route := range d.api.Documented() {
		if strings.Contains(route, " /rpc/") {
			all = append(all, route)
		}
	}
	if len(all) < 25 {
		t.Fatalf("only %d management routes", len(all))
	}
	slices.Sort(all)
	return all
}

func TestErrors_StrangersAreRefusedOnEveryManagementRoute(t *testing.T) {
	t.Parallel()
	a := &actor{T: t, door: setup(t, nil), seen: &sightings{all: make(map[string]bool)}}
	forged := func(r *http.Request, body []byte) {
		threeHeaders(r, body)
		r.Header.Set("X-SVC-Signature", "AAAA")
	}
	for _, route := range a.managed(t) {
		for text, sign := range map[string]func(*http.Request, []byte){"Missing authorization header": unsigned, "Invalid signature": forged} {
			a.refused("401 Unauthorized", text, call{sign: sign}, route)
		}
	}
	a.stop()
	for _, row := range a.auditRows(t) {
		if !strings.Contains(row, "401 refused") || strings.Contains(row, keyID) {
			t.Errorf("audit: %q", row)
		}
	}
}

func TestErrors_TooLargeBodiesAreRefusedOnEveryManagementRoute(t *testing.T) {
	t.Parallel()
	const most = 1 << 20 // of every body but a bundle's
	a := &actor{
		T: t, door: setup(t, func(c *deploy.Config) { c.Limits.MaxBytes = most }), seen: &sightings{all: make(map[string]bool)},
	}
	a.mustDeploy(t, "hello", nil)
	large := a.bundle(nil)
	large.body = make([]byte, most+1)
	bundles := slices.Concat(deployRoutes(), updateRoutes())
	for _, route := range a.managed(t) {
		c := large
		if slices.Contains(bundles[:3], route) {
			c = large.with(map[string]string{"X-Formation-ID": "other"})
			c.path = ":other"
		}
		if !slices.Contains(bundles, route) {
			c = large.bodyOnly()
		}
		a.refused("413 PayloadTooLarge", "1048576", c, route)
	}
	if now := a.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"}); now["status"] != "running" {
		t.Errorf("afterwards: %v", now)
	}
}

func TestRateLimit_CountsEveryManagementAndProxiedRoute(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	a := &actor{T: t, seen: &sightings{all: make(map[string]bool)}, door: setupWith(t, nil, func(c *httpapi.Config) {
		c.RateLimit = httpapi.RateLimit{PerMinute: 1}
		c.Now = func() time.Time { return clock }
	})}
	a.data(t, 200, call{method: "GET", path: "/rpc/formations"}) // the only one of this minute
	a.refused("429 RateLimited", "try again in 60 s", call{}, a.managed(t)...)
	a.refused("404 FormationNotFound", "", call{path: ":nobody", sign: unsigned}, "GET /api/:id")
	for route := range a.api.Documented() {
		if isProxied(route) {
			a.refused("429 RateLimited", "try again in 60 s", call{path: ":nobody", sign: unsigned}, route)
		}
	}
	for range 3 {
		for _, path := range []string{"/ping", "/health", "/metrics", "/docs", "/docs/openapi.json"} {
			if res, body := a.do(t, call{method: "GET", path: path, sign: unsigned}); res.StatusCode != 200 {
				t.Errorf("%s: %d %s", path, res.StatusCode, body)
			}
		}
	}
}

package httpapi_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

// hand is a clock that a test moves.
type hand struct{ at atomic.Int64 }

func newHand() *hand {
	h := &hand{}
	h.at.Store(time.Now().UnixNano())
	return h
}

func (h *hand) now() time.Time       { return time.Unix(0, h.at.Load()) }
func (h *hand) move(d time.Duration) { h.at.Add(int64(d)) }

func loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// behindProxy has a limit of six a minute, two at once, and a proxy that is
// believed about where calls come from.
func behindProxy(t *testing.T, clock *hand) *door {
	t.Helper()
	return setupWith(t, nil, func(c *httpapi.Config) {
		c.RateLimit = httpapi.RateLimit{PerMinute: 6, Burst: 2}
		c.TrustedProxies, c.Now = loopback(), clock.now
		var err error
		c.Auth, err = auth.New(auth.Config{Keys: []auth.Key{{ID: keyID, Secret: secret}, {ID: "svc_pk_other", Secret: secret}}})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// signedAs signs with the same secret under another id.
func signedAs(id string) func(*http.Request, []byte) {
	return func(r *http.Request, body []byte) {
		authorize(r, body)
		r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), keyID, id, 1))
	}
}

func TestRateLimit_IsPerKeyAndPeerAddress(t *testing.T) {
	t.Parallel()
	clock := newHand()
	d := behindProxy(t, clock)
	ask := func(id, from string) string {
		c := call{method: "GET", path: "/rpc/formations", sign: signedAs(id)}.with(map[string]string{"X-Forwarded-For": from})
		if id == "" {
			c.sign = unsigned
		}
		got := d.exchange(d.request(t, t.Context(), c))
		return strings.TrimSpace(got.String() + " " + got.header.Get("Retry-After"))
	}
	forwarded := func(from string) string {
		got := d.exchange(d.request(t, t.Context(),
			call{method: "GET", path: "/api/nobody/x", sign: unsigned}.with(map[string]string{"X-Forwarded-For": from})))
		return strings.TrimSpace(got.String() + " " + got.header.Get("Retry-After"))
	}
	const ok, none, missing, limited = "200", "401 Unauthorized", "404 FormationNotFound", "429 RateLimited "
	for i, step := range []struct{ got, want string }{
		{ask(keyID, "192.0.2.1"), ok},
		{ask(keyID, "192.0.2.1"), ok},
		{ask(keyID, "192.0.2.1"), limited + "10"},
		{ask(keyID, "192.0.2.1"), limited + "10"}, // a refused call costs nothing
		{ask(keyID, "192.0.2.2"), ok},             // the key's share at another address
		{ask("svc_pk_other", "192.0.2.1"), ok},    // another key's share at this one
		{ask("", "192.0.2.1"), none},              // strangers share what is their address's
		{ask("nobody", "192.0.2.1"), none},
		{ask("no-one", "192.0.2.1"), limited + "10"},
		{forwarded("192.0.2.1"), missing}, // apart from the management calls
		{forwarded("192.0.2.1"), missing},
		{forwarded("192.0.2.1"), limited + "10"},
		{ask(keyID, "2001:db8:1:2::1"), ok}, // one customer's network is one address
		{ask(keyID, "2001:db8:1:2:ffff::9"), ok},
		{ask(keyID, "2001:db8:1:2::5"), limited + "10"},
		{ask(keyID, "2001:db8:1:3::1"), ok},
	} {
		if step.got != step.want {
			t.Errorf("call %d: %s, want %s", i, step.got, step.want)
		}
	}
	clock.move(9500 * time.Millisecond)
	if got := ask(keyID, "192.0.2.1"); got != limited+"1" {
		t.Errorf("half a second too early: %s", got)
	}
	clock.move(500 * time.Millisecond)
	if got := []string{ask(keyID, "192.0.2.1"), ask(keyID, "192.0.2.1")}; cmp.Diff([]string{ok, limited + "10"}, got) != "" {
		t.Errorf("after what Retry-After said: %q", got)
	}
}

func TestRateLimit_OffByDefault(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for range 200 {
		d.data(t, 200, call{method: "GET", path: "/rpc/formations"})
	}
}

// entries are the newest records of the audit, as the API tells them.
func (d *door) entries(t *testing.T, query string) []map[string]any {
	t.Helper()
	list, _ := d.data(t, 200, call{method: "GET", path: "/rpc/audit" + query})["entries"].([]any)
	out := make([]map[string]any, len(list))
	for i, e := range list {
		out[i], _ = e.(map[string]any)
	}
	return out
}

func TestTrustedProxies_OnlyTheyAreBelieved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		trusted   []netip.Prefix
		forwarded string
		addr      string // in the audit
		base      string // of links; "" is ours
	}{
		"nobody is trusted":        {nil, "192.0.2.1", "127.0.0.1", ""},
		"somebody else is trusted": {[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "192.0.2.1", "127.0.0.1", ""},
		"the peer is trusted":      {loopback(), "192.0.2.1", "192.0.2.1", "https://svc.example"},
		"a chain":                  {loopback(), "203.0.113.66, 192.0.2.1", "192.0.2.1", "https://svc.example"},
		"a chain of trusted ones":  {loopback(), "192.0.2.1, 127.0.0.9", "192.0.2.1", "https://svc.example"},
		"no address":               {loopback(), "unknown", "127.0.0.1", "https://svc.example"},
		"none was sent":            {loopback(), "", "127.0.0.1", "https://svc.example"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setupWith(t, nil, func(c *httpapi.Config) { c.TrustedProxies = tc.trusted })
			said := map[string]string{"X-Forwarded-For": tc.forwarded, "X-Forwarded-Proto": "https", "X-Forwarded-Host": "svc.example"}
			base := tc.base
			if base == "" {
				base = d.url
			}
			made := d.data(t, 201, d.bundled(t, "POST", "/rpc/formations", "hello", nil).with(said))
			if made["url"] != base+"/api/hello" {
				t.Errorf("url = %v, want one at %s", made["url"], base)
			}
			if e := d.entries(t, "?action=formations.deploy"); len(e) != 1 || e[0]["remote_addr"] != tc.addr {
				t.Errorf("audit: %v, want one record from %s", e, tc.addr)
			}
		})
	}
}

func TestMetrics_NeedTheirTokenWhenThereIsOne(t *testing.T) {
	t.Parallel()
	const token = "a long token"
	d := setupWith(t, nil, func(c *httpapi.Config) { c.MetricsToken = token })
	for given, want := range map[string]int{
		"":                              401,
		"Bearer":                        401,
		"Bearer ":                       401,
		"Bearer a long":                 401,
		"Bearer a long token, b":        401,
		"Bearer  a long token":          401,
		"Basic a long token":            401,
		token:                           401,
		"Bearer " + token:               200,
		"bearer " + token:               200, // the scheme's case means nothing
		"Bearer A LONG TOKEN":           401,
		fmt.Sprintf("BEARER %s", token): 200,
	} {
		c := call{method: "GET", path: "/metrics", sign: unsigned}
		if given != "" {
			c.header = map[string]string{"Authorization": given}
		}
		if want == 200 {
			if res, text := d.do(t, c); res.StatusCode != 200 || !strings.Contains(text, "supervisor_build_info{") {
				t.Errorf("%q: %d %s", given, res.StatusCode, text)
			}
			continue
		}
		if res := d.refused(t, want, "Unauthorized", "metrics.token", c); res.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: headers %v", given, res.Header)
		}
	}
	// A key of the management API opens them as little.
	d.refused(t, 401, "Unauthorized", "", call{method: "GET", path: "/metrics"})
	open := setup(t, nil)
	if res, _ := open.do(t, call{method: "GET", path: "/metrics", sign: unsigned}); res.StatusCode != 200 {
		t.Errorf("without a token: %d", res.StatusCode)
	}
}

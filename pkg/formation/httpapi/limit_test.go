package httpapi_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/httpapi"
	"github.com/agentformation/service/pkg/formation/llm/budget"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/manifest"
)

// limitedDoor lets so many through a minute, and as many at once, by a clock that
// the test turns.
func limitedDoor(t *testing.T, perMinute, burst int) (d *door, advance func(time.Duration)) {
	t.Helper()
	f := formationForTest()
	f.Server.Limits = manifest.RateLimit{RequestsPerMinute: perMinute, Burst: burst}
	var passed atomic.Int64
	d = openDoor(t, doorOptions{formation: f, clock: func() time.Time { return now.Add(time.Duration(passed.Load())) }})
	return d, func(by time.Duration) { passed.Add(int64(by)) }
}

// knock sends a request, and returns its status and how long it is to wait.
func (d *door) knock(t *testing.T, method, path, body string, header ...string) (status, wait int) {
	t.Helper()
	res := d.send(t, method, path, body, header...)
	text := res.Header.Get("Retry-After")
	if (text != "") != (res.StatusCode == http.StatusTooManyRequests) {
		t.Errorf("%s %s: status %d, Retry-After %q", method, path, res.StatusCode, text)
	}
	if text == "" {
		return res.StatusCode, 0
	}
	wait, err := strconv.Atoi(text)
	var e struct {
		Object, Code, Type, Message string
		Error                       struct{ Data map[string]any }
	}
	if err2 := json.NewDecoder(res.Body).Decode(&e); err != nil || err2 != nil || wait < 1 ||
		e.Object != "error" || e.Code != "RATE_LIMITED" || e.Type != "error.processing" || e.Error.Data["retry_after"] != float64(wait) {
		t.Errorf("%s %s: Retry-After %q, %v, %+v", method, path, text, err2, e)
	}
	return res.StatusCode, wait
}

// as are the headers of a user with a key.
func as(kind, key, user string) []string {
	header := []string{"X-SVC-" + kind + "-Key", key}
	if user != "" {
		header = append(header, "X-SVC-User-Id", user)
	}
	return header
}

func TestLimits_EachKeyAndUserHasItsOwnShare(t *testing.T) {
	t.Parallel()
	client := func(user string) []string { return as("Client", clientKey, user) }
	admin := func(user string) []string { return as("Admin", adminKey, user) }
	const list, sessions = "/v1/requests", "/v1/sessions"
	type step struct {
		method, path, body string
		header             []string
		want               int
	}
	for name, steps := range map[string][]step{
		"users": {
			{"GET", list, "", client("ann"), 200},
			{"GET", sessions, "", client("ann"), 200},
			{"GET", list, "", client("ann"), 429},
			{"GET", sessions + "?user_id=ann", "", client(""), 429},
			{"GET", list, "", client("bob"), 200},
			{"GET", list, "", admin("ann"), 200},
		},
		"kinds of keys": {
			{"GET", "/v1/status", "", admin(""), 200},
			{"GET", "/v1/agents", "", as("Admin", "fma_old", ""), 200},
			{"GET", "/v1/mcp", "", admin(""), 429},
			{"GET", "/v1/credentials/services", "", client(""), 200},
		},
		"what is wrong counts too": {
			{"GET", "/v1/requests/none", "", client(""), 404},
			{"GET", list, "", client(""), 400},
			{"GET", sessions + "?user_id=a%0Ab", "", client(""), 429},
			{"GET", "/v1/requests/none", "", client(""), 429},
		},
		"a user in the query of a route that knows none": {
			{"GET", "/v1/credentials/services?user_id=ann", "", client(""), 200},
			{"GET", "/v1/credentials/services", "", client("ann"), 200},
			{"GET", "/v1/credentials/services", "", client("ann"), 429},
			{"GET", "/v1/credentials/services", "", client(""), 200},
		},
		"a user in the body": {
			{"POST", "/v1/chat", `{"message":"hi","user_id":"ann"}`, client(""), 200},
			{"POST", "/v1/route", `{"message":"hi","user_id":"ann"}`, client(""), 200},
			{"POST", "/v1/chat", `{"message":"hi","user_id":"ann"}`, client(""), 429},
			{"POST", "/v1/audiochat", `{"files":[],"user_id":"ann"}`, client(""), 429},
			{"POST", "/v1/chat", `{"message":"hi","user_id":"ann"}`, client("bob"), 200}, // the header wins
			{"POST", "/v1/chat", `{"message":"hi"}`, client(""), 200},
			{"POST", "/v1/chat", `{"message":`, client(""), 422},
			{"POST", "/v1/chat", `{"message":`, client(""), 429},
			{"POST", "/v1/chat", `{"message":"hi"}`, client("0"), 429}, // who names none
		},
		"what needs no key is free": {
			{"GET", "/", "", nil, 200},
			{"GET", "/v1", "", client("ann"), 200},
			{"GET", "/v1/health", "", client("ann"), 200},
			{"GET", "/v1/health", "", client("ann"), 200},
			{"GET", "/v1/openapi.json", "", client("ann"), 200},
			{"GET", list, "", client("ann"), 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, advance := limitedDoor(t, 2, 2)
			for i, s := range steps {
				status, wait := d.knock(t, s.method, s.path, s.body, s.header...)
				if status != s.want || status == 429 && wait != 30 {
					t.Errorf("step %d, %s %s: status %d, wait %d s; want %d", i, s.method, s.path, status, wait, s.want)
				}
			}
			advance(30 * time.Second)
			if status, _ := d.knock(t, "GET", list, "", client("ann")...); status != 200 {
				t.Errorf("when the time has passed: %d", status)
			}
		})
	}
}

func TestLimits_AreOffWithoutTheKey(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for range 200 {
		if status, _ := d.knock(t, "GET", "/v1/requests", "", as("Client", clientKey, "ann")...); status != 200 {
			t.Fatal(status)
		}
		if status, _ := d.knock(t, "GET", "/v1/requests", "", as("Client", "fmc_guess", "ann")...); status != 401 {
			t.Fatal(status)
		}
	}
}

func TestLimits_AStreamIsOneRequest(t *testing.T) {
	t.Parallel()
	d, _ := limitedDoor(t, 2, 2)
	res := d.send(t, "POST", "/v1/chat", `{"message":"hi","stream":true}`, as("Client", clientKey, "ann")...)
	frames, lines := 0, bufio.NewScanner(res.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data:") {
			frames++
		}
	}
	if res.StatusCode != 200 || frames < 3 {
		t.Fatalf("status %d, %d frames", res.StatusCode, frames)
	}
	for i, want := range []int{200, 429} {
		if status, _ := d.knock(t, "GET", "/v1/sessions", "", as("Client", clientKey, "ann")...); status != want {
			t.Errorf("request %d after the stream: %d", i, status)
		}
	}
}

func TestLimits_CallsOfToolsCountAsTheirRoutes(t *testing.T) {
	t.Parallel()
	d, advance := limitedDoor(t, 3, 3)
	header := as("Client", clientKey, "ann")
	s := d.connect(t, nil, header...) // the handshake is free
	if _, err := s.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for i, code := range []string{"", "", "", "RATE_LIMITED"} {
		got := call(t, s, "list_sessions", nil)
		if got.Code != code || got.failed != (code != "") || code != "" && got.Error.Data["retry_after"] != float64(20) {
			t.Errorf("call %d: %s", i, got.text)
		}
	}
	if status, _ := d.knock(t, "GET", "/v1/sessions", "", header...); status != 429 {
		t.Errorf("the route: %d", status)
	}
	if _, err := s.ListResources(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "Too Many Requests") {
		t.Errorf("resources: %v", err)
	}
	const batch = `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sessions"}},` +
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_sessions"}}]`
	advance(20 * time.Second)
	res := d.send(t, "POST", "/mcp", batch, append(header, "Content-Type", "application/json", "Accept", "application/json, text/event-stream")...)
	counts := map[string]int{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		counts["RATE_LIMITED"] += strings.Count(lines.Text(), `"code":"RATE_LIMITED"`)
		counts["session.list"] += strings.Count(lines.Text(), `"type":"session.list"`)
	}
	if counts["RATE_LIMITED"] == 0 || counts["session.list"] == 0 {
		t.Errorf("a batch of two calls with room for one: status %d, %v", res.StatusCode, counts)
	}
	if status, _ := d.knock(t, "POST", "/mcp", strings.Replace(batch, "tools/call", "resources/list", 1), append(header, "Content-Type", "application/json")...); status != 429 {
		t.Errorf("a batch with something else: %d", status)
	}
}

func TestLimits_WrongKeysAreCountedPerAddress(t *testing.T) {
	t.Parallel()
	const list, handshake = "/v1/requests", `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	type step struct {
		from   string // as the proxy on this host says
		method string
		path   string
		header []string
		want   int
	}
	good, admin := as("Client", clientKey, "ann"), as("Admin", adminKey, "")
	bad, badAdmin := as("Client", "fmc_guess", "ann"), as("Admin", "fma_guess", "ann")
	for name, steps := range map[string][]step{
		"nobody learns more": {
			{"192.0.2.1", "GET", list, bad, 401},
			{"192.0.2.1", "GET", "/v1/status", badAdmin, 401},
			{"192.0.2.1", "GET", list, bad, 429},
			{"192.0.2.1", "GET", list, good, 429},
			{"192.0.2.1", "GET", "/v1/status", admin, 429},
			{"192.0.2.1", "POST", "/mcp", good, 429},
			{"192.0.2.1", "GET", "/v1/health", bad, 200},
			{"192.0.2.1", "GET", list, nil, 401}, // no key is no guess
			{"192.0.2.2", "GET", list, good, 200},
			{"192.0.2.2", "GET", list, bad, 401},
		},
		"who is at home goes on": {
			{"192.0.2.1", "GET", list, good, 200},
			{"192.0.2.1", "GET", list, bad, 401},
			{"192.0.2.1", "GET", list, bad, 401},
			{"192.0.2.1", "GET", list, bad, 429},
			{"192.0.2.1", "GET", list, good, 200},
			{"192.0.2.1", "GET", "/v1/status", admin, 429},
		},
		"a guess beside a key that is right": {
			{"192.0.2.1", "GET", list, append(badAdmin, good...), 200},
			{"192.0.2.1", "GET", list, append(badAdmin, good...), 200},
			{"192.0.2.1", "GET", list, append(badAdmin, good...), 429},
		},
		"over the tool protocol": {
			{"192.0.2.1", "POST", "/mcp", bad, 200}, // a handshake
			{"192.0.2.1", "POST", "/mcp", bad, 200},
			{"192.0.2.1", "POST", "/mcp", bad, 429},
			{"192.0.2.1", "POST", "/mcp", nil, 200},
		},
		"a network of IPv6": {
			{"2001:db8::1", "GET", list, bad, 401},
			{"2001:db8::2", "GET", list, bad, 401},
			{"2001:db8::3", "GET", list, bad, 429},
			{"2001:db8:0:1::3", "GET", list, bad, 401},
		},
		"the key of another route": {
			{"192.0.2.1", "GET", "/v1/status", good, 401},
			{"192.0.2.1", "GET", "/v1/status", good, 401},
			{"192.0.2.1", "GET", "/v1/status", good, 401},
			{"192.0.2.1", "GET", list, good, 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, advance := limitedDoor(t, 2, 2)
			for i, s := range steps {
				body := ""
				if s.path == "/mcp" {
					body = handshake
				}
				header := append([]string{"X-Forwarded-For", s.from, "Content-Type", "application/json", "Accept", "application/json, text/event-stream"}, s.header...)
				if status, _ := d.knock(t, s.method, s.path, body, header...); status != s.want {
					t.Errorf("step %d, %s %s: status %d, want %d", i, s.method, s.path, status, s.want)
				}
			}
			advance(time.Minute)
			if status, _ := d.knock(t, "GET", list, "", append([]string{"X-Forwarded-For", "192.0.2.1"}, good...)...); status != 200 {
				t.Errorf("when the time has passed: %d", status)
			}
		})
	}
}

func TestLimits_TheDocumentSaysSo(t *testing.T) {
	t.Parallel()
	with, _ := limitedDoor(t, 2, 2)
	for path, methods := range document(t, with) {
		for method, op := range methods {
			if _, ok := op.Responses["429"]; ok != (len(op.Security) > 0) {
				t.Errorf("%s %s: 429 %v", method, path, ok)
			}
		}
	}
}

// BenchmarkLimits asks for a tool server that there is none, with and without limits.
func BenchmarkLimits(b *testing.B) {
	for name, limit := range map[string]manifest.RateLimit{"off": {}, "on": {RequestsPerMinute: 1 << 40}} {
		b.Run(name, func(b *testing.B) {
			f := formationForTest()
			f.Server.Limits = limit
			handler, err := httpapi.New(httpapi.Config{
				Formation: f, Turns: &turn.Service{}, Requests: request.Reader{}, Sessions: memory.New(memory.Config{}), Usage: &budget.Ledger{}, Log: zerolog.Nop(),
				Keys: func() httpapi.Keys { return httpapi.Keys{Admin: []httpapi.Digest{httpapi.DigestOf(adminKey)}} },
			})
			if err != nil {
				b.Fatal(err)
			}
			r := httptest.NewRequest("GET", "/v1/mcp/servers/none", nil)
			r.Header.Set("X-SVC-Admin-Key", adminKey)
			r.Header.Set("X-SVC-User-Id", "ann")
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, r); w.Code != http.StatusNotFound {
					b.Fatal(w.Code)
				}
			}
		})
	}
}

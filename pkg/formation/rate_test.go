package formation_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentformation/service/test/fakellm"
)

func TestRate_AnAgentsLimitPerDayOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	manifest := fmt.Sprintf(worldManifest, w.fake.URL()) + "    rate_limiting:\n      requests_per_day: 2\n"
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), []byte(manifest), 0o600))
	first := w.load(w.config("first"))
	w.check(first.Serve(t.Context()))
	c := w.client(false)
	if r := w.must(c, ask{body: `{"message":"one"}`}); r.status != http.StatusOK {
		t.Fatalf("%d %s", r.status, r.body)
	}
	w.check(first.Stop(context.WithoutCancel(t.Context())))
	next := w.load(w.config("next"), "first")
	w.check(next.Serve(t.Context()))
	if r := w.must(c, ask{body: `{"message":"two"}`}); r.status != http.StatusOK {
		t.Fatalf("%d %s", r.status, r.body)
	}
	res, err := c.Do(w.request(t.Context(), ask{body: `{"message":"three"}`}))
	w.check(err)
	defer res.Body.Close()
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if res.StatusCode != http.StatusTooManyRequests || err != nil || seconds < 23*3600 {
		t.Errorf("the third of a day: %d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
	}
	if r := w.must(c, ask{body: `{"message":"four"}`}); r.envelope(t).Code != "RATE_LIMITED" {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestRate_AToolServersLimitIsOverAllUsersAndToldToTheModel(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t)
	file := filepath.Join(w.dir, "mcp", "everything.afs")
	text, err := os.ReadFile(file)
	w.check(err)
	w.check(os.WriteFile(file, append(text, "capabilities: [echo]\nrate_limiting: {requests_per_hour: 1}\n"...), 0o600))
	w.serveTools("rates" + filepath.Base(filepath.Dir(w.dir)))
	client := w.client(true)
	for _, test := range []struct{ user, want string }{
		{"ann", "Echo: hello"},
		{"bob", `The tool could not be called, nothing was done: The tool server \"everything\" takes at most 1 calls per hour from all users together`},
	} {
		before := len(w.fake.Calls())
		w.fake.Add(fakellm.Rule{User: "for " + test.user, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "everything__echo", Args: `{"message":"hello"}`}}}})
		r := w.must(client, ask{body: fmt.Sprintf(`{"message":"for %s","agent_id":"writer","user_id":%q}`, test.user, test.user)})
		calls := w.fake.Calls()[before:]
		if last := calls[len(calls)-1].Body; r.status != http.StatusOK || len(calls) != 2 || !strings.Contains(strings.ReplaceAll(last, `\\\"`, `\"`), test.want) {
			t.Errorf("%s: %s; the model was asked %d times and heard %.3000s", test.user, r.body, len(calls), last)
		}
	}
	r := w.must(client, ask{method: "GET", path: "/v1/mcp/servers/everything", header: map[string]string{"X-SVC-Admin-Key": "fma_world"}})
	if !strings.Contains(string(r.body), `"capabilities":["echo"]`) {
		t.Errorf("%s", r.body)
	}
}

func TestRate_TheAPIsLimitsAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := strings.Replace(fmt.Sprintf(worldManifest, w.fake.URL()), "server:\n", "server:\n  limits: {requests_per_minute: 1, burst: 2}\n", 1)
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), []byte(text), 0o600))
	f := w.load(w.config("limits"))
	w.check(f.Serve(t.Context()))
	c := w.client(false)
	for i, want := range []int{200, 200, 429} {
		if r := w.must(c, ask{body: fmt.Sprintf(`{"message":"%d"}`, i)}); r.status != want {
			t.Errorf("request %d: %d %s", i, r.status, r.body)
		}
	}
}

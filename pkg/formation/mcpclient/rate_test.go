package mcpclient_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
)

// wantRefused holds an error against what a model needs: which server, which
// limit, and when it may call again.
func wantRefused(t *testing.T, err error, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*mcpclient.Error](err)
	if !ok || e.Begun() {
		t.Errorf("%T %v, begun %v", err, err, ok && e.Begun())
		return
	}
	for _, word := range words {
		if !strings.Contains(e.Error(), word) {
			t.Errorf("%q does not say %q", e.Error(), word)
		}
	}
}

func TestRate_CallsOverTheLimitAreNotSentWhoeverAsks(t *testing.T) {
	t.Parallel()
	var posts atomic.Int64
	far := newCounted(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		far.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	limited, other := remote("far", front.URL), remote("other", far.URL)
	limited.RateLimit = manifest.RateLimiting{PerHour: 3}
	c := open(t, nil, limited, other)
	discover(t, c) // is free
	tools := map[string]*mcpclient.Tool{}
	for _, tool := range c.For("agent", nil).Tools(t.Context(), chat.Invocation{}) {
		tools[tool.Server()] = tool
	}
	ask := func(server, user string) error {
		_, err := tools[server].Call(t.Context(), chat.Invocation{CallID: "c", Args: json.RawMessage("{}"), User: user})
		return err
	}
	for _, user := range []string{"ann", "bob", "ann"} {
		if err := ask("far", user); err != nil {
			t.Fatal(err)
		}
	}
	before := posts.Load()
	for _, user := range []string{"ann", "bob", "cid"} {
		wantRefused(t, ask("far", user), `"far" takes at most 3 calls per hour`, "the call of hello was not sent", "It may be called again in 3", "at 20")
	}
	if _, err := c.ReadResource(t.Context(), chat.Invocation{User: "ann"}, "far", "x://y"); err != nil {
		wantRefused(t, err, "resources/read was not sent")
	} else {
		t.Error("a resource was read over the limit")
	}
	if posts.Load() != before {
		t.Errorf("%d messages were sent over the limit", posts.Load()-before)
	}
	if err := ask("other", "ann"); err != nil {
		t.Errorf("another server: %v", err)
	}
}

func TestRate_EveryTryCountsAndWhatWentWrongIsSaid(t *testing.T) {
	t.Parallel()
	far := newCounted(t)
	limited := remote("far", far.URL)
	limited.RateLimit, limited.RetryAttempts = manifest.RateLimiting{PerHour: 2}, 5
	c := open(t, nil, limited)
	discover(t, c)
	hello := tool(t, c, "hello")
	call(t, c, "hello", "{}")
	far.forget() // a call has to be tried twice then
	_, err := hello.Call(t.Context(), chat.Invocation{Args: json.RawMessage("{}")})
	wantRefused(t, err, "does not know the session any more")
	_, err = hello.Call(t.Context(), chat.Invocation{Args: json.RawMessage("{}")})
	wantRefused(t, err, "at most 2 calls per hour")
}

func TestRate_TheRoomComesBackWithTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit manifest.RateLimiting
		most  int // at once
		text  string
		wait  time.Duration // until there is room for one
	}{
		"minute":      {manifest.RateLimiting{PerMinute: 2}, 2, "at most 2 calls per minute", 61 * time.Second},
		"hour":        {manifest.RateLimiting{PerMinute: 100, PerHour: 3}, 3, "at most 3 calls per hour", 61 * time.Minute},
		"day":         {manifest.RateLimiting{PerDay: 1}, 1, "at most 1 calls per day", 25 * time.Hour},
		"burst":       {manifest.RateLimiting{PerMinute: 30, Burst: 1}, 1, "at most 1 calls at once", 2 * time.Second},
		"burst alone": {manifest.RateLimiting{Burst: 4}, 4, "at most 4 calls at once", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := remote("far", "http://127.0.0.1:1")
				server.RateLimit = tc.limit
				c := open(t, nil, server)
				for range 3 {
					for i := range tc.most {
						if err := c.Admit("far", "hello"); err != nil {
							t.Fatalf("call %d: %v", i, err)
						}
					}
					err := c.Admit("far", "hello")
					wantRefused(t, err, tc.text)
					seconds, at := 0, ""
					_, words, _ := strings.Cut(err.Error(), "called again in ")
					if _, err := fmt.Sscanf(words, "%d s, at %s", &seconds, &at); err != nil {
						t.Fatal(err)
					}
					if want := time.Now().Add(time.Duration(seconds) * time.Second).UTC().Format(time.RFC3339); time.Duration(seconds)*time.Second > tc.wait || at != want+"." {
						t.Errorf("to be called again in %d s, at %s; want %s", seconds, at, want)
					}
					<-time.After(time.Duration(seconds) * time.Second)
					if err := c.Admit("far", "hello"); err != nil {
						t.Errorf("when it may be called again: %v", err)
					}
					<-time.After(25 * time.Hour)
				}
			})
		})
	}
	c := open(t, nil, remote("far", "http://127.0.0.1:1"))
	for range 1000 {
		if err := c.Admit("far", "hello"); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkRate(b *testing.B) {
	for name, limit := range map[string]manifest.RateLimiting{"off": {}, "on": {PerMinute: 1 << 40, PerHour: 1 << 40, PerDay: 1 << 40, Burst: 1 << 40}} {
		b.Run(name, func(b *testing.B) {
			server := remote("far", "http://127.0.0.1:1")
			server.RateLimit = limit
			c := open(b, nil, server)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Admit("far", "hello"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

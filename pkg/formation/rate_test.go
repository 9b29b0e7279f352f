package formation_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
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

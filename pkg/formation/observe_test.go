package formation_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/pkg/redact"
	"github.com/agentformation/service/test/fakellm"
)

// canary is a secret that a user writes and that must not come out again.
const canary = "sk-proj-Qx7canaryZ81mA93kLp20vTrW55bNs"

const observedManifest = `schema: "1.0.0"
id: world
description: One agent over a scripted model.
server: {api_keys: {client_key: fmc_world, admin_key: fma_world}}
logging: {system: {level: %s}}
llm:
  endpoints: {openai: %s}
  prices: {openai/fake: {input: 1000, output: 2000}}
  models:
    - text: openai/fake
budgets: {warn_at: 0.00001, user: {tokens_per_day: 100000}}
agents:
  - id: writer
    name: Writer
    description: Writes.
`

// lines keeps what is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// observed starts a child whose log is tapped, as cmd does it.
func (w *world) observed(level string, env map[string]string) (*formation.Formation, *lines) {
	w.t.Helper()
	text := fmt.Appendf(nil, observedManifest, level, w.fake.URL())
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), text, 0o600))
	log, hide := &lines{}, redact.New()
	tap := formation.NewLogTap(log)
	cfg := w.config("one")
	cfg.Log = zerolog.New(hide.Writer(tap)).Level(zerolog.InfoLevel).With().Timestamp().Logger()
	cfg.Tap, cfg.Redact = tap, hide
	cfg.Env = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	f := w.load(cfg)
	w.check(f.Serve(w.t.Context()))
	return f, log
}

var admin = map[string]string{"X-SVC-Admin-Key": "fma_world"}

// frames reads a stream of events until it ends.
func (w *world) frames(path string) <-chan string {
	w.t.Helper()
	res, err := w.client(false).Do(w.request(w.t.Context(), ask{method: http.MethodGet, path: path, header: admin}))
	w.check(err)
	w.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %d", path, res.StatusCode)
	}
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	if !in.Scan() || in.Text() != ": keepalive" {
		w.t.Fatalf("%s begins with %q", path, in.Text())
	}
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		for in.Scan() {
			if data, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				out <- data
			}
		}
	}()
	return out
}

// totals are those of a trace and of the book of usage.
type totals struct {
	ModelCalls int `json:"model_calls"`
	Tokens     struct{ Input, Output, Cached int }
	Cost       *struct {
		Amount   float64
		Currency string
	}
}

func TestObserve_ATracesTotalsAreThoseOfTheBook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("info", nil)
	c := w.client(false)
	r := w.must(c, ask{body: `{"message":"hello there","user_id":"ann"}`})
	id := r.envelope(t).Data.RequestID
	var trace, book struct{ Data struct{ Totals totals } }
	for path, into := range map[string]any{"/v1/requests/" + id + "/trace": &trace, "/v1/usage?user_id=ann": &book} {
		got := w.must(c, ask{method: http.MethodGet, path: path, header: admin})
		if err := json.Unmarshal(got.body, into); err != nil || got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
	}
	if diff := cmp.Diff(book.Data.Totals, trace.Data.Totals); diff != "" {
		t.Errorf("(-booked +traced):\n%s", diff)
	}
	if got := trace.Data.Totals; got.ModelCalls != 1 || got.Tokens.Input == 0 || got.Cost == nil || got.Cost.Amount == 0 {
		t.Errorf("totals %+v", got)
	}
	metrics := string(w.must(c, ask{method: http.MethodGet, path: "/metrics", header: admin}).body)
	for _, want := range []string{
		`formation_model_calls_total{provider="openai",model="fake",outcome="ok"} 1`, `formation_turns_total{status="completed"} 1`,
		fmt.Sprintf(`formation_tokens_total{provider="openai",model="fake",direction="input"} %d`, trace.Data.Totals.Tokens.Input),
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s:\n%s", want, metrics)
		}
	}
}

func TestObserve_NobodySeesASecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, log := w.observed("debug", nil)
	logs, events := w.frames("/v1/logs?level=DEBUG"), w.frames("/v1/events")
	c := w.client(false)
	r := w.must(c, ask{body: `{"message":"my key is ` + canary + `","user_id":"ann"}`})
	trace := w.must(c, ask{method: http.MethodGet, path: "/v1/requests/" + r.envelope(t).Data.RequestID + "/trace", header: admin})
	_, err := f.Drain(t.Context(), control.DrainRequest{Timeout: patience})
	w.check(err)
	var names []string
	all := string(trace.body) + log.String()
	for _, stream := range []<-chan string{logs, events} {
		for data := range stream { // ends with the drain
			var e struct {
				EventType string `json:"event_type"`
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Errorf("%v: %s", err, data)
			}
			names = append(names, e.EventType)
			all += data
		}
	}
	seen := strings.Join(names, " ")
	for _, want := range []string{"chat.started", "chat.completed", "budget.warning"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %s among %s", want, seen)
		}
	}
	if i := strings.Index(all, canary); i >= 0 {
		t.Errorf("a secret is told: …%s…", all[max(0, i-100):i+60])
	}
}

func TestObserve_TheLogIsHeardByThoseWhoListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake = fakellm.Start(t, fakellm.Options{Key: "another key"}) // a turn that fails is a warning of the log
	f, log := w.observed("warning", nil)
	logs := w.frames("/v1/logs?event_type=log")
	w.must(w.client(false), ask{body: `{"message":"hello","user_id":"ann"}`})
	_, err := f.Drain(t.Context(), control.DrainRequest{Timeout: patience})
	w.check(err)
	var got []string
	for data := range logs {
		got = append(got, data)
	}
	if n := strings.Count(log.String(), "\n"); len(got) == 0 || len(got) > n || !strings.Contains(strings.Join(got, ""), `"level":"WARNING"`) {
		t.Errorf("heard %q of the log\n%s", got, log)
	}
}

func TestObserve_TheManifestSaysHowTalkativeTheLogIs(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]bool{"debug": true, "error": false} {
		w := newWorld(t)
		f, log := w.observed(level, nil)
		w.check(f.Stop(t.Context()))
		if got := strings.Contains(log.String(), `"level":"debug"`); got != want {
			t.Errorf("%s:\n%s", level, log)
		}
	}
}

func TestObserve_SpansReachACollector(t *testing.T) {
	var mu sync.Mutex
	var sent strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent.WriteString(r.URL.Path + " ")
		sent.Write(body)
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	w := newWorld(t)
	f, _ := w.observed("info", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL})
	const id = "0af7651916cd43dd8448eb211c80319c"
	w.must(w.client(false), ask{body: `{"message":"a private word","user_id":"ann"}`, header: map[string]string{"traceparent": "00-" + id + "-b7ad6b7169203331-01"}})
	w.check(f.Stop(t.Context())) // sends what waits
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"/v1/traces ", "invoke_agent writer", "chat fake", "gen_ai.provider.name", "world", "\x0a\xf7\x65\x19\x16\xcd"} {
		if !strings.Contains(sent.String(), want) {
			t.Errorf("the collector did not get %q", want)
		}
	}
	for _, bad := range []string{"a private word", "ann"} {
		if strings.Contains(sent.String(), bad) {
			t.Errorf("the collector got %q", bad)
		}
	}
}

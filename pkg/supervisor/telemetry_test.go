package supervisor

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/test/testports"
)

// collector is an OTLP/HTTP receiver. It keeps the bodies as they come: the
// texts and ids of a span stand in them as they are.
type collector struct {
	url    string
	mu     sync.Mutex
	bodies []string
	wrong  []string // what a collector would not understand
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		c.mu.Lock()
		defer c.mu.Unlock()
		if kind := r.Header.Get("Content-Type"); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || kind != "application/x-protobuf" {
			c.wrong = append(c.wrong, r.Method+" "+r.URL.Path+" "+kind)
		}
		c.bodies = append(c.bodies, string(body))
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(func() {
		srv.Close()
		for _, w := range c.wrong {
			t.Errorf("the collector got %s", w)
		}
	})
	c.url = srv.URL
	return c
}

// with returns the first body that holds text, "" when there is none.
func (c *collector) with(text string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.bodies {
		if strings.Contains(b, text) {
			return b
		}
	}
	return ""
}

func (c *collector) await(t *testing.T, text string) string {
	t.Helper()
	deploytest.Eventually(t, "the collector has "+text, func() bool { return c.with(text) != "" })
	return c.with(text)
}

// caller adds the headers of a traced program to each request.
type caller struct {
	http.RoundTripper
	parent string
}

func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Traceparent", c.parent)
	return c.RoundTripper.RoundTrip(r)
}

func TestTracing_TheSpanOfAManagementCallReachesTheCollector(t *testing.T) {
	t.Parallel()
	c := startCollector(t)
	s := newServed(t, "server_id: server-traced\n")
	text := strings.Replace(readFile(t, s.made.ConfigPath), "server_id: ", "# server_id: ", 1)
	writeFile(t, s.made.ConfigPath, text)
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment=cellar"}
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	s.http.Transport = caller{s.http.Transport, "00-" + trace + "-" + parent + "-01"}
	s.start()
	if _, err := s.api().Get(t.Context(), "nobody"); err == nil {
		t.Error("there is a formation nobody")
	}
	span := c.await(t, "GET /rpc/formations/{id}")
	for _, want := range []string{
		"service.name", "supervisor", "server-traced", "deployment.environment", "cellar", "/rpc/formations/nobody",
		"svc.key.id", s.made.KeyID, "error.type", "FormationNotFound", fromHex(t, trace), fromHex(t, parent),
	} {
		if !strings.Contains(span, want) {
			t.Errorf("the span lacks %q", want)
		}
	}
	if strings.Contains(span, s.made.Secret) {
		t.Error("the span holds the secret of the key")
	}
	res := get(t, s.http, s.url+"/health")
	res.Body.Close()
	if _, err := s.api().List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	c.await(t, "GET /rpc/formations")
	if c.with("/health") != "" {
		t.Error("a call that is no management call is traced")
	}
}

func fromHex(t *testing.T, text string) string {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTracing_WhatWaitsIsSentBeforeAReloadAndAStop(t *testing.T) {
	t.Parallel()
	c := startCollector(t)
	s := newServed(t, "")
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=3600000"}
	s.start()
	for _, id := range []string{"before", "after"} {
		if _, err := s.api().Get(t.Context(), id); err == nil {
			t.Errorf("there is a formation %s", id)
		}
		if c.with("/rpc/formations/"+id) != "" {
			t.Errorf("the span of %s was sent at once: this proves nothing", id)
		}
		if id == "before" {
			s.reload()
		} else {
			s.stop()
		}
		if c.with("/rpc/formations/"+id) == "" {
			t.Errorf("the span of %s is lost", id)
		}
	}
}

// A collector that is away costs spanFlush at an end, and no more; nothing else
// becomes worse by it.
func TestTracing_AnUnreachableCollectorDelaysNoEndBeyondItsBound(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections wait in its queue for ever
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(busy.Close)
	for name, url := range map[string]string{
		"refused": "http://127.0.0.1:1", "silent": "http://" + silent.Addr().String(), "busy": busy.URL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t, "")
			s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_BSP_SCHEDULE_DELAY=10"}
			s.start()
			ask := func() {
				t.Helper()
				began := time.Now()
				if _, err := s.api().List(t.Context(), ""); err != nil || time.Since(began) > spanFlush {
					t.Errorf("list: %v after %s", err, time.Since(began))
				}
			}
			ask()
			s.reload() // neither refused nor the end of the process
			ask()
			began := time.Now()
			s.stop() // which wants a good exit code
			if took := time.Since(began); took > spanFlush+5*time.Second {
				t.Errorf("the stop took %s", took)
			}
			if !strings.Contains(s.log.String(), "traces are not sent") {
				t.Errorf("the log says nothing of it:\n%s", s.log)
			}
		})
	}
}

func TestTracing_ComesBackWithItsCollector(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + strconv.Itoa(testports.Block(t))
	s := newServed(t, "")
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + addr, "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_BSP_EXPORT_TIMEOUT=200"}
	s.start()
	list := func() {
		if _, err := s.api().List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	list()
	deploytest.Eventually(t, "the failure is told", func() bool { return strings.Contains(s.log.String(), "traces are not sent") })
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	deploytest.Eventually(t, "the recovery is told", func() bool {
		list()
		return strings.Contains(s.log.String(), "traces are sent again")
	})
	if n := strings.Count(s.log.String(), "traces are not sent"); n != 1 {
		t.Errorf("one failure was told %d times", n)
	}
}

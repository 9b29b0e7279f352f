package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
	"github.com/agentformation/service/pkg/supervisor/metrics"
	"github.com/agentformation/service/pkg/supervisor/proxy"
)

func TestMain(m *testing.M) {
	deploytest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

const (
	keyID  = "svc_pk_test"
	secret = "svc_sk_test"
)

// door is the API over a rig, on a real socket.
type door struct {
	*deploytest.Rig
	api    *httpapi.API
	url    string
	client *http.Client
	audit  *lockedBuffer
	stop   func() // ends API.Run and waits

	docOnce sync.Once
	doc     apiDoc
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func setup(t *testing.T, change func(*deploy.Config)) *door {
	t.Helper()
	return setupWith(t, change, nil)
}

// setupWith also adapts the door; both functions may be nil.
func setupWith(t *testing.T, change func(*deploy.Config), adapt func(*httpapi.Config)) *door {
	t.Helper()
	return open(t, deploytest.New(t, change), adapt)
}

// setupOn is setup with a home in a directory that exists.
func setupOn(t *testing.T, home string) *door {
	t.Helper()
	return open(t, deploytest.NewAt(t, home, nil), nil)
}

func open(t *testing.T, rig *deploytest.Rig, adapt func(*httpapi.Config)) *door {
	t.Helper()
	d := &door{Rig: rig, audit: &lockedBuffer{}}
	px := d.proxy()
	cfg := httpapi.Config{
		Log: zerolog.Nop(), Deploy: d.Service, Registry: d.Registry, Proxy: px, AuditLog: d.audit,
		AuditLogPath: filepath.Join(d.Home, "logs", "audit.log"),
		Server:       httpapi.Server{ID: "server-test", Version: "9.9.9", Port: 7890, PortFirst: d.First, PortLast: d.First + 9, StartedAt: time.Now()},
		MaxBundle:    d.Config.Limits.MaxBytes, LeasedPorts: d.Ports.Leased, Calls: &httpx.Meter{},
	}
	numbers, err := metrics.New(metrics.Config{
		Log: zerolog.Nop(), Fleet: d.Service, Proxied: px.Counted, Calls: cfg.Calls, Version: "9.9.9", StartedAt: time.Now(),
		Ports: func() (int, int) { return d.Ports.Leased(), 10 },
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Metrics = numbers
	if adapt != nil {
		adapt(&cfg)
	}
	if cfg.Auth == nil {
		if cfg.Auth, err = auth.New(auth.Config{Keys: []auth.Key{{ID: keyID, Secret: secret}}, HeaderPrefix: cfg.HeaderPrefix}); err != nil {
			t.Fatal(err)
		}
	}
	if d.api, err = httpapi.New(cfg); err != nil {
		t.Fatal(err)
	}
	d.serve(t, px)
	return d
}

func (d *door) proxy() *proxy.Proxy {
	find := func(target func(context.Context, string) (deploy.Target, error)) proxy.FindFunc {
		return func(ctx context.Context, id string) (proxy.Target, error) {
			to, err := target(ctx, id)
			return proxy.Target{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(to.Port)), Launch: to.Launch}, err
		}
	}
	return proxy.New(proxy.Config{
		Log: zerolog.Nop(), Version: "9.9.9", Target: find(d.Service.Target), Draft: find(d.Service.DraftTarget),
	})
}

// callLimit bounds every call of a test, so that one which waits in vain fails
// with its own name instead of taking the whole run with it.
const callLimit = time.Minute

func (d *door) serve(t *testing.T, px *proxy.Proxy) {
	srv := httptest.NewServer(d.api)
	d.url, d.client = srv.URL, &http.Client{Transport: &http.Transport{}, Timeout: callLimit}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { d.api.Run(ctx) })
	d.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(func() {
		// An operation goes on when its client leaves, and the server waits for its
		// handler: what a failed test has left in progress must be ended first.
		d.Shutdown(t)
		d.client.CloseIdleConnections()
		srv.Close()
		px.Close()
		d.stop()
	})
}

// call is one request to the door.
type call struct {
	method, path string
	body         []byte
	header       map[string]string
	sign         func(*http.Request, []byte) // nil signs with authorize
}

func sign(text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// authorize signs with the Authorization form.
func authorize(r *http.Request, _ []byte) {
	ts := time.Now().Unix()
	r.Header.Set("Authorization", fmt.Sprintf("SVC-HMAC key=%s, timestamp=%d, signature=%s",
		keyID, ts, sign(fmt.Sprintf("%d;%s;%s", ts, r.Method, r.URL.Path))))
}

// threeHeaders signs with the form that covers the body.
func threeHeaders(r *http.Request, body []byte) {
	ts := time.Now().Unix()
	sum := sha256.Sum256(body)
	r.Header.Set("X-SVC-Key-ID", keyID)
	r.Header.Set("X-SVC-Timestamp", strconv.FormatInt(ts, 10))
	r.Header.Set("X-SVC-Signature", sign(fmt.Sprintf("%d;%s;%s;%s", ts, r.Method, r.URL.Path, hex.EncodeToString(sum[:]))))
}

func unsigned(*http.Request, []byte) {}

func (d *door) send(t *testing.T, ctx context.Context, c call) *http.Response {
	t.Helper()
	res, err := d.client.Do(d.request(t, ctx, c))
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.path, err)
	}
	return res
}

func (d *door) do(t *testing.T, c call) (*http.Response, string) {
	t.Helper()
	res := d.send(t, t.Context(), c)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	d.checkDocumented(t, c, res, string(text))
	return res, string(text)
}

// data does a call that must succeed and returns its data.
func (d *door) data(t *testing.T, status int, c call) map[string]any {
	t.Helper()
	res, text := d.do(t, c)
	var env struct {
		Success bool
		Data    map[string]any
	}
	if err := json.Unmarshal([]byte(text), &env); err != nil || res.StatusCode != status || !env.Success {
		t.Fatalf("%s %s: %d %s; want %d", c.method, c.path, res.StatusCode, text, status)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s %s: content type %q", c.method, c.path, ct)
	}
	return env.Data
}

// refused does a call that must fail with the server's envelope.
func (d *door) refused(t *testing.T, code int, name, text string, c call) *http.Response {
	t.Helper()
	res, body := d.do(t, c)
	var env map[string]any
	if err := json.Unmarshal([]byte(body), &env); err != nil {
		t.Fatalf("%s %s: %d %s", c.method, c.path, res.StatusCode, body)
	}
	message, _ := env["message"].(string)
	if res.StatusCode != code || env["success"] != false || env["error"] != name || env["code"] != float64(code) ||
		!strings.Contains(message, text) || len(env) != 4 {
		t.Errorf("%s %s: %d %s\nwant %d %s %q", c.method, c.path, res.StatusCode, body, code, name, text)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s %s: content type %q", c.method, c.path, ct)
	}
	return res
}

func (d *door) deployCall(id string, body []byte) call {
	return call{
		method: "POST", path: "/rpc/formations", body: body,
		header: map[string]string{"Content-Type": "application/gzip", "X-Formation-ID": id},
	}
}

func (d *door) mustDeploy(t *testing.T, id string, extra map[string]string) map[string]any {
	t.Helper()
	return d.data(t, 201, d.deployCall(id, deploytest.Bundle(t, id, deploytest.Files(id, extra))))
}

// event is one frame of a stream.
type event struct {
	name string
	data map[string]any
}

// events reads a stream until its end or until stop returns true.
func events(t *testing.T, body io.Reader, stop func(event) bool) []event {
	t.Helper()
	var all []event
	var e event
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[len("data: "):]), &e.data); err != nil {
				t.Fatalf("data is not one line of JSON: %q", line)
			}
		case line == "":
			all = append(all, e)
			if stop != nil && stop(e) {
				return all
			}
			e = event{}
		case strings.HasPrefix(line, ":"):
		default:
			t.Fatalf("unexpected line %q", line)
		}
	}
	return all
}

// auditRows returns the audit as "actor action id status result".
func (d *door) auditRows(t *testing.T) []string {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(d.Home, "registry.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), `SELECT record FROM audit ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		var r struct {
			Actor, Action, ID, Result string
			Status                    int
			RequestID                 string `json:"request_id"`
			RemoteAddr                string `json:"remote_addr"`
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if r.RemoteAddr != "127.0.0.1" {
			t.Errorf("remote address in %s", text)
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", r.Actor, r.Action, r.ID, r.Status, r.Result)))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

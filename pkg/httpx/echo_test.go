package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
)

// lockedBuffer is a log that several goroutines write.
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

// door is a server over NewEcho whose errors are rendered as plain JSON.
func testDoor(t *testing.T, cfg Config) (*httptest.Server, *lockedBuffer) {
	t.Helper()
	log := new(lockedBuffer)
	cfg.Log = zerolog.New(log)
	cfg.OnError = func(c echo.Context, err error) {
		f := fault.From(err)
		_ = JSON(c, f.Kind.HTTPStatus(), map[string]string{"kind": f.Kind.String(), "message": f.Message, "id": RequestID(c)})
	}
	e := NewEcho(cfg)
	e.GET("/ok", func(c echo.Context) error {
		return JSON(c, http.StatusOK, map[string]string{"id": RequestID(c), "again": RequestID(c)})
	})
	e.GET("/named", func(c echo.Context) error {
		SetRequestID(c, "mine")
		return fault.New(fault.Conflict, "", "taken")
	})
	e.GET("/panic", func(echo.Context) error { panic("at the disco") })
	e.GET("/half", func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusOK)
		_, _ = io.WriteString(c.Response(), "half")
		c.Response().Flush()
		panic("too late")
	})
	e.GET("/plain", func(echo.Context) error { return errors.New("dial 10.0.0.1: secret detail") })
	e.GET("/items/:id", func(c echo.Context) error { return JSON(c, http.StatusOK, Param(c, "id")) })
	e.POST("/bind", func(c echo.Context) error {
		var in struct {
			Message string `json:"message" bind:"required"`
		}
		if err := Bind(c, 100, &in); err != nil {
			return err
		}
		return JSON(c, http.StatusOK, in.Message)
	})
	e.POST("/read", func(c echo.Context) error { _, err := io.Copy(io.Discard, c.Request().Body); return err })
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return srv, log
}

func do(t *testing.T, method, url string, body io.Reader) (status int, header http.Header, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(data)
}

func TestNewEcho_ErrorsComeAsFaults(t *testing.T) {
	t.Parallel()
	srv, log := testDoor(t, Config{MaxBody: 1000})
	chunked := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) } // of unknown length
	for name, tt := range map[string]struct {
		method, path string
		body         io.Reader
		status       int
		want         string
	}{
		"unknown route":    {"GET", "/none", nil, 404, "Endpoint not found"},
		"unknown method":   {"PUT", "/ok", nil, 405, "Method not allowed"},
		"swallowed path":   {"GET", "/items/a/b", nil, 404, "Endpoint not found"},
		"escaped slash":    {"GET", "/items/a%2Fb", nil, 200, `"a/b"`},
		"escaped space":    {"GET", "/items/a%20b", nil, 200, `"a b"`},
		"panic":            {"GET", "/panic", nil, 500, "internal error"},
		"plain error":      {"GET", "/plain", nil, 500, "internal error"},
		"set id":           {"GET", "/named", nil, 409, `"id":"mine"`},
		"bind":             {"POST", "/bind", strings.NewReader(`{"message":"<hi>"}`), 200, `"<hi>"`},
		"bind nothing":     {"POST", "/bind", nil, 422, "Validation failed: 1 error(s)"},
		"body at limit":    {"POST", "/bind", strings.NewReader(`{"message":"` + strings.Repeat("x", 86) + `"}`), 200, "xxx"},
		"body over limit":  {"POST", "/bind", strings.NewReader(`{"message":"` + strings.Repeat("x", 87) + `"}`), 413, "larger than 100 bytes"},
		"chunked over":     {"POST", "/bind", chunked(`{"message":"` + strings.Repeat("x", 87) + `"}`), 413, "larger than 100 bytes"},
		"over any limit":   {"POST", "/read", strings.NewReader(strings.Repeat("x", 1001)), 413, "larger than 1000 bytes"},
		"chunked over any": {"POST", "/read", chunked(strings.Repeat("x", 1001)), 413, "larger than 1000 bytes"},
	} {
		status, header, body := do(t, tt.method, srv.URL+tt.path, tt.body)
		if status != tt.status || !strings.Contains(body, tt.want) || strings.Contains(body, "secret") {
			t.Errorf("%s: got %d %s, want %d with %q", name, status, body, tt.status, tt.want)
		}
		if header.Get("Content-Type") != "application/json" || header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: headers %v", name, header)
		}
	}
	for _, want := range []string{"at the disco", "secret detail", "echo_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

func TestNewEcho_APanicAfterTheFirstByteCutsTheConnection(t *testing.T) {
	t.Parallel()
	srv, log := testDoor(t, Config{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/half", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultTransport.(*http.Transport).Clone().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if data, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the client takes %q for the whole answer", data)
	}
	if !strings.Contains(log.String(), "too late") {
		t.Error("the panic is not in the log")
	}
}

func TestNewEcho_RequestIDIsOnePerRequest(t *testing.T) {
	t.Parallel()
	srv, _ := testDoor(t, Config{})
	seen := make(map[string]bool)
	for range 20 {
		_, _, body := do(t, http.MethodGet, srv.URL+"/ok", nil)
		var got struct{ ID, Again string }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if got.ID != got.Again || seen[got.ID] || !strings.HasPrefix(got.ID, "req_") {
			t.Errorf("ids %+v", got)
		}
		seen[got.ID] = true
	}
}

func TestNewEcho_AnswersOPTIONSForBrowsers(t *testing.T) {
	t.Parallel()
	srv, _ := testDoor(t, Config{HeaderPrefix: "ACME", CORSHeaders: []string{"X-Own"}})
	for _, path := range []string{"/ok", "/none"} {
		status, header, body := do(t, http.MethodOptions, srv.URL+path, nil)
		if status != http.StatusOK || body != "" || header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: got %d %q", path, status, body)
		}
		if diff := cmp.Diff("GET, POST, PUT, PATCH, DELETE, OPTIONS", header.Get("Access-Control-Allow-Methods")); diff != "" {
			t.Error(diff)
		}
		allowed := header.Get("Access-Control-Allow-Headers")
		for _, name := range []string{"Content-Type", "Last-Event-ID", "X-ACME-Client-Key", "X-Own"} {
			if !strings.Contains(allowed, name) {
				t.Errorf("%s is not among %s", name, allowed)
			}
		}
	}
}

func TestNewEcho_DrainingClosesConnections(t *testing.T) {
	t.Parallel()
	draining := false
	srv, _ := testDoor(t, Config{Draining: func() bool { return draining }})
	closes := func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/ok", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.Close
	}
	if closes() {
		t.Error("a connection was closed without need")
	}
	draining = true
	if !closes() {
		t.Error("a draining process kept its connection")
	}
}

func TestNewEcho_AccessLogOnlyWhenAskedAndWithoutQuery(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		srv, log := testDoor(t, Config{AccessLog: on})
		do(t, http.MethodGet, srv.URL+"/ok?user_id=secret", nil)
		srv.Close() // waits for the handler
		if got := strings.Contains(log.String(), `"path":"/ok","status":200`); got != on || strings.Contains(log.String(), "secret") {
			t.Errorf("access log %v: %s", on, log)
		}
	}
}

func TestJSON_FailsBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	if err := JSON(newContext(rec), http.StatusOK, func() {}); err == nil || rec.Body.Len() > 0 {
		t.Errorf("got %v and %q", err, rec.Body)
	}
}

func BenchmarkServe(b *testing.B) {
	e := NewEcho(Config{MaxBody: MaxFormationBody})
	e.POST("/", func(c echo.Context) error {
		var in target
		if err := Bind(c, MaxFormationBody, &in); err != nil {
			return err
		}
		return JSON(c, http.StatusOK, map[string]string{"id": RequestID(c)})
	})
	body := []byte(`{"message":"What is the capital of France?"}`)
	b.ReportAllocs()
	for b.Loop() {
		req := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		e.ServeHTTP(httptest.NewRecorder(), req)
	}
}

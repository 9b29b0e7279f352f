package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/test/testports"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	goleak.VerifyTestMain(m)
}

// bench is a formation behind a proxy, both on real sockets.
type bench struct {
	url    string // of the proxy
	client *http.Client
	launch atomic.Int64
}

func setup(t *testing.T, formation http.HandlerFunc, change func(*proxy.Config)) *bench {
	t.Helper()
	b := &bench{}
	up := httptest.NewServer(formation)
	t.Cleanup(up.Close)
	cfg := proxy.Config{
		Log: zerolog.Nop(), Version: "1.2.3",
		Target: func(_ context.Context, id string) (proxy.Target, error) {
			switch id {
			case "hello":
				return proxy.Target{Addr: up.Listener.Addr().String(), Launch: fmt.Sprint(b.launch.Load())}, nil
			case "down":
				return proxy.Target{}, fault.New(fault.Unavailable, "FormationUnavailable", "Formation 'down' is crashed")
			}
			return proxy.Target{}, fault.Errorf(fault.NotFound, "FormationNotFound", "No formation with id '%s'", id)
		},
	}
	if change != nil {
		change(&cfg)
	}
	p := proxy.New(cfg)
	e := httpx.NewEcho(httpx.Config{Log: zerolog.Nop(), OnError: func(c echo.Context, err error) {
		f := fault.From(err)
		_ = c.String(f.Kind.HTTPStatus(), f.Name+": "+f.Message)
	}})
	p.Mount(e)
	front := httptest.NewServer(e)
	b.url, b.client = front.URL, &http.Client{
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		front.Close()
		p.Close()
	})
	return b
}

func (b *bench) do(t *testing.T, method, path string, body io.Reader, header map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func TestProxy_ForwardsPathAndQueryAsTheyWereSent(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }, nil)
	for sent, want := range map[string]string{
		"/api/hello":                             "/",
		"/api/hello/":                            "/",
		"/api/hello/v1/chat":                     "/v1/chat",
		"/api/hello/v1/a%2Fb/c%20d":              "/v1/a%2Fb/c%20d",
		"/api/hello/v1/%E2%9C%93?q=%2F&x=a+b":    "/v1/%E2%9C%93?q=%2F&x=a+b",
		"/api/hello/v1/x?a=1;b=2&c=%zz":          "/v1/x?a=1;b=2&c=%zz",
		"/api/hello/v1/x?":                       "/v1/x?",
		"/api/hello//double//slash":              "//double//slash",
		"/api/%68ello/v1/x":                      "/v1/x",
		"/api/hello/v1/a:b@c,d;e=f'g(h)*i!j$k&l": "/v1/a:b@c,d;e=f'g(h)*i!j$k&l",
	} {
		// A raw request: a client library would tidy the target.
		got := raw(t, b, "GET "+sent+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.HasSuffix(got, "\r\n\r\n"+want) {
			t.Errorf("%s arrived wrong, want %s:\n%s", sent, want, got)
		}
	}
}

// raw sends bytes and returns the whole answer.
func raw(t *testing.T, b *bench, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

func TestProxy_RequestHeaders(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[http.Request]
	b := setup(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Clone(context.WithoutCancel(r.Context()))) }, nil)
	b.do(t, "POST", "/api/hello/v1/chat", strings.NewReader("{}"), map[string]string{
		"Connection": "X-Gone, keep-alive", "X-Gone": "1", "Keep-Alive": "timeout=5", "Proxy-Authorization": "x",
		"Proxy-Connection": "x", "Te": "gzip", "Trailer": "X-T", "Upgrade": "websocket",
		"X-SVC-Server": "forged", "X-SVC-Client-Key": "fmc_key", "X-SVC-User-Id": "u",
		"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "Forwarded": "for=6.6.6.6",
		"Accept-Encoding": "br", "User-Agent": "test/1",
	})
	r := got.Load()
	for name, want := range map[string]string{
		"X-Gone": "", "Keep-Alive": "", "Proxy-Authorization": "", "Proxy-Connection": "", "Te": "", "Upgrade": "", "Connection": "",
		"Forwarded": "", "X-Svc-Server": "1.2.3", "X-Svc-Client-Key": "fmc_key", "X-Svc-User-Id": "u",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": strings.TrimPrefix(b.url, "http://"),
		"Accept-Encoding": "br", "User-Agent": "test/1",
	} {
		if v := strings.Join(r.Header[name], "|"); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	if !strings.HasPrefix(r.Host, "127.0.0.1:") {
		t.Errorf("Host = %q, want the formation's own address", r.Host)
	}
}

func TestProxy_BelievesForwardingHeadersOfTrustedProxiesOnly(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[http.Header]
	b := setup(t, func(_ http.ResponseWriter, r *http.Request) { h := r.Header.Clone(); got.Store(&h) }, func(c *proxy.Config) {
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	b.do(t, "GET", "/api/hello/", nil, map[string]string{
		"X-Forwarded-For": "9.9.9.9, 8.8.8.8", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "public.example",
	})
	h := *got.Load()
	want := []string{"9.9.9.9, 8.8.8.8, 127.0.0.1", "https", "public.example"}
	if diff := cmp.Diff(want, []string{h.Get("X-Forwarded-For"), h.Get("X-Forwarded-Proto"), h.Get("X-Forwarded-Host")}); diff != "" {
		t.Errorf("forwarding headers (-want +got):\n%s", diff)
	}
}

func TestProxy_ResponsesPassAsTheyAre(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write([]byte("packed"))
	_ = zw.Close()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/zip":
			h.Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped.Bytes())
		case "/head":
			h.Set("Content-Length", "42")
		case "/teapot":
			h.Set("Connection", "X-Gone")
			h.Set("X-Gone", "1")
			h.Set("Keep-Alive", "timeout=1")
			h.Set("Access-Control-Allow-Origin", "*")
			h.Add("Set-Cookie", "a=1")
			h.Add("Set-Cookie", "b=2")
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "short")
		}
	}, nil)
	if res, _ := b.do(t, "GET", "/api/hello/redirect", nil, nil); res.StatusCode != 302 || res.Header.Get("Location") != "/elsewhere" {
		t.Errorf("redirect: %d %q", res.StatusCode, res.Header.Get("Location"))
	}
	if res, body := b.do(t, "GET", "/api/hello/zip", nil, nil); body != zipped.String() || res.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("gzip: %q %q", res.Header, body)
	}
	if res, _ := b.do(t, "HEAD", "/api/hello/head", nil, nil); res.ContentLength != 42 {
		t.Errorf("head: %d", res.ContentLength)
	}
	res, body := b.do(t, "GET", "/api/hello/teapot", nil, nil)
	if res.StatusCode != http.StatusTeapot || body != "short" || res.Header.Get("X-Gone")+res.Header.Get("Keep-Alive") != "" {
		t.Errorf("teapot: %d %q %v", res.StatusCode, body, res.Header)
	}
	if diff := cmp.Diff([]string{"*"}, res.Header["Access-Control-Allow-Origin"]); diff != "" {
		t.Errorf("allowed origin (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a=1", "b=2"}, res.Header["Set-Cookie"]); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
}

func TestProxy_StreamsEventsFrameByFrame(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for frame := range next {
			_, _ = io.WriteString(w, frame)
			_ = http.NewResponseController(w).Flush()
		}
	}, nil)
	// The first frame exists only after the headers were asked for, and each
	// further one only after its predecessor arrived: a proxy that holds
	// anything back would stand still.
	go func() { next <- "data: 0\n\n" }()
	req, _ := http.NewRequestWithContext(t.Context(), "GET", b.url+"/api/hello/v1/chat", http.NoBody)
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for i := range 5 {
		got, err := lines.ReadString('\n')
		if err != nil || got != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("frame %d: %q, %v", i, got, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if i < 4 {
			next <- fmt.Sprintf("data: %d\n\n", i+1)
		}
	}
	close(next)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("after the last frame: %q, %v", rest, err)
	}
}

func TestProxy_StreamsLargeBodiesBothWays(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
	}, nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	_, got := b.do(t, "POST", "/api/hello/echo", io.MultiReader(bytes.NewReader(body)), nil)
	if got != string(body) {
		t.Errorf("%d bytes came back of %d", len(got), len(body))
	}
}

func TestProxy_ClientThatLeavesEndsTheFormationsRequest(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	b := setup(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", b.url+"/api/hello/v1/chat", http.NoBody)
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	res.Body.Close()
	<-ended // the test's own timeout is the failure
}

func TestProxy_Errors(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close() // accepted, and dead before a byte of the answer
		}
	}, nil)
	for path, want := range map[string]string{
		"/api/hello/x":   "502 BadGateway: Formation did not respond",
		"/api/down/x":    "503 FormationUnavailable: Formation 'down' is crashed",
		"/api/nobody/x":  "404 FormationNotFound: No formation with id 'nobody'",
		"/api/a%2Fb/x":   "404 FormationNotFound: No formation with id 'a/b'",
		"/api/%2e%2e/v1": "404 FormationNotFound: No formation with id '..'",
	} {
		res, body := b.do(t, "POST", path, strings.NewReader("{}"), nil)
		if got := fmt.Sprintf("%d %s", res.StatusCode, body); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestProxy_RefusedConnectionIsBadGateway(t *testing.T) {
	t.Parallel()
	addr := testports.Refusing(t)
	b := setup(t, nil, func(c *proxy.Config) {
		c.Target = func(context.Context, string) (proxy.Target, error) { return proxy.Target{Addr: addr}, nil }
	})
	if res, body := b.do(t, "GET", "/api/hello/x", nil, nil); res.StatusCode != 502 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

func TestProxy_AnswerThatBreaksOffIsNotMadeWhole(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", b.url+"/api/hello/x", http.NoBody)
	res, err := b.client.Do(req)
	if err != nil {
		return // cut before the headers: no whole answer either
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the client took %q for a whole answer", got)
	}
}

func TestProxy_NewProcessGetsNewConnections(t *testing.T) {
	t.Parallel()
	b := setup(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }, nil)
	_, first := b.do(t, "GET", "/api/hello/x", nil, nil)
	_, again := b.do(t, "GET", "/api/hello/x", nil, nil)
	if first != again {
		t.Errorf("the connection was not reused: %s, then %s", first, again)
	}
	b.launch.Add(1)
	_, other := b.do(t, "GET", "/api/hello/x", nil, nil)
	if other == first {
		t.Error("a connection to the old process was used for its successor")
	}
}

// lateEnd is a request body whose end is looked for only when the answer has
// begun, as it happens between two processes.
type lateEnd struct {
	io.ReadCloser
	begun <-chan struct{}
	read  bool
}

func (l *lateEnd) Read(p []byte) (int, error) {
	if l.read {
		<-l.begun
	}
	l.read = true
	return l.ReadCloser.Read(p)
}

func TestProxy_AnAnswerThatBeginsBeforeTheBodysEndIsNotCutOff(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, "first ")
		w.(http.Flusher).Flush()
		<-begun
		fmt.Fprint(w, "last")
	}))
	defer up.Close()
	p := proxy.New(proxy.Config{Log: zerolog.Nop(), Target: func(context.Context, string) (proxy.Target, error) {
		return proxy.Target{Addr: up.Listener.Addr().String()}, nil
	}})
	defer p.Close()
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Request().Body = &lateEnd{ReadCloser: c.Request().Body, begun: begun}
			return next(c)
		}
	})
	p.Mount(e)
	front := httptest.NewServer(e)
	defer front.Close()
	res, err := front.Client().Post(front.URL+"/api/hello/v1/chat", "application/json", strings.NewReader(`{"message":"hello"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, len("first "))
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	close(begun)
	rest, err := io.ReadAll(res.Body)
	if err != nil || string(rest) != "last" {
		t.Errorf("after %q came %q, %v", first, rest, err)
	}
}

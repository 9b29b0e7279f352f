package mcpclient_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/test/npm"
	"github.com/agentformation/service/test/testports"
)

func remote(id, endpoint string) mcpclient.Server {
	return mcpclient.Server{MCPServer: manifest.MCPServer{
		ID: id, Type: manifest.MCPHTTP, Active: true, Endpoint: endpoint, Method: "POST",
		Timeout: patience, ConnectionTTL: time.Hour, RetryAttempts: 2,
	}}
}

// everythingHTTP starts server-everything over HTTP at a port.
func everythingHTTP(t *testing.T, way string, port int) (kill func()) {
	t.Helper()
	cmd := exec.Command("node", npm.Module(t, "@modelcontextprotocol/server-everything/dist/index.js"), way)
	cmd.Env = append(cmd.Environ(), "PORT="+strconv.Itoa(port))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			continue
		}
	}()
	eventually(t, "the server listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return kill
}

func TestEverything_OverStreamableHTTP(t *testing.T) {
	t.Parallel()
	port := testports.Block(t)
	everythingHTTP(t, "streamableHttp", port)
	c := open(t, nil, remote("everything", fmt.Sprintf("http://127.0.0.1:%d/mcp", port)))
	discover(t, c)
	tryEverything(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	_, err := tool(t, c, "trigger-long-running-operation").Call(ctx, chat.Invocation{
		Args: json.RawMessage(`{"duration":60,"steps":600}`), Progress: func(chat.ToolProgress) { cancel() },
	})
	if !errors.Is(err, context.Canceled) || time.Since(start) > 50*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	if res := call(t, c, "echo", `{"message":"b"}`); res.Content != "Echo: b" {
		t.Errorf("%+v", res)
	}
}

func TestEverything_OverTheOlderHTTP(t *testing.T) {
	t.Parallel()
	port := testports.Block(t)
	everythingHTTP(t, "sse", port)
	c := open(t, nil, remote("everything", fmt.Sprintf("http://127.0.0.1:%d/sse", port)))
	discover(t, c)
	tryEverything(t, c)
}

func TestEverything_StartedAnewBehindItsAddress(t *testing.T) {
	t.Parallel()
	port := testports.Block(t)
	kill := everythingHTTP(t, "streamableHttp", port)
	c := open(t, nil, remote("everything", fmt.Sprintf("http://127.0.0.1:%d/mcp", port)))
	discover(t, c)
	call(t, c, "echo", `{"message":"a"}`)
	_, err := tool(t, c, "trigger-long-running-operation").Call(t.Context(), chat.Invocation{
		Args: json.RawMessage(`{"duration":60,"steps":600}`), Progress: func(chat.ToolProgress) { kill() },
	})
	if err == nil || !strings.Contains(err.Error(), `The tool server "everything"`) {
		t.Errorf("%v", err)
	}
	everythingHTTP(t, "streamableHttp", port)
	if res := call(t, c, "echo", `{"message":"b"}`); res.Content != "Echo: b" {
		t.Errorf("%+v", res)
	}
}

// counted is a server of ours that counts its sessions and keeps the headers of
// its requests.
type counted struct {
	*httptest.Server
	sessions atomic.Int32
	down     atomic.Bool
	mu       sync.Mutex
	headers  http.Header
	accepts  []string
	servers  []*mcpsdk.Server
	forget   func() // starts the server anew
}

// open returns how many sessions nobody has ended.
func (c *counted) open() (n int) {
	for _, s := range c.servers {
		for range s.Sessions() {
			n++
		}
	}
	return n
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	c := &counted{}
	var handler atomic.Pointer[mcpsdk.StreamableHTTPHandler]
	c.forget = func() {
		server := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "counted"}, nil)
		mcpsdk.AddTool(server, &mcpsdk.Tool{Name: "hello"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
			return text("hello"), nil, nil
		})
		c.servers = append(c.servers, server)
		handler.Store(mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return server }, nil))
	}
	c.forget()
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/health" {
			return
		}
		c.mu.Lock()
		c.headers = r.Header.Clone()
		if r.Method == http.MethodPost {
			c.accepts = append(c.accepts, r.Header.Get("Accept"))
			if r.Header.Get("Mcp-Session-Id") == "" {
				c.sessions.Add(1)
			}
		}
		c.mu.Unlock()
		handler.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
		for _, s := range c.servers {
			for session := range s.Sessions() {
				_ = session.Close()
			}
		}
	})
	return c
}

func TestHTTP_OneSessionServesManyCallsAndIsReplacedWhenForgotten(t *testing.T) {
	t.Parallel()
	far := newCounted(t)
	c := open(t, nil, remote("far", far.URL))
	discover(t, c)
	for range 10 {
		call(t, c, "hello", "{}")
	}
	if n := far.sessions.Load(); n != 2 { // one to list, one to call
		t.Errorf("%d sessions", n)
	}
	far.forget()
	if res := call(t, c, "hello", "{}"); res.Content != "hello" {
		t.Errorf("%+v", res)
	}
	if n := far.sessions.Load(); n != 3 {
		t.Errorf("%d sessions", n)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "only the session that was forgotten is left", func() bool { return far.open() == 1 })
}

func TestHTTP_HeadersOfTheFileAndAuth(t *testing.T) {
	t.Parallel()
	secret := map[string]string{"token": "${{ secrets.T }}", "username": "me", "password": "${{ secrets.T }}", "header": "X-Key", "key": "${{ secrets.T }}"}
	for kind, want := range map[string][2]string{
		manifest.AuthBearer: {"Authorization", "Bearer hidden"},
		manifest.AuthBasic:  {"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("me:hidden"))},
		manifest.AuthAPIKey: {"X-Key", "hidden"},
		manifest.AuthNone:   {"X-Custom", "custom hidden"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			far := newCounted(t)
			s := remote("far", far.URL)
			s.Headers = map[string]string{"x-custom": "custom ${{ secrets.T }}"}
			s.Auth = manifest.Auth{Type: kind, Values: secret}
			c := open(t, func(cfg *mcpclient.Config) { cfg.Resolve = secretsOf(map[string]string{"T": "hidden"}) }, s)
			discover(t, c)
			call(t, c, "hello", "{}")
			far.mu.Lock()
			defer far.mu.Unlock()
			if far.headers.Get(want[0]) != want[1] || far.headers.Get("X-Custom") != "custom hidden" {
				t.Errorf("%v", far.headers)
			}
			if first := far.accepts[0]; first != "application/json, text/event-stream, */*" {
				t.Errorf("Accept: %s", first)
			}
		})
	}
}

func TestHTTP_NoCredentialsToAnotherHost(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer far.Close()
	s := remote("far", far.URL)
	s.Auth = manifest.Auth{Type: manifest.AuthBearer, Values: map[string]string{"token": "x"}}
	c := open(t, nil, s)
	if warnings := c.Discover(t.Context()); len(warnings) != 1 || reached.Load() {
		t.Errorf("%q, reached: %v", warnings, reached.Load())
	}
}

func TestHTTP_RefusedCredentialsAreSaid(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	defer far.Close()
	c := open(t, nil, remote("far", far.URL))
	warnings := c.Discover(t.Context())
	if len(warnings) != 1 || !strings.Contains(warnings[0], "it refuses the credentials: 401 Unauthorized") || asked.Load() != 1 {
		t.Errorf("%q after %d requests", warnings, asked.Load())
	}
}

func TestHTTP_HealthCheckShowsInTheStatus(t *testing.T) {
	t.Parallel()
	far := newCounted(t)
	s := remote("far", far.URL)
	s.HealthCheck = manifest.HealthCheck{Enabled: true, Endpoint: "/health", Interval: 20 * time.Millisecond, Timeout: time.Second}
	c := open(t, nil, s)
	discover(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	far.down.Store(true)
	eventually(t, "the server is in error", func() bool {
		s := c.Servers()[0]
		return s.Status == mcpclient.StatusError && strings.Contains(s.LastError, "503")
	})
	far.down.Store(false)
	eventually(t, "it is well again", func() bool { return c.Servers()[0].LastError == "" })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestHTTP_AbsurdMessageIsRefused(t *testing.T) {
	t.Parallel()
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		piece := []byte(strings.Repeat("x", 1<<20))
		_, err := w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":"`))
		for err == nil {
			_, err = w.Write(piece)
		}
	}))
	defer far.Close()
	c := open(t, quick(mcpclient.Limits{Message: 4 << 20}), remote("far", far.URL))
	if warnings := c.Discover(t.Context()); len(warnings) != 1 || !strings.Contains(warnings[0], "too large") {
		t.Errorf("%q", warnings)
	}
}

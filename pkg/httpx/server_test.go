package httpx

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
)

func TestPeerAddr_BelievesTrustedProxiesOnly(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, tt := range map[string]struct {
		remote  string
		forward []string
		trusted []netip.Prefix
		want    string
	}{
		"direct":              {"192.0.2.1:99", nil, trusted, "192.0.2.1"},
		"forged":              {"192.0.2.1:99", []string{"198.51.100.7"}, trusted, "192.0.2.1"},
		"nobody trusted":      {"10.0.0.1:99", []string{"198.51.100.7"}, nil, "10.0.0.1"},
		"one proxy":           {"10.0.0.1:99", []string{"198.51.100.7"}, trusted, "198.51.100.7"},
		"two proxies":         {"10.0.0.1:99", []string{"198.51.100.7, 10.0.0.2"}, trusted, "198.51.100.7"},
		"two headers":         {"10.0.0.1:99", []string{"198.51.100.7", "10.0.0.2"}, trusted, "198.51.100.7"},
		"forged left part":    {"10.0.0.1:99", []string{"1.2.3.4, 198.51.100.7"}, trusted, "198.51.100.7"},
		"all trusted":         {"10.0.0.1:99", []string{"10.0.0.3, 10.0.0.2"}, trusted, "10.0.0.3"},
		"nonsense":            {"10.0.0.1:99", []string{"198.51.100.7, <script>"}, trusted, "10.0.0.1"},
		"no header":           {"10.0.0.1:99", nil, trusted, "10.0.0.1"},
		"v6":                  {"[fd00::1]:99", []string{"2001:db8::1"}, trusted, "2001:db8::1"},
		"v4 in v6":            {"[::ffff:10.0.0.1]:99", []string{"198.51.100.7"}, trusted, "198.51.100.7"},
		"no port, no address": {"@", []string{"198.51.100.7"}, trusted, "@"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = tt.remote
		for _, f := range tt.forward {
			r.Header.Add("X-Forwarded-For", f)
		}
		if got := PeerAddr(r, tt.trusted); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestPeerNetwork_IsTheShareOfOneCustomer(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:99": "192.0.2.1", "[2001:db8::1]:99": "2001:db8::/64", "[2001:db8::ffff:1]:99": "2001:db8::/64",
		"[2001:db8:0:1::1]:99": "2001:db8:0:1::/64", "[fe80::1%eth0]:99": "fe80::/64", "[::ffff:192.0.2.1]:99": "192.0.2.1", "@": "@",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		if got := PeerNetwork(r, nil); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}

// served runs f against a server for h over a connection made of memory.
func served(t *testing.T, h http.Handler, f func(conn net.Conn)) {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := NewHTTPServer(h, zerolog.Nop())
	go func() { _ = srv.Serve(l) }()
	client, server := net.Pipe()
	l.conns <- server
	f(client)
	client.Close()
	if err := srv.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestServer_SlowHeadersAndIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		send string
		want time.Duration
	}{
		"nothing":      {"", readHeaderTimeout},
		"half headers": {"GET / HTTP/1.1\r\nHost: x\r\n", readHeaderTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			served(t, http.NotFoundHandler(), func(conn net.Conn) {
				begin := time.Now()
				if _, err := io.WriteString(conn, tt.send); err != nil {
					t.Fatal(err)
				}
				_, _ = io.ReadAll(conn)
				if took := time.Since(begin); took != tt.want {
					t.Errorf("%s: closed after %v, want %v", name, took, tt.want)
				}
			})
		})
	}
}

func TestReadBody_EndsASlowBodyAndLeavesNoDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		e := NewEcho(Config{OnError: func(c echo.Context, err error) { _ = c.NoContent(fault.KindOf(err).HTTPStatus()) }})
		e.POST("/", func(c echo.Context) error {
			body, err := ReadBody(c, 1000)
			if err == nil {
				// A handler that takes long after its body was read.
				timer := time.NewTimer(time.Hour)
				defer timer.Stop()
				select {
				case <-timer.C:
				case <-c.Request().Context().Done():
					err = errors.New("the request was cancelled")
				}
				body.Release()
			}
			result <- err
			return err
		})
		served(t, e, func(conn net.Conn) {
			begin := time.Now()
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
			if err := <-result; fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "too slowly") {
				t.Errorf("slow body: %v", err)
			}
			if took := time.Since(begin); took != bodyGrace {
				t.Errorf("held for %v, want %v", took, bodyGrace)
			}
		})
		served(t, e, func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
			if err := <-result; err != nil {
				t.Errorf("after a whole body: %v", err)
			}
		})
	})
}

func TestReadBody_TellsACutBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		e := NewEcho(Config{})
		e.POST("/", func(c echo.Context) error {
			_, err := ReadBody(c, 1000)
			result <- err
			return err
		})
		served(t, e, func(conn net.Conn) {
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
			conn.Close()
			if err := <-result; fault.KindOf(err) != fault.Canceled {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestReply_DoesNotWaitForABodyThatNobodyReads(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path, length string
		want         time.Duration
	}{
		"JSON":               {"/json", "100", leftoverTimeout},
		"stream":             {"/stream", "100", leftoverTimeout},
		"too large for Bind": {"/bind", "2000", 0},
		"far too large":      {"/json", "200000000", leftoverTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := NewEcho(Config{MaxBody: MaxFormationBody, OnError: func(c echo.Context, err error) {
				_ = Raw(c, fault.KindOf(err).HTTPStatus(), []byte("{}"))
			}})
			e.POST("/json", func(echo.Context) error { return fault.New(fault.Unauthenticated, "", "no key") })
			e.POST("/stream", func(c echo.Context) error { return OpenSSE(c).Comment("hi") })
			e.POST("/bind", func(c echo.Context) error { return Bind(c, 1000, &struct{}{}) })
			served(t, e, func(conn net.Conn) {
				begin := time.Now()
				_, _ = io.WriteString(conn, "POST "+tt.path+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+tt.length+"\r\n\r\n")
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if took := time.Since(begin); took != tt.want {
					t.Errorf("%s: answered %d after %v, want %v", name, res.StatusCode, took, tt.want)
				}
			})
		})
	}
}

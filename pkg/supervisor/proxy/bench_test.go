package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/proxy"
)

// benchAnswer is about what a chat answers.
func benchAnswer() string {
	return `{"object":"response","data":{"response":"` + strings.Repeat("word ", 200) + `"}}`
}

// benchFormation answers a chat in JSON, or as a stream of ten frames.
func benchFormation(tb testing.TB) *httptest.Server {
	tb.Helper()
	text := benchAnswer()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("Accept") != "text/event-stream" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 10 {
			fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	tb.Cleanup(up.Close)
	return up
}

func benchProxy(tb testing.TB, addr string) *httptest.Server {
	tb.Helper()
	p := proxy.New(proxy.Config{Log: zerolog.Nop(), Version: "1", Target: func(context.Context, string) (proxy.Target, error) {
		return proxy.Target{Addr: addr}, nil
	}})
	e := httpx.NewEcho(httpx.Config{Log: zerolog.Nop(), OnError: func(c echo.Context, err error) { _ = c.String(500, err.Error()) }})
	p.Mount(e)
	front := httptest.NewServer(e)
	tb.Cleanup(func() { front.Close(); p.Close() })
	return front
}

// ask sends one request over a kept connection: a client as cheap as can be, so
// that what is measured is the way and not the traveller.
func ask(tb testing.TB, conn net.Conn, r *bufio.Reader, request []byte) {
	if _, err := conn.Write(request); err != nil {
		tb.Fatal(err)
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		tb.Fatal(res.StatusCode, err)
	}
}

func benchmark(b *testing.B, accept string) {
	up := benchFormation(b)
	front := benchProxy(b, up.Listener.Addr().String())
	body := `{"message":"hello, how are you today?","agent_id":"poet"}`
	for _, way := range []struct{ name, addr, path string }{
		{"direct", up.Listener.Addr().String(), "/v1/chat"}, {"proxied", front.Listener.Addr().String(), "/api/hello/v1/chat"},
	} {
		request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nX-SVC-Client-Key: fmc_0123456789\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", way.path, accept, len(body), body)
		dial := func(b *testing.B) (net.Conn, *bufio.Reader) {
			conn, err := net.Dial("tcp", way.addr)
			if err != nil {
				b.Fatal(err)
			}
			return conn, bufio.NewReader(conn)
		}
		b.Run(way.name+"/1", func(b *testing.B) {
			conn, r := dial(b)
			defer conn.Close()
			b.ReportAllocs()
			for b.Loop() {
				ask(b, conn, r, request)
			}
		})
		b.Run(way.name+"/16", func(b *testing.B) {
			b.SetParallelism(8) // times two processors
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				conn, r := dial(b)
				defer conn.Close()
				for pb.Next() {
					ask(b, conn, r, request)
				}
			})
		})
	}
}

func BenchmarkChatJSON(b *testing.B)   { benchmark(b, "application/json") }
func BenchmarkChatStream(b *testing.B) { benchmark(b, "text/event-stream") }

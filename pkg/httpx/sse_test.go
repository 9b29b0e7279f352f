package httpx

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
)

// recorder counts writes and flushes.
type recorder struct {
	*httptest.ResponseRecorder
	writes, flushes int
}

func (r *recorder) Write(p []byte) (int, error) { r.writes++; return r.ResponseRecorder.Write(p) }
func (r *recorder) Flush()                      { r.flushes++ }

func newContext(w http.ResponseWriter) echo.Context {
	return echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), w)
}

func TestSSE_FramesAreExactAndSafe(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		event, id string
		data      []string
		want      string
	}{
		"unnamed":     {"", "", []string{`{"a":1}`}, "data: {\"a\":1}\n\n"},
		"with id":     {"", "7", []string{`{"a":1}`}, "id: 7\ndata: {\"a\":1}\n\n"},
		"named":       {"done", "8", []string{`{"finished":true}`}, "id: 8\nevent: done\ndata: {\"finished\":true}\n\n"},
		"parts":       {"", "", []string{`{"token":`, `{}`, `}`}, "data: {\"token\":{}}\n\n"},
		"empty":       {"ping", "", nil, "event: ping\ndata: \n\n"},
		"line breaks": {"", "", []string{"a\nb\r\nc\rd\n"}, "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		"forgery":     {"x\ndata: y", "1\r\nevent: z", []string{"a"}, "id: 1event: z\nevent: xdata: y\ndata: a\n\n"},
	} {
		rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
		s := OpenSSE(newContext(rec))
		parts := make([][]byte, len(tt.data))
		for i := range tt.data {
			parts[i] = []byte(tt.data[i])
		}
		if err := s.FrameNoFlush(tt.event, tt.id, parts...); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, rec.Body.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestSSE_ABatchIsOneWriteAndOneFlush(t *testing.T) {
	t.Parallel()
	rec := &recorder{ResponseRecorder: httptest.NewRecorder()}
	s, err := StartSSE(newContext(rec))
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache"}, "Connection": {"keep-alive"}, "X-Accel-Buffering": {"no"},
	}
	if diff := cmp.Diff(want, rec.Header()); diff != "" || rec.flushes != 1 || rec.writes != 0 {
		t.Errorf("start: %d writes, %d flushes, headers %s", rec.writes, rec.flushes, diff)
	}
	_ = s.CommentNoFlush("keepalive")
	for range 100 {
		_ = s.FrameNoFlush("", "1", []byte("{}"))
	}
	if !s.Pending() || rec.writes != 0 {
		t.Errorf("%d writes before the flush", rec.writes)
	}
	if err := s.Flush(); err != nil || rec.writes != 1 || rec.flushes != 2 || s.Pending() {
		t.Errorf("batch: %v, %d writes, %d flushes", err, rec.writes, rec.flushes)
	}
	if err := s.Flush(); err != nil || rec.writes != 1 {
		t.Errorf("an empty batch was written: %v", err)
	}
	if !strings.HasPrefix(rec.Body.String(), ": keepalive\n\nid: 1\ndata: {}\n\n") {
		t.Errorf("body begins %.60q", rec.Body)
	}
}

// pipeListener hands out one connection made of memory, whose deadlines follow
// the test's clock.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestSSE_AStuckClientLosesItsStream(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]int{"at once": 0, "in the headers": 20, "in the frames": 5000} {
		t.Run(name, func(t *testing.T) { t.Parallel(); stuckClient(t, read) })
	}
}

// stuckClient reads some bytes of an endless stream and then nothing.
func stuckClient(t *testing.T, read int) {
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		e := NewEcho(Config{Log: zerolog.Nop()})
		e.GET("/", func(c echo.Context) error {
			s, err := StartSSE(c)
			for err == nil {
				err = s.Frame("", "", []byte(strings.Repeat("x", 1000)))
			}
			if s != nil && !errors.Is(s.Frame("", "", nil), err) {
				t.Errorf("after %v another frame went through", err)
			}
			result <- err
			return nil
		})
		l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
		srv := NewHTTPServer(e, zerolog.Nop())
		go func() { _ = srv.Serve(l) }()
		client, server := net.Pipe()
		l.conns <- server
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := io.ReadFull(client, make([]byte, read)); err != nil {
			t.Fatal(err)
		}
		// From here on the client reads nothing.
		if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took != writeTimeout {
			t.Errorf("the handler was held for %v, want %v", took, writeTimeout)
		}
		client.Close()
		if err := srv.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

package formation

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A request that has been read is not yet one that will be answered: between
// the two the server looks whether it is shutting down.
func TestNewConns_AreHeldUntilTheirHandlerRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"a request":           {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusTeapot},
		"one without handler": {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusOK},
		"a bad one":           {"no request at all\r\n\r\n", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conns := newNewConns()
			server := &http.Server{
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
			}
			conns.attach(server)
			waited := make(chan struct{})
			known := make(chan struct{})
			track := server.ConnState
			server.ConnState = func(c net.Conn, state http.ConnState) {
				track(c, state)
				switch state {
				case http.StateNew:
					close(known)
				case http.StateActive:
					select {
					case <-waited:
						t.Error("the wait ended before the server looked whether it ends")
					case <-time.After(30 * time.Millisecond):
					}
				default:
				}
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(l) }()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			<-known
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			shut := make(chan error, 1)
			go func() {
				conns.wait(ctx)
				close(waited)
				shut <- server.Shutdown(ctx)
			}()
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal("no answer: ", err)
			}
			_ = r.Body.Close()
			if r.StatusCode != c.status {
				t.Errorf("status %d", r.StatusCode)
			}
			if err := <-shut; err != nil {
				t.Error(err)
			}
		})
	}
}

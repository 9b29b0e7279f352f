package supervisor

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// Between the accepting of a connection and the server's word of it there is a
// moment in which nobody counts it.
func TestFront_ADrainWaitsForAConnectionThatIsJustAccepted(t *testing.T) {
	t.Parallel()
	f := newFront(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}), zerolog.Nop())
	accepted, drained := make(chan struct{}), make(chan bool, 1)
	note := f.srv.ConnState
	f.srv.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			close(accepted)
			select {
			case all := <-drained:
				t.Error("the drain ended without the connection")
				drained <- all
			case <-time.After(lameDuck + 300*time.Millisecond):
			}
		}
		note(c, state)
	}
	d, err := openDoor(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	if err := f.serve(d, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", d.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-accepted
	go func() { drained <- f.drain(t.Context()) }()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal("no answer: ", err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusTeapot || !r.Close {
		t.Errorf("status %d, closing %v", r.StatusCode, r.Close)
	}
	if !<-drained {
		t.Error("not all requests were answered")
	}
	f.close(t.Context())
}

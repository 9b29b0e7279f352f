package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/httpx"
)

// lameDuck is how long a front that ends still takes requests on connections
// that it has: clients with one at hand need to learn that it ends.
const lameDuck = time.Second

// front serves the management API's connections and can end without cutting one
// that is in use. http.Server.Shutdown alone would close connections on which a
// request is on its way.
type front struct {
	srv    *http.Server
	cancel context.CancelFunc // ends the requests that do not end by themselves
	failed chan error         // of Serve, unless the front was ended
	wg     sync.WaitGroup

	ending atomic.Bool // answers close their connections

	mu        sync.Mutex // guards what follows
	listeners []net.Listener
	busy      map[net.Conn]struct{} // that have not sent a request yet, or wait for its answer
	quiet     chan struct{}         // closed when busy is empty, replaced when it is not
}

// newFront makes the server of handler. Requests end with ctx, too.
func newFront(ctx context.Context, handler http.Handler, log zerolog.Logger) *front {
	requests, cancel := context.WithCancel(ctx)
	f := &front{cancel: cancel, failed: make(chan error, 2), busy: make(map[net.Conn]struct{}), quiet: make(chan struct{})}
	close(f.quiet)
	f.srv = httpx.NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.ending.Load() {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	}), log)
	f.srv.BaseContext = func(net.Listener) context.Context { return requests }
	f.srv.ConnState = f.note
	return f
}

// serve accepts on the door until the front ends; with a TLS configuration it
// speaks TLS.
func (f *front) serve(d *door, conf *tls.Config) error {
	l, err := d.listen()
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.listeners = append(f.listeners, l)
	f.mu.Unlock()
	f.wg.Go(func() {
		var err error
		if conf == nil {
			err = f.srv.Serve(l)
		} else {
			f.srv.TLSConfig = conf
			err = f.srv.ServeTLS(l, "", "")
		}
		if !f.ending.Load() && !errors.Is(err, http.ErrServerClosed) {
			f.failed <- err
		}
	})
	return nil
}

// note keeps count of the connections in use.
func (f *front) note(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.busy)
	switch state {
	case http.StateNew, http.StateActive:
		f.busy[c] = struct{}{}
	case http.StateIdle, http.StateHijacked, http.StateClosed:
		delete(f.busy, c)
	}
	switch {
	case before == 0 && len(f.busy) > 0:
		f.quiet = make(chan struct{})
	case before > 0 && len(f.busy) == 0:
		close(f.quiet)
	}
}

// drain stops accepting, without closing the door, and returns when no
// connection is in use and clients have had the time to notice, or when ctx
// ends. It tells whether all requests are answered.
func (f *front) drain(ctx context.Context) bool {
	f.ending.Store(true)
	f.mu.Lock()
	for _, l := range f.listeners {
		_ = l.Close()
	}
	f.listeners = nil
	f.mu.Unlock()
	f.wg.Wait() // a connection that is just being accepted is noted then
	noticed := time.NewTimer(lameDuck)
	defer noticed.Stop()
	select {
	case <-noticed.C:
	case <-ctx.Done():
	}
	for {
		f.mu.Lock()
		quiet, n := f.quiet, len(f.busy)
		f.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return false
		}
	}
}

// close ends what is left: requests are told to end and have httpGrace for it.
func (f *front) close(ctx context.Context) {
	f.ending.Store(true)
	f.cancel()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpGrace)
	defer cancel()
	if f.srv.Shutdown(ctx) != nil {
		_ = f.srv.Close()
	}
	f.mu.Lock()
	for _, l := range f.listeners {
		_ = l.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

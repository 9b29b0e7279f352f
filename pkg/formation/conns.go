package formation

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// newConns knows the connections that have been accepted and whose first
// request has not come to its handler. It is asked about every change of every
// connection, so the common one, of a connection that it does not hold, costs
// no lock.
type newConns struct {
	held atomic.Int64

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]struct{}
	none  chan struct{} // closed when conns became empty; nil unless somebody waits
}

func newNewConns() *newConns { return &newConns{conns: make(map[net.Conn]struct{})} }

// connKey is the context key of a request's connection.
type connKey struct{}

// attach makes the server tell n of its connections.
func (n *newConns) attach(server *http.Server) {
	server.ConnState = n.track
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
			n.spoke(c)
		}
		next.ServeHTTP(w, r)
	})
}

// track is http.Server.ConnState. An active connection is held on: the server
// looks once more whether it ends before it calls the handler, and would close
// the connection without an answer. One that turns idle or ends without the
// handler was answered by the server itself (`OPTIONS *`, a bad request).
func (n *newConns) track(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		n.mu.Lock()
		n.conns[c] = struct{}{}
		n.held.Store(int64(len(n.conns)))
		n.mu.Unlock()
	case http.StateIdle, http.StateHijacked, http.StateClosed:
		n.spoke(c)
	case http.StateActive:
	}
}

// spoke lets go of a connection.
func (n *newConns) spoke(c net.Conn) {
	if n.held.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
	n.held.Store(int64(len(n.conns)))
	if len(n.conns) == 0 && n.none != nil {
		close(n.none)
		n.none = nil
	}
}

// wait returns when there is none, or ctx has ended.
func (n *newConns) wait(ctx context.Context) {
	n.mu.Lock()
	if len(n.conns) == 0 {
		n.mu.Unlock()
		return
	}
	if n.none == nil {
		n.none = make(chan struct{})
	}
	none := n.none
	n.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

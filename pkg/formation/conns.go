package formation

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// newConns knows the connections that have been accepted and have not sent
// anything yet. It is asked about every change of every connection, so the
// common one, of a connection that it does not hold, costs no lock.
type newConns struct {
	held atomic.Int64

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]struct{}
	none  chan struct{} // closed when conns became empty; nil unless somebody waits
}

func newNewConns() *newConns { return &newConns{conns: make(map[net.Conn]struct{})} }

// track is http.Server.ConnState.
func (n *newConns) track(c net.Conn, state http.ConnState) {
	if state != http.StateNew && n.held.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if state == http.StateNew {
		n.conns[c] = struct{}{}
	} else {
		delete(n.conns, c)
	}
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

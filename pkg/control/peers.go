package control

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

// peers counts the control connections of a child and tells when it has had
// none for too long: its supervisor is gone.
type peers struct {
	gap   time.Duration // how long to be without one after the first; 0 is for ever
	alone chan struct{} // closed once
	begun func()        // called once, before the first connection is served; may be nil
	once  sync.Once     // guards begun

	mu    sync.Mutex // guards what follows
	count int
	timer *time.Timer // nil while it need not run
	done  bool
}

var _ stats.Handler = (*peers)(nil)

func newPeers(gap time.Duration, begun func()) *peers {
	p := &peers{gap: gap, begun: begun, alone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait(firstPeerTimeout)
	return p
}

// wait starts the clock; mu is held.
func (p *peers) wait(d time.Duration) {
	if d <= 0 || p.done {
		return
	}
	p.timer = time.AfterFunc(d, p.elapsed)
}

func (p *peers) elapsed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count > 0 || p.done {
		return // a peer came while the timer fired
	}
	p.done = true
	close(p.alone)
}

// stop ends the counting; alone stays as it is.
func (p *peers) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	p.rest()
}

// rest stops the clock; mu is held.
func (p *peers) rest() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// HandleConn implements stats.Handler.
func (p *peers) HandleConn(_ context.Context, s stats.ConnStats) {
	if p.begun != nil {
		p.once.Do(p.begun)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		p.count++
		p.rest()
	case *stats.ConnEnd:
		p.count--
		if p.count == 0 {
			p.wait(p.gap)
		}
	}
}

// TagConn implements stats.Handler.
func (p *peers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (p *peers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (p *peers) HandleRPC(context.Context, stats.RPCStats) {}

package process

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/control"
)

// pulse judges a heartbeat by when it last moved. It has no clock of its own.
type pulse struct {
	bound time.Duration // without a move for this long, it is dead
	beat  uint64
	moved time.Time
}

// see takes a reading.
func (p *pulse) see(beat uint64, now time.Time) {
	if beat != p.beat {
		p.beat, p.moved = beat, now
	}
}

// stood takes off the time by which a look came later than it was meant to: the
// supervisor was stopped, and with it perhaps the whole machine, so that the
// child could not move either.
func (p *pulse) stood(late time.Duration) {
	if late > 0 {
		p.moved = p.moved.Add(late)
	}
}

// dead tells whether the bound has passed. Ask after a reading, not instead of
// one: a supervisor that was itself stopped for a while has seen nothing.
func (p *pulse) dead(now time.Time) bool { return now.Sub(p.moved) >= p.bound }

// next is how long to wait for the next reading: the interval, or less when the
// bound comes before.
func (p *pulse) next(now time.Time, interval time.Duration) time.Duration {
	return max(min(interval, p.bound-now.Sub(p.moved)), time.Millisecond)
}

// watchHealth asks for the child's health until ctx ends or its heartbeat is
// gone; then it closes hung. It returns the function that ends it and waits.
func (m *Manager) watchHealth(ctx context.Context, c *child, hung chan<- struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ask := func(ctx context.Context) (control.Health, error) { return askHealth(ctx, c.conn, m.cfg.HealthTimeout) }
		if m.pulseLost(ctx, ask, func(ready, answered bool) { m.noteHealth(c, ready, answered) }) {
			close(hung)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// pulseLost asks for health and tells note what it hears. It returns true when the
// heartbeat is gone, false when ctx ended.
func (m *Manager) pulseLost(ctx context.Context, ask func(context.Context) (control.Health, error), note func(ready, answered bool)) bool {
	interval, timeout := m.cfg.HealthInterval, m.cfg.HealthTimeout
	p := pulse{bound: interval + timeout, moved: m.now()}
	due := p.moved
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		}
		asked := m.now()
		p.stood(asked.Sub(due))
		h, err := ask(ctx)
		if ctx.Err() != nil {
			return false
		}
		now := m.now()
		took := now.Sub(asked)
		if took < 2*timeout {
			took -= timeout // which an answer may take; after a standstill there is time for another
		}
		p.stood(took)
		if err == nil {
			p.see(h.Heartbeat, now)
		}
		if p.dead(now) {
			return true
		}
		note(err == nil && h.Ready, err == nil)
		wait := p.next(now, interval)
		due = now.Add(wait)
		timer.Reset(wait)
	}
}

func askHealth(ctx context.Context, f control.Formation, timeout time.Duration) (control.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f.Health(ctx)
}

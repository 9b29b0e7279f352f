package process

import (
	"context"
	"errors"

	"github.com/agentformation/service/pkg/control"
)

// aside is a child that ends beside the serving one.
type aside struct {
	done   chan struct{}
	cancel context.CancelCauseFunc // leaves the child as it is
}

// setAside ends c in order while another child serves or comes: its streams
// finish. When it is gone, its launch is fenced; tell says that an event tells of
// its end.
func (m *Manager) setAside(ctx context.Context, c *child, tell bool) *aside {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a := &aside{done: make(chan struct{}), cancel: cancel}
	m.mu.Lock()
	m.asides = append(m.asides, a)
	closed := m.closed
	m.mu.Unlock()
	if closed {
		cancel(errDetach)
	}
	go func() {
		defer close(a.done)
		defer cancel(nil)
		r := m.retire(ctx, c, retirement{beside: true})
		m.forgetAside(a)
		if r.left {
			return
		}
		m.log.Info().Str("launch", c.rec.LaunchID).Int("pid", c.rec.PID).Str("exit", r.exit.Reason).
			Msg("a replaced child has ended")
		if tell {
			m.notify(Event{Kind: EventReplaced, Exit: r.exit})
		}
		m.toFence(c)
		m.fenceDead(ctx)
	}()
	return a
}

func (m *Manager) forgetAside(a *aside) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, other := range m.asides {
		if other == a {
			m.asides = append(m.asides[:i], m.asides[i+1:]...)
			return
		}
	}
}

// asideNow returns the children that are ending.
func (m *Manager) asideNow() []*aside {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*aside(nil), m.asides...)
}

// Settled waits until no replaced child is ending any more: until then a child
// may run in the directory of a version that is not the current one. After Close
// it returns at once, and such children may live on.
func (m *Manager) Settled(ctx context.Context) error { return m.awaitAsides(ctx) }

// awaitAsides waits until no child is ending any more.
func (m *Manager) awaitAsides(ctx context.Context) error {
	for _, a := range m.asideNow() {
		select {
		case <-a.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// toFence notes that c has ended while another child serves.
func (m *Manager) toFence(c *child) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfenced = append(m.unfenced, dead{c.rec, c.spec.RunDir})
}

// dead is a launch that has ended and is not fenced yet.
type dead struct {
	rec    record
	runDir string
}

// fenceDead makes the serving child fence the launches that ended beside it, and
// take over what they left open. Without a serving child, or when it does not
// answer, the next one does: their records stay until then. ctx is only for its
// values.
func (m *Manager) fenceDead(ctx context.Context) {
	m.fencing.Lock()
	defer m.fencing.Unlock()
	m.mu.Lock()
	c, list := m.child, m.unfenced
	m.mu.Unlock()
	if c == nil || len(list) == 0 {
		return
	}
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.rec.LaunchID
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchTimeout)
	defer cancel()
	resumed, err := c.conn.Fence(ctx, ids)
	if err != nil {
		if !errors.Is(err, control.ErrNoAnswer) || !c.proc.over() {
			m.log.Error().Err(err).Strs("launches", ids).Msg("dead launches are not fenced yet")
		}
		return
	}
	m.log.Info().Strs("launches", ids).Int("resumed", resumed).Msg("dead launches are fenced")
	m.mu.Lock()
	m.unfenced = m.unfenced[len(list):]
	m.mu.Unlock()
	for _, d := range list {
		m.forget(d.rec, d.runDir)
	}
}

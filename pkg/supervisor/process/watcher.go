package process

import (
	"context"

	"github.com/rs/zerolog"
)

// watcher follows one serving child on a goroutine of its own, until the child
// has ended or stop is called.
type watcher struct {
	c     *child
	ended chan ending // capacity 1: the child has exited, or hung and was killed
	stop  func()      // ends the watching and waits for done
	done  chan struct{}
}

// ending tells how a child ended; nothing of it is left then.
type ending struct {
	exit Exit
	kind EventKind
}

// attend begins to watch c, until ctx ends at the latest.
func (m *Manager) attend(ctx context.Context, c *child) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{c: c, ended: make(chan ending, 1), done: make(chan struct{})}
	w.stop = func() {
		cancel()
		<-w.done
	}
	go func() {
		defer close(w.done)
		m.follow(ctx, w)
	}()
	return w
}

// over returns the ending without waiting for it.
func (w *watcher) over() (ending, bool) {
	select {
	case e := <-w.ended:
		return e, true
	default:
		return ending{}, false
	}
}

// await returns the ending of a child whose process has ended or is about to.
func (m *Manager) await(w *watcher) ending {
	<-w.c.proc.exited
	<-w.done
	if e, over := w.over(); over {
		return e
	}
	return ending{m.ended(w.c, ""), EventExited} // the watching had ended before
}

// endedOf is the channel to select on; nothing comes from a watcher that is nil.
func endedOf(w *watcher) <-chan ending {
	if w == nil {
		return nil
	}
	return w.ended
}

func (m *Manager) follow(ctx context.Context, w *watcher) {
	c, hung := w.c, make(chan struct{})
	stopHealth := m.watchHealth(ctx, c, hung)
	defer stopHealth()
	kind := EventExited
	select {
	case <-ctx.Done():
		return
	case <-c.proc.exited:
	case <-hung:
		kind = EventHung
		m.killFor(c, "hang: no heartbeat for "+(m.cfg.HealthInterval+m.cfg.HealthTimeout).String())
	}
	stopHealth()
	w.ended <- ending{m.ended(c, ""), kind}
}

// killFor kills a child for a reason, which its Exit will carry, and waits for
// the end.
func (m *Manager) killFor(c *child, reason string) {
	c.because(reason)
	if err := c.kill(); err != nil {
		m.log.Error().Err(err).Int("pid", c.proc.pid).Msg("cannot kill a child")
	}
}

// logEnd begins the log record of a child's end.
func (m *Manager) logEnd(c *child, exit Exit) *zerolog.Event {
	return m.log.Error().Int("pid", c.proc.pid).Str("launch", c.rec.LaunchID).Str("exit", exit.Reason).
		Strs("stderr", exit.Stderr)
}

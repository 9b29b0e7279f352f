package process

import (
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/control"
)

// retirement says how a child is ended, and how it went.
type retirement struct {
	closeSocket bool // un-listen the port for every holder
	beside      bool // another child serves: this one only finishes its work

	exit Exit
	left bool // it lives on: the supervisor's end came first
}

// retire ends a serving child in order: drain, stop, and what a child that does
// not obey is owed: SIGTERM when its control does not answer, SIGKILL for its
// whole group when the time is over. It returns when the child is gone, or when
// ctx ends; then the child is left as it is.
func (m *Manager) retire(ctx context.Context, c *child, r retirement) retirement {
	s := c.spec
	if r.closeSocket {
		s.LameDuck = 0 // clients are refused from now on: none needs to learn it first
	}
	limit, cancel := context.WithTimeout(ctx, s.LameDuck+s.DrainTimeout+s.KillTimeout)
	defer cancel()
	clean := m.askToStop(limit, c, s, r)
	if ctx.Err() == nil {
		c.conn.Detach() // the child's farewell waits for open connections
	}
	if !clean && ctx.Err() == nil {
		m.log.Warn().Int("pid", c.proc.pid).Msg("the child does not answer: sending SIGTERM")
		if err := c.proc.signal(syscall.SIGTERM); err != nil {
			m.log.Warn().Err(err).Msg("cannot send SIGTERM to the child")
		}
	}
	if clean { // it has agreed to stop and has nothing to wait for any more
		limit, cancel = context.WithTimeout(limit, s.KillTimeout)
		defer cancel()
	}
	asked, killed := "stopped", "killed: it did not end in time"
	if r.beside {
		asked, killed = replaced, replaced+", "+killed
	}
	select {
	case <-c.proc.exited:
	case <-limit.Done():
		if ctx.Err() != nil {
			m.leave(c)
			r.left = true
			return r
		}
		m.log.Warn().Int("pid", c.proc.pid).Msg("the child did not end in time: killing its process group")
		asked, clean = killed, false
		if err := c.kill(); err != nil {
			m.log.Error().Err(err).Msg("cannot kill the child")
		}
	}
	r.exit = m.ended(c, asked)
	if clean && !r.beside {
		m.forget(c.rec, s.RunDir)
	}
	return r
}

// replaced begins the reason of a child that ended because another one is there.
const replaced = "replaced"

// Replaced tells from the Reason of an Exit that the child was not the serving one
// any more: another one had taken its place.
func Replaced(reason string) bool { return strings.HasPrefix(reason, replaced) }

// askToStop drains and stops the child over control. It returns false when
// control did not answer; a child that answers with an error is told to stop
// all the same.
func (m *Manager) askToStop(ctx context.Context, c *child, s Spec, r retirement) bool {
	if _, err := askHealth(ctx, c.conn, m.cfg.HealthTimeout); err != nil {
		return false
	}
	if r.beside {
		m.pause(ctx, c)
	}
	drain, cancel := context.WithTimeout(ctx, s.LameDuck+s.DrainTimeout+s.KillTimeout/2)
	defer cancel()
	left, err := c.conn.Drain(drain, control.DrainRequest{
		Timeout: s.DrainTimeout, CloseSocket: r.closeSocket, LameDuck: s.LameDuck,
	})
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		m.log.Warn().Err(err).Msg("draining the child ended early")
	} else if left.Unfinished > 0 {
		m.log.Info().Int("turns", left.Unfinished).Msg("turns were left open; they go on at the next start")
	}
	stop, cancel := context.WithTimeout(ctx, s.KillTimeout)
	defer cancel()
	if err := c.conn.Stop(stop); err != nil {
		m.log.Warn().Err(err).Msg("the child did not agree to stop")
		return false
	}
	return true
}

// switchTimeout bounds the calls by which two children change places.
const switchTimeout = 10 * time.Second

// pause makes c stop accepting. One that does not answer is found by its watcher;
// one that hangs accepts nothing either.
func (m *Manager) pause(ctx context.Context, c *child) {
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	if err := c.conn.Pause(ctx); err != nil {
		m.log.Warn().Err(err).Str("launch", c.rec.LaunchID).Msg("the child did not pause")
	}
}

// forget removes the record of a launch that has nothing left to fence.
func (m *Manager) forget(r record, runDir string) {
	if err := r.forget(runDir); err != nil {
		m.log.Warn().Err(err).Str("launch", r.LaunchID).Msg("cannot remove the record of a launch that has ended")
	}
}

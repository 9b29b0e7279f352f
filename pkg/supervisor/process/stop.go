package process

import (
	"context"
	"syscall"

	"github.com/agentformation/service/pkg/control"
)

// retire ends a serving child in order: drain, stop, and what a child that does
// not obey is owed: SIGTERM when its control does not answer, SIGKILL for its
// whole group when the time is over. closeSocket un-listens the port for every
// holder. It returns when the child is gone.
func (m *Manager) retire(ctx context.Context, c *child, closeSocket bool) Exit {
	s := c.spec
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.LameDuck+s.DrainTimeout+s.KillTimeout)
	defer cancel()
	clean := m.askToStop(ctx, c, closeSocket)
	c.conn.Detach() // the child's farewell waits for open connections
	if !clean {
		m.log.Warn().Int("pid", c.proc.pid).Msg("the child does not answer: sending SIGTERM")
		if err := c.proc.signal(syscall.SIGTERM); err != nil {
			m.log.Warn().Err(err).Msg("cannot send SIGTERM to the child")
		}
	}
	if clean { // it has agreed to stop and has nothing to wait for any more
		ctx, cancel = context.WithTimeout(ctx, s.KillTimeout)
		defer cancel()
	}
	asked := "stopped"
	select {
	case <-c.proc.exited:
	case <-ctx.Done():
		m.log.Warn().Int("pid", c.proc.pid).Msg("the child did not end in time: killing its process group")
		asked, clean = "killed: it did not end in time", false
		if err := c.kill(); err != nil {
			m.log.Error().Err(err).Msg("cannot kill the child")
		}
	}
	exit := exitOf(c, asked, m.now())
	c.release()
	if clean {
		if err := c.rec.forget(s.RunDir); err != nil {
			m.log.Warn().Err(err).Msg("cannot remove the record of a stopped child")
		}
	}
	return exit
}

// askToStop drains and stops the child over control. It returns false when
// control did not answer; a child that answers with an error is told to stop
// all the same.
func (m *Manager) askToStop(ctx context.Context, c *child, closeSocket bool) bool {
	if _, err := askHealth(ctx, c.conn, m.cfg.HealthTimeout); err != nil {
		return false
	}
	s := c.spec
	drain, cancel := context.WithTimeout(ctx, s.LameDuck+s.DrainTimeout+s.KillTimeout/2)
	defer cancel()
	left, err := c.conn.Drain(drain, control.DrainRequest{
		Timeout: s.DrainTimeout, CloseSocket: closeSocket, LameDuck: s.LameDuck,
	})
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

package process

import (
	"fmt"
	"syscall"
	"time"
)

// ended settles a child whose process has exited: it frees what belonged to it
// and tells how it ended. It comes once in a child's life. asked is the reason
// when it was our doing ("" when it was not).
func (m *Manager) ended(c *child, asked string) Exit {
	exit := exitOf(c, asked, m.now())
	c.release()
	m.drop(c.rec.LaunchID)
	return exit
}

// exitOf describes the end of c, whose process has exited.
func exitOf(c *child, asked string, now time.Time) Exit {
	e := Exit{Time: now, Code: -1, Stderr: c.stderr(), Launch: c.rec.LaunchID}
	if !c.serving.IsZero() {
		e.Served = now.Sub(c.serving)
	}
	status, limit := c.proc.status, c.unguard()
	switch {
	case !c.proc.known:
		e.Reason = "exit status unknown (adopted)"
	case status.Signaled():
		e.Signal = status.Signal().String()
		e.Reason = e.plain()
		if status.Signal() == syscall.SIGKILL && oomKills() > c.oomBefore {
			e.Reason = "killed, likely out of memory"
		}
	default:
		e.Code = status.ExitStatus()
		e.Reason = e.plain()
	}
	why := c.why.Load()
	switch {
	case asked != "":
		e.Reason = asked
	case why != nil:
		e.Reason = *why
	case limit != "" && e.Code != 0: // a limit can also end a tool without harm to the child
		e.Reason = limit
	}
	return e
}

// plain is the reason of an exit about which no more is known than its status.
func (e Exit) plain() string {
	if e.Signal != "" {
		return "signal: " + e.Signal
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// explained tells whether the reason says more than the status.
func (e Exit) explained() bool { return e.Reason != e.plain() }

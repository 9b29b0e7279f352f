package process

import (
	"fmt"
	"syscall"
	"time"
)

// exitOf describes the end of c, whose process has exited. asked is the reason
// when it was our doing ("" when it was not).
func exitOf(c *child, asked string, now time.Time) Exit {
	e := Exit{Time: now, Code: -1, Stderr: c.stderr()}
	if !c.serving.IsZero() {
		e.Served = now.Sub(c.serving)
	}
	switch status := c.proc.status; {
	case !c.proc.known:
		e.Reason = "exit status unknown (adopted)"
	case status.Signaled():
		e.Signal = status.Signal().String()
		e.Reason = "signal: " + e.Signal
		if status.Signal() == syscall.SIGKILL && oomKills() > c.oomBefore {
			e.Reason = "killed, likely out of memory"
		}
	default:
		e.Code = status.ExitStatus()
		e.Reason = fmt.Sprintf("exit code %d", e.Code)
	}
	if asked != "" {
		e.Reason = asked
	}
	return e
}

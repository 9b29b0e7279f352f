package mcpclient

import (
	"errors"
	"time"

	"github.com/agentformation/service/pkg/formation/rate"
	"github.com/agentformation/service/pkg/manifest"
)

// allowance bounds what a server is asked by agents, for all users together: each
// try of a call, and what else a tool reads there. What keeps a connection going
// is not counted, nor are the lists of its tools. It counts since the process
// began.
type allowance struct{ limiter *rate.Limiter }

func newAllowance(of manifest.RateLimiting) allowance {
	return allowance{rate.New(rate.Limits(of))}
}

// admit counts a try, or refuses it: the call is not sent. To try again at once
// can't help.
func (s *server) admit(tool string) error {
	if s.allowance.limiter == nil {
		return nil
	}
	now := time.Now()
	no, ok := s.allowance.limiter.Take(now)
	if ok {
		return nil
	}
	return notBegun(s.file.ID, errRate,
		"The tool server %q takes %s, and they are used up, so the call of %s was not sent. It may be called again in %d s, at %s.",
		s.file.ID, no.Limit("calls")+" from all users together", tool, no.Seconds(), soonest(now, no)).permanent()
}

// soonest is when a call has room again, as people and models read it.
func soonest(now time.Time, no rate.Refusal) string {
	return now.Add(time.Duration(no.Seconds()) * time.Second).UTC().Format(time.RFC3339)
}

// errRate lies behind a call that its server's limits refuse.
var errRate = errors.New("rate_limiting of the server's file")

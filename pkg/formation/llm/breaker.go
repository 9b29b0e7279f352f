package llm

import (
	"fmt"
	"sync"
	"time"
)

// When a model is not asked for a while. Both bounds must be met: a burst of
// failures that retries survive keeps the circuit closed, an outage opens it.
const (
	breakFailures = 5                // failed attempts in a row
	breakAfter    = 5 * time.Second  // from the first of them to the last
	breakFor      = 15 * time.Second // then one probe decides
)

// breaker is the circuit to one model of one provider. An open one fails calls
// at once, so that the fallback answers without waiting and a provider that
// comes up again is not run over. It is a pure policy over the times it is given.
type breaker struct {
	mu       sync.Mutex // guards the fields that follow
	failures int
	since    time.Time // of the first failure in the row
	until    time.Time // no attempt before; zero while closed
	probing  bool      // the one attempt after until is under way
}

// allow asks to make an attempt at now. A refusal tells how long it lasts. A
// probe is to be reported as one.
func (b *breaker) allow(now time.Time) (probe bool, refusal *CallError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.until.IsZero():
		return false, nil
	case now.Before(b.until):
		return false, b.open(b.until.Sub(now))
	case b.probing:
		return false, b.open(breakFor)
	}
	b.probing = true
	return true, nil
}

func (b *breaker) open(wait time.Duration) *CallError {
	return &CallError{
		Reason: Overloaded, RetryAfter: wait, open: true,
		Detail: fmt.Sprintf("%d attempts in a row failed, so it is left alone for a moment", b.failures),
	}
}

// report tells how an allowed attempt ended.
func (b *breaker) report(now time.Time, probe bool, end attemptEnd) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
	switch end {
	case endedWell:
		b.failures, b.until = 0, time.Time{}
	case endedBadly:
		if b.failures == 0 {
			b.since = now
		}
		b.failures++
		long := b.failures >= breakFailures && now.Sub(b.since) >= breakAfter
		if probe || b.until.IsZero() && long {
			b.until = now.Add(breakFor)
		}
	case endedUnknown:
	}
}

// attemptEnd is what an attempt tells about the health of its provider. One
// that the caller left, or that the budget forbade, tells nothing.
type attemptEnd uint8

const (
	endedUnknown attemptEnd = iota
	endedWell
	endedBadly
)

// endOf classifies the reason of a failure. A provider that limits the rate or
// refuses a request is well.
func endOf(r Reason) attemptEnd {
	switch r {
	case Broken, Overloaded, TimedOut:
		return endedBadly
	case Throttled, Exhausted, Rejected, Missing, Refused:
		return endedWell
	case Garbled:
		return endedUnknown
	}
	return endedUnknown
}

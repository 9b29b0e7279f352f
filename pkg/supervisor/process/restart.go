package process

import (
	"slices"
	"time"
)

// Policy decides whether and when a child that ended is replaced. It is a pure
// value: no clock, no randomness of its own.
type Policy struct {
	Max      int           // failures within Window that end the trying
	Window   time.Duration //
	Base     time.Duration // the delay before the second restart; it doubles from there
	MaxDelay time.Duration
	// Healthy is how long a child must have served for earlier failures to be
	// forgotten.
	Healthy time.Duration
}

// DefaultPolicy is the policy of reference server.md 6.1.
func DefaultPolicy() Policy {
	return Policy{
		Max: 10, Window: time.Minute, Base: 100 * time.Millisecond,
		MaxDelay: 30 * time.Second, Healthy: 10 * time.Second,
	}
}

// withDefaults replaces zero fields by those of DefaultPolicy.
func (p Policy) withDefaults() Policy {
	d := DefaultPolicy()
	if p.Max <= 0 {
		p.Max = d.Max
	}
	p.Window = orElse(p.Window, d.Window)
	p.Base = orElse(p.Base, d.Base)
	p.MaxDelay = orElse(p.MaxDelay, d.MaxDelay)
	p.Healthy = orElse(p.Healthy, d.Healthy)
	return p
}

// Next decides after exit, given the exits before it in order of time. The
// first restart comes at once; each further one after a delay that doubles from
// Base to MaxDelay, of which rnd in [0,1) takes up to half away, so that
// children that died together do not return together. giveUp is true at the
// Max-th failure within Window.
func (p Policy) Next(history []Exit, exit Exit, rnd float64) (delay time.Duration, giveUp bool) {
	streak := p.streak(history, exit)
	recent := 1
	for _, e := range streak {
		if exit.Time.Sub(e.Time) < p.Window {
			recent++
		}
	}
	if recent >= p.Max {
		return 0, true
	}
	if len(streak) == 0 {
		return 0, false
	}
	delay = p.Base
	for range len(streak) - 1 {
		if delay >= p.MaxDelay {
			break
		}
		delay *= 2
	}
	delay = min(delay, p.MaxDelay)
	return delay - time.Duration(rnd*float64(delay)/2), false
}

// streak returns the exits before exit that still count: those since the last
// child that had served for Healthy. That child's own exit counts as the first
// of the streak.
func (p Policy) streak(history []Exit, exit Exit) []Exit {
	if exit.Served >= p.Healthy {
		return nil
	}
	for i, e := range slices.Backward(history) {
		if e.Served >= p.Healthy {
			return history[i:]
		}
	}
	return history
}

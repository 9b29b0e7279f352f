// Package rate bounds how often something is done: what an agent is asked, what
// a tool server is called, what callers of the API send.
//
// It promises that no more is let through than a limit says, that who is refused
// is told how long to wait and is let through then if nobody else came, and that
// what it remembers is bounded. Whoever has no limits has no Limiter, and pays
// for none. It starts nothing and reads no clock: the time is given to it. The
// rooms that limit something import it.
package rate

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// Limits bound how often something is done; 0 is no bound.
type Limits struct {
	PerMinute, PerHour, PerDay int
	// Burst is how many may come at once; the room comes back at the lowest of
	// the other rates, without one within a second.
	Burst int
}

// Refusal tells why something has to wait, and how long. The zero value is none.
type Refusal struct {
	Wait time.Duration
	Most int    // the limit that is used up
	Unit string // what it is counted in: minute, hour or day; "" for how many at once
}

// Seconds is how long to wait in whole seconds, at least 1.
func (r Refusal) Seconds() int { return Seconds(r.Wait) }

// Seconds is a time to wait in whole seconds, at least 1.
func Seconds(wait time.Duration) int { return max(1, int(math.Ceil(wait.Seconds()))) }

// Limit is the limit in words: "at most 5 calls per minute".
func (r Refusal) Limit(things string) string {
	if r.Unit == "" {
		return fmt.Sprintf("at most %d %s at once", r.Most, things)
	}
	return fmt.Sprintf("at most %d %s per %s", r.Most, things, r.Unit)
}

// Limiter counts over the last minute, hour and day, and has a bucket for how
// many may come at once. It counts by sixtieths of a period, so that one waits at
// most a sixtieth longer than one must, in a few hundred bytes a period. nil
// limits nothing. It is safe for concurrent use.
type Limiter struct {
	pace pace // size 0: no bucket

	mu      sync.Mutex // guards the fields that follow
	windows []window
	bucket  bucket
	known   bool // what was done in an earlier life is counted
}

// New returns nil when there are no limits.
func New(of Limits) *Limiter {
	l := &Limiter{pace: pace{size: float64(of.Burst), refill: math.Inf(1)}}
	for _, w := range []window{
		{most: of.PerMinute, period: time.Minute, unit: "minute"},
		{most: of.PerHour, period: time.Hour, unit: "hour"},
		{most: of.PerDay, period: 24 * time.Hour, unit: "day"},
	} {
		if w.most > 0 {
			l.windows = append(l.windows, w)
			l.pace.refill = min(l.pace.refill, float64(w.most)/w.period.Seconds())
		}
	}
	if of.Burst <= 0 && len(l.windows) == 0 {
		return nil
	}
	if len(l.windows) == 0 { // nothing but how many at once: in a second
		l.pace.refill = l.pace.size
	}
	return l
}

// Take counts one more; false, and why, when there is no room for it.
func (l *Limiter) Take(now time.Time) (Refusal, bool) {
	if l == nil {
		return Refusal{}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var no Refusal
	for i := range l.windows {
		if d := l.windows[i].wait(now); d > no.Wait {
			no = Refusal{Wait: d, Most: l.windows[i].most, Unit: l.windows[i].unit}
		}
	}
	if l.pace.size > 0 {
		if d := l.pace.wait(&l.bucket, now); d > no.Wait {
			no = Refusal{Wait: d, Most: int(l.pace.size)}
		}
	}
	if no.Wait > 0 {
		return no, false
	}
	l.bucket.tokens--
	for i := range l.windows {
		l.windows[i].add(now, now)
	}
	return Refusal{}, true
}

// Recall counts what was done before this process began. Only the first call has
// something to do; when it fails the next one tries again.
func (l *Limiter) Recall(now time.Time, done func(since time.Time) ([]time.Time, error)) error {
	if l == nil || done == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known || len(l.windows) == 0 {
		return nil
	}
	longest := l.windows[len(l.windows)-1].period
	before, err := done(now.Add(-longest))
	if err != nil {
		return err
	}
	l.known = true
	for i := range l.windows {
		for _, t := range before {
			l.windows[i].add(t, now)
		}
	}
	return nil
}

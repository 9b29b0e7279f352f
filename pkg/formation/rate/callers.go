package rate

import (
	"strings"
	"sync"
	"time"
)

// maxCallers bounds who is remembered. Beyond it who has been silent the longest
// is forgotten.
const maxCallers = 10000

// perMinute makes the pace of so many a minute, burst of them at once; 0 is all.
func perMinute(n, burst int) pace {
	if burst <= 0 {
		burst = n
	}
	return pace{size: float64(burst), refill: float64(n) / 60}
}

// Callers bounds how often each of many callers may come. It is safe for
// concurrent use.
type Callers struct {
	pace pace
	mu   sync.Mutex // guards what follows
	all  recent[bucket]
}

// NewCallers returns nil, which limits nobody, when nothing is let through per
// minute. burst is how many may come at once; 0 is as many as in a minute.
func NewCallers(n, burst int) *Callers {
	if n <= 0 {
		return nil
	}
	c := &Callers{pace: perMinute(n, burst)}
	c.all.init(c.pace.full()) // a full bucket is as good as a new one
	return c
}

// Take counts a caller, and returns 0, or how long it has to wait.
func (c *Callers) Take(name string, now time.Time) time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pace.take(c.all.get(name, now), now)
}

// provenFor is how long it counts that a key was brought from a place.
const provenFor = time.Hour

// Guesses bounds how often wrong keys are tried from a place. Once its share is
// used up, a right key is refused there like a wrong one, since the difference
// would be what a guess is after, unless it came from there before: who is at
// home is not locked out by who guesses beside him. It is safe for concurrent
// use.
type Guesses struct {
	pace pace
	mu   sync.Mutex // guards what follows
	all  recent[guesses]
}

// guesses are those of one place.
type guesses struct {
	wrong  bucket
	proven [2]time.Time // when a key came from there last, by kind
}

// NewGuesses returns nil, which limits nobody, when nothing is let through per
// minute. burst is as in NewCallers.
func NewGuesses(n, burst int) *Guesses {
	if n <= 0 {
		return nil
	}
	g := &Guesses{pace: perMinute(n, burst)}
	g.all.init(max(g.pace.full(), provenFor))
	return g
}

// Wrong counts a wrong key, and returns 0, or how long it is too many.
func (g *Guesses) Wrong(from string, now time.Time) time.Duration {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pace.take(&g.all.get(from, now).wrong, now)
}

// Right returns 0 when a right key may be let in, or how long it has to wait.
// Keys for administrators are known apart from others.
func (g *Guesses) Right(from string, admin bool, now time.Time) time.Duration {
	if g == nil {
		return 0
	}
	kind := 0
	if admin {
		kind = 1
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.all.get(from, now)
	if wait := g.pace.wait(&at.wrong, now); wait > 0 && now.Sub(at.proven[kind]) > provenFor {
		return wait
	}
	at.proven[kind] = now
	return 0
}

// recent holds the values of the names that came of late, as a ring with the
// latest first.
type recent[V any] struct {
	idle   time.Duration // after which a silent name is forgotten
	byName map[string]*entry[V]
	ring   entry[V] // before the first and after the last
}

type entry[V any] struct {
	name         string
	last         time.Time
	before, next *entry[V]
	value        V
}

func (r *recent[V]) init(idle time.Duration) {
	r.idle, r.byName = idle, make(map[string]*entry[V])
	r.ring.before, r.ring.next = &r.ring, &r.ring
}

// get returns the value of a name, a new one when it is not known.
func (r *recent[V]) get(name string, now time.Time) *V {
	e := r.byName[name]
	if e == nil {
		r.forget(now)
		// A name is often a piece of something larger, which must not be kept.
		e = &entry[V]{name: strings.Clone(name)}
		r.byName[e.name] = e
	} else {
		e.before.next, e.next.before = e.next, e.before
	}
	e.before, e.next = &r.ring, r.ring.next
	e.before.next, e.next.before = e, e
	e.last = now
	return &e.value
}

// forget makes room for one.
func (r *recent[V]) forget(now time.Time) {
	for {
		e := r.ring.before
		if e == &r.ring || len(r.byName) < maxCallers && now.Sub(e.last) < r.idle {
			return
		}
		e.before.next, e.next.before = e.next, e.before
		delete(r.byName, e.name)
	}
}

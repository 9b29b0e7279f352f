package rate

import "time"

// parts is how many parts of a period are counted apart, slots how many are
// looked at: the oldest lies partly behind the period.
const (
	parts = 60
	slots = parts + 1
)

// window counts over the last period.
type window struct {
	most   int
	period time.Duration
	unit   string
	counts [slots]int
	latest int64 // the slot that was counted last, since 1970
	sum    int
}

func (w *window) slot(t time.Time) int64 { return t.UnixNano() / int64(w.period/parts) }

// turn forgets what lies behind the period.
func (w *window) turn(now time.Time) {
	at := w.slot(now)
	for i := w.latest + 1; i <= at && i <= w.latest+slots; i++ {
		w.sum -= w.counts[i%slots]
		w.counts[i%slots] = 0
	}
	w.latest = max(w.latest, at)
}

// add counts what happened at t, which may lie back.
func (w *window) add(t, now time.Time) {
	w.turn(now)
	if at := w.slot(t); at > w.latest-slots && at <= w.latest {
		w.counts[at%slots]++
		w.sum++
	}
}

// wait is how long until there is room again; 0 when there is.
func (w *window) wait(now time.Time) time.Duration {
	w.turn(now)
	left := w.sum
	if left < w.most {
		return 0
	}
	for i := w.latest - slots + 1; i <= w.latest; i++ {
		if left -= w.counts[i%slots]; left < w.most {
			return time.Duration((i+slots)*int64(w.period/parts) - now.UnixNano())
		}
	}
	return w.period
}

// pace is a kind of bucket.
type pace struct {
	size   float64
	refill float64 // per second
}

// bucket is one of a kind; the zero value is full.
type bucket struct {
	tokens float64
	filled time.Time // when tokens was right
}

// wait is how long until the bucket holds a token; 0 when it does.
func (p pace) wait(b *bucket, now time.Time) time.Duration {
	switch {
	case b.filled.IsZero():
		b.tokens, b.filled = p.size, now
	case now.After(b.filled):
		b.tokens = min(p.size, b.tokens+now.Sub(b.filled).Seconds()*p.refill)
		b.filled = now
	}
	if b.tokens >= 1 {
		return 0
	}
	return time.Duration((1 - b.tokens) / p.refill * float64(time.Second))
}

// take takes a token, or tells how long to wait for one.
func (p pace) take(b *bucket, now time.Time) time.Duration {
	wait := p.wait(b, now)
	if wait <= 0 {
		b.tokens--
	}
	return wait
}

// full is how long an empty bucket takes to be full again.
func (p pace) full() time.Duration {
	return time.Duration(p.size / p.refill * float64(time.Second))
}

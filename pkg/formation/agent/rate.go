package agent

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

// rate bounds how often an agent is asked by all users together (reference
// runtime.md 7.5): counts over the last minute, hour and day, and a bucket for
// how many may come at once. Counting is by sixtieths of a period, so an agent
// rests at most a sixtieth longer than it must, in a few hundred bytes.
type rate struct {
	burst  float64 // 0: no bucket
	refill float64 // per second

	mu      sync.Mutex // guards the fields that follow
	windows []window
	tokens  float64
	filled  time.Time // when tokens was right
	known   bool      // what the agent answered in an earlier life is counted
}

// newRate returns nil for an agent without limits.
func newRate(l manifest.AgentRateLimit) *rate {
	r := &rate{burst: float64(l.Burst), tokens: float64(l.Burst), refill: math.Inf(1)}
	for _, w := range []window{
		{most: l.PerMinute, period: time.Minute, unit: "minute"},
		{most: l.PerHour, period: time.Hour, unit: "hour"},
		{most: l.PerDay, period: 24 * time.Hour, unit: "day"},
	} {
		if w.most > 0 {
			r.windows = append(r.windows, w)
			r.refill = min(r.refill, float64(w.most)/w.period.Seconds())
		}
	}
	if l.Burst == 0 && len(r.windows) == 0 {
		return nil
	}
	if len(r.windows) == 0 { // nothing but how many at once: in a second
		r.refill = r.burst
	}
	return r
}

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

// take counts one more, or tells how long to wait and for which limit.
func (r *rate) take(now time.Time) (wait time.Duration, limit window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.windows {
		if d := r.windows[i].wait(now); d > wait {
			wait, limit = d, r.windows[i]
		}
	}
	if r.burst > 0 {
		if !r.filled.IsZero() && now.After(r.filled) {
			r.tokens = min(r.burst, r.tokens+now.Sub(r.filled).Seconds()*r.refill)
		}
		r.filled = now
		if d := time.Duration((1 - r.tokens) / r.refill * float64(time.Second)); r.tokens < 1 && d > wait {
			wait, limit = d, window{most: int(r.burst), unit: "burst"}
		}
	}
	if wait > 0 {
		return wait, limit
	}
	r.tokens--
	for i := range r.windows {
		r.windows[i].add(now, now)
	}
	return 0, window{}
}

// recall counts what the agent answered before this process began. Only the
// first call has something to do; when it fails the next one tries again.
func (r *rate) recall(now time.Time, asked func(since time.Time) ([]time.Time, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known || asked == nil || len(r.windows) == 0 {
		return nil
	}
	longest := r.windows[len(r.windows)-1].period
	before, err := asked(now.Add(-longest))
	if err != nil {
		return err
	}
	r.known = true
	for i := range r.windows {
		for _, t := range before {
			r.windows[i].add(t, now)
		}
	}
	return nil
}

// admit counts the run, or refuses it. A run that had begun before its process
// died was counted then.
func (r *run) admit(ctx context.Context) error {
	limits := r.agent.rate
	if limits == nil {
		return nil
	}
	if _, begun := r.task.Journal.Done("model/0"); begun {
		return nil
	}
	cfg := &r.agent.cfg
	var asked func(time.Time) ([]time.Time, error)
	if cfg.Asked != nil {
		asked = func(since time.Time) ([]time.Time, error) { return cfg.Asked(ctx, cfg.Agent.ID, since) }
	}
	now := cfg.Now()
	if err := limits.recall(now, asked); err != nil {
		cfg.Log.Warn().Err(err).Str("agent", cfg.Agent.ID).Msg("what the agent answered before can't be counted; its rate limits count from now on")
	}
	wait, limit := limits.take(now)
	if wait <= 0 {
		return nil
	}
	seconds := int(math.Ceil(wait.Seconds()))
	what := "requests at once"
	if limit.unit != "burst" {
		what = "requests per " + limit.unit
	}
	return fault.Errorf(fault.RateLimited, "RATE_LIMITED", "agent %s takes at most %d %s; try again in %d s",
		cfg.Agent.ID, limit.most, what, seconds).With("retry_after", seconds)
}

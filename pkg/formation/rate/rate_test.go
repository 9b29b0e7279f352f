package rate_test

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/rate"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestLimiter_LetsNoMoreThroughThanItsLimitsAndSaysHowLongToWait(t *testing.T) {
	t.Parallel()
	type step struct {
		after time.Duration // since the step before
		wait  int           // seconds; 0: let through
		limit string
	}
	for name, tc := range map[string]struct {
		of    rate.Limits
		steps []step
	}{
		"none": {rate.Limits{}, []step{{}, {}, {}}},
		"minute": {rate.Limits{PerMinute: 2}, []step{
			{}, {30 * time.Second, 0, ""}, {0, 31, "at most 2 calls per minute"}, {30 * time.Second, 1, "at most 2 calls per minute"}, {time.Second, 0, ""},
		}},
		"hour":                    {rate.Limits{PerHour: 1}, []step{{}, {time.Minute, 3595, "at most 1 calls per hour"}, {time.Hour, 0, ""}}},
		"day":                     {rate.Limits{PerDay: 1}, []step{{}, {23 * time.Hour, 4075, "at most 1 calls per day"}, {2 * time.Hour, 0, ""}}},
		"the longest wait counts": {rate.Limits{PerMinute: 1, PerHour: 2}, []step{{}, {61 * time.Second, 0, ""}, {0, 3594, "at most 2 calls per hour"}}},
		"burst":                   {rate.Limits{PerMinute: 60, Burst: 2}, []step{{}, {}, {0, 1, "at most 2 calls at once"}, {time.Second, 0, ""}, {0, 1, "at most 2 calls at once"}}},
		"burst of an hour":        {rate.Limits{PerHour: 60, Burst: 1}, []step{{}, {0, 60, "at most 1 calls at once"}, {time.Minute, 0, ""}}},
		"burst alone":             {rate.Limits{Burst: 2}, []step{{}, {}, {0, 1, "at most 2 calls at once"}, {500 * time.Millisecond, 0, ""}}},
		"the clock is set back":   {rate.Limits{PerMinute: 1, Burst: 1}, []step{{}, {-time.Hour, 3661, "at most 1 calls per minute"}, {time.Hour + 61*time.Second, 0, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, now := rate.New(tc.of), start
			for i, s := range tc.steps {
				now = now.Add(s.after)
				no, ok := l.Take(now)
				if ok != (s.wait == 0) || !ok && (no.Seconds() != s.wait || no.Limit("calls") != s.limit) {
					t.Fatalf("step %d: let through %v, wait %v, %s; want %d s, %s", i, ok, no.Wait, no.Limit("calls"), s.wait, s.limit)
				}
			}
		})
	}
}

// TestLimiter_HoldsOverAnyPeriod tries as often as it may, and counts itself.
func TestLimiter_HoldsOverAnyPeriod(t *testing.T) {
	t.Parallel()
	l, now := rate.New(rate.Limits{PerMinute: 7, PerHour: 100}), start
	var taken []time.Time
	for range 4000 {
		no, ok := l.Take(now)
		if ok {
			taken = append(taken, now)
			continue
		}
		now = now.Add(no.Wait)
		if _, ok := l.Take(now); !ok {
			t.Fatalf("refused after the wait of %v", no.Wait)
		}
		taken = append(taken, now)
	}
	for period, most := range map[time.Duration]int{time.Minute: 7, time.Hour: 100} {
		for i := most; i < len(taken); i++ {
			if d := taken[i].Sub(taken[i-most]); d < period {
				t.Fatalf("%d within %v", most+1, d)
			}
		}
	}
}

func TestLimiter_CountsWhatWasBefore(t *testing.T) {
	t.Parallel()
	l, asked := rate.New(rate.Limits{PerHour: 3}), 0
	before := func(since time.Time) ([]time.Time, error) {
		if asked++; asked == 1 {
			return nil, errors.New("busy")
		}
		if !since.Equal(start.Add(-time.Hour)) {
			t.Errorf("asked since %v", since)
		}
		return []time.Time{start.Add(-2 * time.Hour), start.Add(-time.Minute), start.Add(-time.Second)}, nil
	}
	if l.Recall(start, before) == nil {
		t.Error("the error is lost")
	}
	for range 3 {
		if err := l.Recall(start, before); err != nil {
			t.Fatal(err)
		}
	}
	_, first := l.Take(start)
	_, second := l.Take(start)
	if asked != 2 || !first || second {
		t.Errorf("asked %d times, %v %v", asked, first, second)
	}
}

func TestCallers_EachHasItsOwnShareWhichComesBack(t *testing.T) {
	t.Parallel()
	c := rate.NewCallers(60, 2)
	for _, s := range []struct {
		name string
		at   time.Duration
		wait time.Duration
	}{
		{"ann", 0, 0},
		{"ann", 0, 0},
		{"ann", 0, time.Second},
		{"bob", 0, 0},
		{"ann", 600 * time.Millisecond, 400 * time.Millisecond},
		{"ann", time.Second, 0},
		{"ann", time.Second, time.Second},
		{"ann", time.Minute, 0},
		{"ann", time.Minute, 0},
		{"ann", time.Minute, time.Second},
	} {
		if got := c.Take(s.name, start.Add(s.at)); got.Round(time.Millisecond) != s.wait {
			t.Errorf("%s at %v waits %v, want %v", s.name, s.at, got, s.wait)
		}
	}
	whole := rate.NewCallers(3, 0)
	if waits := []time.Duration{whole.Take("a", start), whole.Take("a", start), whole.Take("a", start), whole.Take("a", start)}; !slices.Equal(waits, []time.Duration{0, 0, 0, 20 * time.Second}) {
		t.Errorf("without a burst: %v", waits)
	}
	if rate.NewCallers(0, 5).Take("a", start) != 0 {
		t.Error("limited without a limit")
	}
}

func TestCallers_AreBoundedAndForgottenWhenIdle(t *testing.T) {
	t.Parallel()
	const most = 10000
	c := rate.NewCallers(1, 1)
	for i := range 3 * most {
		c.Take(strconv.Itoa(i), start)
		if n := c.Len(); n > most {
			t.Fatalf("%d are remembered", n)
		}
	}
	if c.Take(strconv.Itoa(3*most-1), start) == 0 {
		t.Error("the latest is forgotten")
	}
	if c.Take("0", start) != 0 {
		t.Error("the oldest is remembered")
	}
	if c.Take("new", start.Add(time.Hour)); c.Len() != 1 {
		t.Errorf("%d are remembered after an hour of silence", c.Len())
	}
}

func TestCallers_CountOnceEachWhenAllComeAtOnce(t *testing.T) {
	t.Parallel()
	c := rate.NewCallers(60, 50)
	var in atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if c.Take("ann", start) == 0 {
					in.Add(1)
				}
			}
		})
	}
	if all.Wait(); in.Load() != 50 {
		t.Errorf("%d of 50 were let in", in.Load())
	}
}

func TestGuesses_AStrangerLearnsNothingAndWhoIsAtHomeGoesOn(t *testing.T) {
	t.Parallel()
	const wrong, right = "wrong", "right"
	for name, steps := range map[string][]struct {
		from  string
		key   string
		admin bool
		at    time.Duration
		in    bool
	}{
		"guesser": {
			{"x", wrong, false, 0, true},
			{"x", wrong, false, 0, true},
			{"x", wrong, false, 0, false},
			{"x", right, false, 0, false}, // not told
			{"x", right, true, 0, false},
			{"y", right, false, 0, true},
			{"x", wrong, false, time.Second, true},
			{"x", right, false, time.Second, false},
			{"x", right, false, 2 * time.Second, true},
		},
		"at home": {
			{"x", right, false, 0, true},
			{"x", wrong, false, 0, true},
			{"x", wrong, false, 0, true},
			{"x", wrong, false, 0, false},
			{"x", right, false, 0, true},
			{"x", right, true, 0, false}, // of another kind
			{"x", wrong, false, 0, false},
		},
		"long ago": {
			{"x", right, true, 0, true},
			{"x", wrong, true, time.Hour + time.Minute, true},
			{"x", wrong, true, time.Hour + time.Minute, true},
			{"x", right, true, time.Hour + time.Minute, false},
		},
	} {
		g := rate.NewGuesses(60, 2)
		for i, s := range steps {
			now := start.Add(s.at)
			var wait time.Duration
			if s.key == wrong {
				wait = g.Wrong(s.from, now)
			} else {
				wait = g.Right(s.from, s.admin, now)
			}
			if (wait == 0) != s.in || wait > time.Second {
				t.Errorf("%s, step %d: waits %v", name, i, wait)
			}
		}
	}
	if off := rate.NewGuesses(0, 0); off.Wrong("x", start) != 0 || off.Right("x", true, start) != 0 {
		t.Error("limited without a limit")
	}
}

func BenchmarkLimiter_Take(b *testing.B) {
	l, now := rate.New(rate.Limits{PerMinute: 1 << 30, PerHour: 1 << 30, PerDay: 1 << 30, Burst: 1 << 30}), start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		if _, ok := l.Take(now); !ok {
			b.Fatal("refused")
		}
	}
}

func BenchmarkCallers_Take(b *testing.B) {
	names := make([]string, 10000)
	for i := range names {
		names[i] = "user-" + strconv.Itoa(i)
	}
	for name, c := range map[string]*rate.Callers{"on": rate.NewCallers(60, 10), "off": nil} {
		b.Run(name, func(b *testing.B) {
			now, i := start, 0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				c.Take(names[i%len(names)], now)
				i++
			}
		})
	}
}

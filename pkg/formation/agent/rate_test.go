package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

// limited is an agent with rate limits whose clock the test turns.
type limited struct {
	t     *testing.T
	agent *agent.Agent
	now   time.Time
}

func newLimited(t *testing.T, rate manifest.RateLimiting, asked func(context.Context, string, time.Time) ([]time.Time, error), answers int) *limited {
	t.Helper()
	steps := make([]llmtest.Step, answers)
	for i := range steps {
		steps[i] = llmtest.Step{Text: "ok"}
	}
	l := &limited{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	l.agent = newAgent(llmtest.NewScript(t, steps...), func(c *agent.Config) {
		c.Agent.RateLimit, c.Asked, c.Now = rate, asked, func() time.Time { return l.now }
	})
	return l
}

// ask returns how many seconds the agent asks to wait; 0 when it answers.
func (l *limited) ask(j *journal) int {
	l.t.Helper()
	_, _, err := run(l.t, l.agent, j)
	if err == nil {
		return 0
	}
	f := fault.From(err)
	seconds, ok := f.Data["retry_after"].(int)
	if f.Kind != fault.RateLimited || f.Name != "RATE_LIMITED" || !ok || seconds < 1 {
		l.t.Fatalf("fault %+v", f)
	}
	return seconds
}

func TestRun_RateLimitsOfTheAgent(t *testing.T) {
	t.Parallel()
	type step struct {
		after time.Duration // since the step before
		wait  int           // seconds; 0: answered
	}
	for name, tc := range map[string]struct {
		rate  manifest.RateLimiting
		steps []step
	}{
		"minute": {manifest.RateLimiting{PerMinute: 2}, []step{{0, 0}, {30 * time.Second, 0}, {0, 31}, {30 * time.Second, 1}, {time.Second, 0}, {0, 30}}},
		"hour":   {manifest.RateLimiting{PerHour: 1}, []step{{0, 0}, {time.Minute, 3595}, {58 * time.Minute, 115}, {2 * time.Minute, 0}}},
		"day":    {manifest.RateLimiting{PerDay: 1}, []step{{0, 0}, {23 * time.Hour, 4075}, {2 * time.Hour, 0}, {0, 87595}}},
		"the longest wait counts": {manifest.RateLimiting{PerMinute: 1, PerHour: 2}, []step{
			{0, 0}, {0, 61}, {61 * time.Second, 0}, {61 * time.Second, 3533},
		}},
		"burst":       {manifest.RateLimiting{PerMinute: 60, Burst: 2}, []step{{0, 0}, {0, 0}, {0, 1}, {time.Second, 0}, {0, 1}, {time.Minute, 0}, {0, 0}, {0, 1}}},
		"burst alone": {manifest.RateLimiting{Burst: 1}, []step{{0, 0}, {0, 1}, {time.Second, 0}}},
		"none":        {manifest.RateLimiting{}, []step{{0, 0}, {0, 0}, {0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := 0
			for _, s := range tc.steps {
				if s.wait == 0 {
					answers++
				}
			}
			l := newLimited(t, tc.rate, nil, answers)
			for i, s := range tc.steps {
				l.now = l.now.Add(s.after)
				if wait := l.ask(&journal{}); wait != s.wait {
					t.Fatalf("step %d: wait %d s, want %d", i, wait, s.wait)
				}
			}
		})
	}
}

func TestRun_RateLimitsCountWhatWasAnsweredInAnEarlierLife(t *testing.T) {
	t.Parallel()
	var since []time.Time
	l := &limited{}
	asked := func(_ context.Context, id string, from time.Time) ([]time.Time, error) {
		if since = append(since, from); len(since) == 1 {
			return nil, errors.New("busy")
		}
		if id != "writer" {
			t.Errorf("asked for %s", id)
		}
		return []time.Time{l.now.Add(-2 * time.Hour), l.now.Add(-30 * time.Minute)}, nil
	}
	l = newLimited(t, manifest.RateLimiting{PerHour: 3}, asked, 2)
	for i, refused := range []bool{false, false, true} {
		if wait := l.ask(&journal{}); wait > 0 != refused {
			t.Errorf("run %d waits %d s", i, wait)
		}
	}
	if len(since) != 2 || !since[0].Equal(l.now.Add(-time.Hour)) {
		t.Errorf("asked for %v", since)
	}
}

func TestRun_AResumedRunIsNotCountedAgain(t *testing.T) {
	t.Parallel()
	l := newLimited(t, manifest.RateLimiting{PerHour: 1}, nil, 2)
	if l.ask(&journal{}) != 0 {
		t.Fatal("the first was not answered")
	}
	begun := &journal{earlier: map[string]string{"model/0": `{"calls":[{"id":"1","name":"gone","args":"{}"}]}`}}
	if wait := l.ask(begun); wait != 0 {
		t.Errorf("a resumed run waits %d s", wait)
	}
	if l.ask(&journal{}) == 0 {
		t.Error("the second in an hour was answered")
	}
}

package llm

import (
	"testing"
	"time"
)

func TestBreaker_OpensProbesAndCloses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b breaker
	try := func(end attemptEnd) bool {
		probe, refusal := b.allow(now)
		if refusal == nil {
			b.report(now, probe, end)
		}
		return refusal == nil
	}
	for range 20 { // a burst, however long, does not open it
		if !try(endedBadly) {
			t.Fatal("a burst of failures opened the circuit")
		}
	}
	now = now.Add(breakAfter)
	if !try(endedBadly) || try(endedWell) {
		t.Fatal("an outage did not open the circuit")
	}
	if _, refusal := b.allow(now.Add(5 * time.Second)); refusal == nil || refusal.RetryAfter != breakFor-5*time.Second || !refusal.open {
		t.Fatalf("while open: %+v", refusal)
	}
	now = now.Add(breakFor)
	probe, refusal := b.allow(now)
	if refusal != nil || !probe {
		t.Fatalf("no probe: %+v", refusal)
	}
	if try(endedWell) {
		t.Fatal("two probes at a time")
	}
	b.report(now, true, endedUnknown) // the caller left: the next one probes
	if !try(endedBadly) || try(endedWell) {
		t.Fatal("a failed probe did not open the circuit again")
	}
	now = now.Add(breakFor)
	if !try(endedWell) || !try(endedBadly) || !try(endedWell) {
		t.Fatal("a good probe did not close the circuit")
	}
}

func TestBreaker_CountsFailuresInARowOnly(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b breaker
	for i := range 100 {
		probe, refusal := b.allow(now)
		if refusal != nil {
			t.Fatalf("opened at attempt %d", i)
		}
		end := endedBadly
		if i%breakFailures == breakFailures-1 {
			end = endedWell
		}
		b.report(now, probe, end)
		now = now.Add(time.Minute)
	}
}

func TestBreaker_IsNotOpenedByARefusal(t *testing.T) {
	t.Parallel()
	for reason := Broken; reason <= Refused; reason++ {
		bad := reason == Broken || reason == Overloaded || reason == TimedOut
		if got := endOf(reason) == endedBadly; got != bad {
			t.Errorf("reason %d counts against the provider: %t, want %t", reason, got, bad)
		}
	}
}

func TestCut_LosesNothing(t *testing.T) {
	t.Parallel()
	const text = "One. Two 3.5 more! 你好。再见？\n\nA list:\n- a\n- b  c"
	for _, c := range []struct {
		strategy string
		n        int
		want     []string
	}{
		{"sentences", 1, []string{"One. ", "Two 3.5 more! ", "你好。", "再见？", "\n\n", "A list:\n", "- a\n", "- b  c"}},
		{"", 2, []string{"One. Two 3.5 more! ", "你好。再见？", "\n\nA list:\n", "- a\n- b  c"}},
		{"paragraphs", 1, []string{"One. Two 3.5 more! 你好。再见？\n\n", "A list:\n- a\n- b  c"}},
		{"words", 3, []string{"One. Two 3.5 ", "more! 你好。再见？\n\nA ", "list:\n- a\n", "- b  c"}},
		{"characters", 40, []string{"One. Two 3.5 more! 你好。再见？\n\nA list:\n- a\n-", " b  c"}},
	} {
		got := cut(text, c.strategy, c.n)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", c.strategy, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: piece %d is %q, want %q", c.strategy, i, got[i], c.want[i])
			}
		}
	}
	if got := cut("", "words", 1); len(got) != 0 {
		t.Errorf("nothing gives %q", got)
	}
}

package formation

import "testing"

func TestSleep_FallsOnceAfterEachWork(t *testing.T) {
	t.Parallel()
	s := newSleep()
	for i, beat := range []struct {
		total, active int64
		falls         bool
	}{
		{0, 0, false},
		{0, 0, false},
		{0, 0, false},
		{0, 0, true}, // after the start
		{0, 0, false},
		{0, 0, false},
		{0, 0, false}, // it sleeps already
		{4, 0, false},
		{4, 0, false},
		{4, 0, false},
		{4, 0, true},
		{5, 1, false},
		{5, 1, false},
		{5, 1, false},
		{5, 1, false}, // a long turn
		{5, 0, false},
		{5, 0, false},
		{6, 0, false}, // another one came
		{6, 0, false},
		{6, 0, false},
		{6, 0, true},
	} {
		if got := s.falls(beat.total, beat.active); got != beat.falls {
			t.Errorf("beat %d with %d turns, %d open: falls asleep %v, want %v", i, beat.total, beat.active, got, beat.falls)
		}
	}
}

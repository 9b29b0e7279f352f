package httpx_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/httpx"
)

func TestMeter_CountsByClassAndLatency(t *testing.T) {
	t.Parallel()
	var m httpx.Meter
	var wg sync.WaitGroup
	for _, o := range []struct {
		status int
		took   time.Duration
	}{
		{200, 0},
		{204, time.Millisecond},
		{101, time.Millisecond + 1},
		{404, 40 * time.Millisecond},
		{503, 5 * time.Minute},
		{200, time.Hour},
		{0, time.Second},
		{999, time.Second},
		{-1, time.Second},
	} {
		wg.Go(func() { m.Observe(o.status, o.took) })
	}
	wg.Wait()
	r := m.Read()
	if diff := cmp.Diff([6]uint64{3, 1, 3, 0, 1, 1}, r.Classes); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	within := map[float64]uint64{}
	for i, b := range r.Bounds {
		within[b] = r.Within[i]
	}
	for bound, want := range map[float64]uint64{0.001: 2, 0.0025: 3, 0.025: 3, 0.05: 4, 0.5: 4, 1: 7, 60: 7, 300: 8} {
		if within[bound] != want {
			t.Errorf("within %v s: %d, want %d", bound, within[bound], want)
		}
	}
	if want := time.Hour + 5*time.Minute + 3*time.Second + 42*time.Millisecond + 1; r.Count != 9 || r.Sum != want {
		t.Errorf("%d answers, %s; want 9, %s", r.Count, r.Sum, want)
	}
}

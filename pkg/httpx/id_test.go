package httpx

import (
	"regexp"
	"sync"
	"testing"
)

func TestNewID_IsRandomAndNeverRepeats(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^req_[A-Za-z0-9_-]{21}$`)
	var mu sync.Mutex
	seen := make(map[string]bool)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				id := NewID("req_")
				mu.Lock()
				if seen[id] || !form.MatchString(id) {
					t.Errorf("id %q is repeated or malformed", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewID("req_")
	}
}

func TestNewID_ComparesAsItsTimeDoes(t *testing.T) {
	t.Parallel()
	first := NewID("")
	// The clock of ids has milliseconds: make some until it has moved on.
	for i := 0; ; i++ {
		if id := NewID(""); id[:idTime] != first[:idTime] {
			if id < first {
				t.Fatalf("%q was made after %q and is smaller", id, first)
			}
			return
		}
	}
}

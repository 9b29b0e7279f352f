package harness

import (
	"context"
	"testing"
	"time"
)

// Patience is how long a condition may take to come true. It is long because
// it is only ever spent on failures.
const Patience = 2 * time.Minute

// tick is the time between two looks at something that another process does.
const tick = 5 * time.Millisecond

// Until waits for a condition that another process makes true, and fails the
// test when it does not come.
func Until(tb testing.TB, what string, met func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for !met() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			tb.Fatalf("waited %s in vain until %s", Patience, what)
		}
	}
}

// Throughout fails the test when a condition is untrue at any look within d.
func Throughout(tb testing.TB, d time.Duration, what string, met func() bool) {
	tb.Helper()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	over := time.NewTimer(d)
	defer over.Stop()
	for {
		if !met() {
			tb.Fatalf("not true throughout %s: %s", d, what)
		}
		select {
		case <-ticker.C:
		case <-over.C:
			return
		}
	}
}

// Context returns a context that ends with the test or with Patience.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

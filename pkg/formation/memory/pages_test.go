package memory_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/memory"
)

// pages reads a session backwards, as a client does, and returns all of it.
func pages(t *testing.T, m *memory.Memory, size int) (all []string) {
	t.Helper()
	q := memory.MessageQuery{UserID: "u", SessionID: "s", Limit: size}
	for more := true; more; {
		list, older, err := m.Messages(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range slices.Backward(list) {
			all = append(all, list[i].Content)
		}
		if more = older && len(list) > 0; more {
			q.Before = list[0].Time
		}
	}
	slices.Reverse(all)
	return all
}

func TestMessages_ReadInPagesAreAllThere(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, said := range map[string][][2]time.Duration{ // asked and answered
		"while the one before was answered": {{0, 10 * second}, {second, 20 * second}, {2 * second, 30 * second}},
		"within a millisecond":              {{0, 0}, {0, 0}, {0, 0}},
		"while the clock was set back":      {{time.Hour, time.Hour + second}, {0, second}, {2 * second, 3 * second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, db := setup(t, 10)
			var want []string
			for n, at := range said {
				exchange := turn("u", "s", n)
				exchange.AskedAt, exchange.AnsweredAt = start.Add(at[0]), start.Add(at[1])
				record(t, m, db, exchange)
				want = append(want, exchange.Message, exchange.Answer)
			}
			for size := 1; size <= len(want); size++ {
				if diff := cmp.Diff(want, pages(t, m, size)); diff != "" {
					t.Errorf("%d at once: %s", size, diff)
				}
			}
		})
	}
}

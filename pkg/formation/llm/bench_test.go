package llm_test

import (
	"context"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/llm"
)

// BenchmarkRouter is what the router itself adds to a call that succeeds.
func BenchmarkRouter(b *testing.B) {
	m := modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		if yield(llm.Chunk{Text: "ok"}, nil) {
			yield(llm.Chunk{Done: true}, nil)
		}
	})
	r, err := llm.NewRouter(llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
	if err != nil {
		b.Fatal(err)
	}
	req := llm.Request{Settings: llm.Settings{Timeout: 30 * time.Second, MaxRetries: 3}}
	b.ReportAllocs()
	for b.Loop() {
		if reply, err := llm.Collect(r.Stream(b.Context(), "p/m", req), nil); err != nil || reply.Text != "ok" {
			b.Fatal(reply.Text, err)
		}
	}
}

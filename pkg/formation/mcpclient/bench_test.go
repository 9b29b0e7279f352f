package mcpclient_test

import (
	"encoding/json"
	"testing"

	"github.com/agentformation/service/pkg/formation/chat"
)

// BenchmarkCall_Everything is a call of echo of a real server over pipes, eight
// at once.
func BenchmarkCall_Everything(b *testing.B) {
	c := open(b, nil, everything(b))
	discover(b, c)
	echo := tool(b, c, "echo")
	args := json.RawMessage(`{"message":"hello"}`)
	if res, err := echo.Call(b.Context(), chat.Invocation{Args: args}); err != nil || res.Content != "Echo: hello" {
		b.Fatalf("%+v, %v", res, err)
	}
	const atOnce = 8
	b.ReportAllocs()
	b.ResetTimer()
	gate := make(chan struct{}, atOnce)
	b.SetParallelism(atOnce)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			gate <- struct{}{}
			if _, err := echo.Call(b.Context(), chat.Invocation{Args: args}); err != nil {
				b.Error(err)
			}
			<-gate
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

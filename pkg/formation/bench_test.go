package formation_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/test/fakellm"
)

const benchManifest = `schema: "1.0.0"
id: bench
description: One agent over a scripted model.
server:
  api_keys:
    admin_key: fma_bench
    client_key: fmc_bench
llm:
  endpoints:
    openai: %s
  models:
    - text: openai/fake
agents:
  - id: writer
    name: Writer
    description: Writes.
`

// BenchmarkChat is a turn from socket to socket with a model server in the same
// process, so its figures hold both; "make bench" measures them apart.
func BenchmarkChat(b *testing.B) {
	for name, accept := range map[string]string{"json": "application/json", "sse": "text/event-stream"} {
		b.Run(name, func(b *testing.B) {
			url := startBench(b)
			body := []byte(`{"message":"hello there","agent_id":"writer"}`)
			b.SetParallelism(16)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+"/v1/chat", bytes.NewReader(body))
					if err != nil {
						b.Error(err)
						return
					}
					req.Header.Set("X-SVC-Client-Key", "fmc_bench")
					req.Header.Set("Content-Type", "application/json")
					req.Header.Set("Accept", accept)
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
						b.Errorf("status %d, %v", res.StatusCode, err)
					}
					res.Body.Close()
				}
			})
		})
	}
}

func startBench(b *testing.B) string {
	b.Helper()
	fake := fakellm.Start(b, fakellm.Options{Record: -1})
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "formation.afs"), fmt.Appendf(nil, benchManifest, fake.URL()), 0o600); err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	f := formation.New(formation.Config{
		LaunchID: "bench", Alone: true, Log: zerolog.Nop(),
		Listen: func() (net.Listener, error) { return l, nil },
	})
	if _, err := f.Load(b.Context(), control.LoadRequest{Dir: dir, StateDir: filepath.Join(dir, "state")}, func(string) {}); err != nil {
		b.Fatal(err)
	}
	if err := f.Serve(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := f.Stop(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

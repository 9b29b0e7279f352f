package embedder_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/embedder"
)

// counting stands in for the process: it holds requests to their limits and
// gives each text one number, its length.
func counting(t *testing.T) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "emb") // short: it is the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", embedder.SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req embedder.Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, embedder.MaxBody)).Decode(&req); err != nil || len(req.Texts) > embedder.MaxTexts {
			t.Errorf("%d texts: %v", len(req.Texts), err)
		}
		vectors := make([][]float32, len(req.Texts))
		for i, text := range req.Texts {
			vectors[i] = []float32{float32(len(text))}
		}
		if err := json.NewEncoder(w).Encode(embedder.Pack(vectors, 1, len(vectors))); err != nil {
			t.Error(err)
		}
	})}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) }) // ends with Close
	t.Cleanup(func() {
		_ = srv.Close()
		served.Wait()
	})
	return dir
}

func TestEmbed_TextsOfSignsFitIntoTheirRequests(t *testing.T) {
	t.Parallel()
	c, err := embedder.New(embedder.Config{Dir: counting(t), Timeout: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	texts := make([]string, 17)
	for i := range texts {
		texts[i] = strings.Repeat("<", embedder.MaxText-i) // six bytes each as JSON
	}
	got, err := c.Embed(t.Context(), "local/acme/tiny", texts, "")
	if err != nil || len(got.Vectors) != len(texts) || got.Tokens != len(texts) {
		t.Fatalf("%d vectors of %d texts: %v", len(got.Vectors), got.Tokens, err)
	}
	for i, v := range got.Vectors {
		if int(v[0]) != len(texts[i]) {
			t.Errorf("text %d of %d bytes got the vector of one with %g", i, len(texts[i]), v[0])
		}
	}
}

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/test/e2e/harness"
)

// TestModels_InitFetchesWhatTheEmbeddingProcessUses lets init fetch a model and
// the ONNX Runtime, takes the hub away, and asks the embedding process.
func TestModels_InitFetchesWhatTheEmbeddingProcessUses(t *testing.T) {
	t.Parallel()
	hub, end := embedtest.ServeHub()
	t.Cleanup(end)
	bert := embedtest.NewBert(embedtest.Tiny, 1)
	hub.Add("acme/tiny", embedtest.Files(bert))
	library, err := os.ReadFile(embedtest.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	hub.Add("acme/files", map[string][]byte{"libonnxruntime.so": library})
	sum := sha256.Sum256(library)
	s := suite.Start(t, harness.Options{Settings: fmt.Sprintf(
		"models:\n  hub: %s\n  onnxruntime:\n    url: %s/storage/acme/files/libonnxruntime.so\n    sha256: %s\n", hub.URL, hub.URL, hex.EncodeToString(sum[:]))})
	r := s.CLI("init", "--yes", "--model", "local/acme/tiny", "-o", "json")
	var made struct {
		Models []struct {
			Name, Path, Error string
			Fetched           bool
		}
	}
	if err := json.Unmarshal([]byte(r.Stdout), &made); err != nil || r.Code != 0 || len(made.Models) != 2 {
		t.Fatalf("init: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, m := range made.Models {
		if !m.Fetched || m.Error != "" || !strings.HasPrefix(m.Path, filepath.Join(s.Home, "cache")) {
			t.Errorf("init: %+v", m)
		}
	}
	end()
	client, err := embedder.New(embedder.Config{Dir: filepath.Join(s.Home, "run", "embedder")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	info, err := client.Info(t.Context(), "local/acme/tiny")
	if err != nil || !strings.HasPrefix(info.Engine, "onnxruntime") {
		t.Fatalf("%+v, %v", info, err)
	}
	got, err := client.Embed(t.Context(), "local/acme/tiny", []string{"hello world"}, "")
	if err != nil {
		t.Fatal(err)
	}
	embedtest.Near(t, "hello world", got.Vectors[0], bert.Mean(embedtest.IDs("hello world")))
	// Without the hub, init is done all the same.
	if r := s.CLI("init", "--yes", "--model", "local/acme/other"); r.Code != 0 || !strings.Contains(r.Stderr, "lexical recall") {
		t.Errorf("init without a hub: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

package embedtest

import (
	"os"
	"testing"

	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/ort"
)

// Library is the path of the ONNX Runtime that "make deps" leaves. A test that
// needs it fails without: the engine it proves is the one that people use.
func Library(t testing.TB) string {
	t.Helper()
	cache, err := hub.CacheDir(os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	path, err := ort.Find("", os.LookupEnv, cache)
	if err != nil || path == "" {
		t.Fatalf("no ONNX Runtime in %s (%v): run make deps", cache, err)
	}
	return path
}

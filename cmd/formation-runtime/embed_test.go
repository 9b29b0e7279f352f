package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
)

// beMain makes the test program the command itself.
const beMain = "FORMATION_RUNTIME_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEmbed_TheCommandServesWhoStartsIt(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "emb") // short: it is the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	models := embedtest.NewHub(t)
	bert := embedtest.NewBert(embedtest.Tiny, 1)
	models.Add("acme/tiny", embedtest.Files(bert))
	for engine, library := range map[string]string{"onnxruntime": embedtest.Library(t), "go": ""} {
		client, err := embedder.New(embedder.Config{
			Dir: filepath.Join(dir, engine), Command: []string{os.Args[0], "embed", "--idle", "100ms", "--engine", engine},
			Env: []string{beMain + "=1", "SVC_CACHE_DIR=" + dir, "HF_ENDPOINT=" + models.URL, hub.LibraryEnv + "=" + library},
		})
		if err != nil {
			t.Fatal(err)
		}
		info, err := client.Info(t.Context(), "local/acme/tiny")
		if err != nil || !strings.HasPrefix(info.Engine, engine) {
			t.Fatalf("%s: %+v, %v", engine, info, err)
		}
		got, err := client.Embed(t.Context(), "local/acme/tiny", []string{"hello world"}, "")
		if err != nil {
			t.Fatal(err)
		}
		embedtest.Near(t, engine, got.Vectors[0], bert.Mean(embedtest.IDs("hello world")))
		client.Close()
	}
}

func TestEmbed_AWrongFlagIsToldToWhoStartsIt(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "emb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	client, err := embedder.New(embedder.Config{
		Dir: dir, Command: []string{os.Args[0], "embed", "--engine", "cuda"}, Env: []string{beMain + "=1", "SVC_CACHE_DIR=" + dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Info(t.Context(), "local/acme/tiny"); err == nil || !strings.Contains(err.Error(), `engine "cuda"`) {
		t.Errorf("got %v", err)
	}
}

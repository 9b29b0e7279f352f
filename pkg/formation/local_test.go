package formation

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/purego"
	"github.com/agentformation/service/pkg/embedder/server"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
)

func TestLocalModels_AreServedByTheEmbeddingProcess(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "emb") // short: it is the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	client, err := embedder.New(embedder.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	router, err := llm.NewRouter(llm.Config{Local: localModels(client), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ask := llm.EmbedRequest{Texts: []string{"cat", "hello world"}, Task: llm.TaskQuery}
	// Without the process the caller learns that it may go on without vectors.
	if _, err := router.Embed(t.Context(), "local/acme/tiny", ask); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v %v", fault.KindOf(err), err)
	}
	bert := embedtest.NewBert(embedtest.Tiny, 1)
	serveEmbeddings(t, dir, bert)
	var out llm.Embedding
	for { // a model that takes long to load is said to be asked for again
		if out, err = router.Embed(t.Context(), "local/acme/tiny:v1", ask); fault.NameOf(err) != embedder.NameLoading {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	for i, text := range ask.Texts {
		ids := embedtest.IDs("search _ query : " + text)
		embedtest.Near(t, text, out.Vectors[i], bert.Mean(ids))
		tokens += len(ids)
	}
	if out.Model != "local/acme/tiny:v1" || out.Usage.PromptTokens != tokens || out.Usage.TotalTokens != tokens {
		t.Errorf("got model %s, usage %+v, want %d tokens", out.Model, out.Usage, tokens)
	}
	if localModels(nil) != nil {
		t.Error("no client is some embedder")
	}
}

func serveEmbeddings(t *testing.T, dir string, bert *embedtest.Bert) {
	t.Helper()
	models := embedtest.NewHub(t)
	models.Add("acme/tiny", embedtest.Files(bert))
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	h, err := hub.New(hub.Config{Dir: t.TempDir(), Endpoint: models.URL, Client: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- server.Run(ctx, server.Config{Dir: dir, Hub: h, Engine: purego.Engine{}, Ready: func(err error) { ready <- err }, Log: zerolog.Nop()})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
)

// The texts of the embedding bench: batches of passages, and single questions.
const (
	passageTokens = 64 // special tokens and task prefix included
	questionWords = 8
)

// embedCase is one model in one engine.
type embedCase struct {
	engine string
	model  string
	size   embedtest.Size
	batch  int // texts of a call; few where one takes a second
}

var embedCases = []embedCase{
	{"onnxruntime", "tiny 2x32", embedtest.Tiny, 32},
	{"onnxruntime", "minilm 6x384", embedtest.MiniLM, 32},
	{"go", "tiny 2x32", embedtest.Tiny, 32},
	{"go", "minilm 6x384", embedtest.MiniLM, 1},
}

// embedResult is what one case showed.
type embedResult struct {
	embedCase
	failed    error // the ONNX Runtime may not be there
	texts     int
	took, cpu time.Duration
	questions []time.Duration
	memory    memory
}

// measureEmbeddings asks the embedding process for vectors, as a formation does.
// The models have random weights, which cost what true ones do.
func measureEmbeddings(ctx context.Context, p plan, dir, _ string, r *report) error {
	hub, end := embedtest.ServeHub()
	defer end()
	for _, c := range embedCases {
		hub.Add(c.repo(), embedtest.Files(embedtest.NewBert(c.size, 1)))
	}
	for _, c := range embedCases {
		res := embedResult{embedCase: c}
		if err := res.measure(ctx, p, filepath.Join(dir, c.engine), hub.URL); err != nil {
			if ctx.Err() != nil {
				return err
			}
			res.failed = err
		}
		r.embeddings = append(r.embeddings, res)
	}
	return nil
}

func (c embedCase) repo() string { return "bench/" + strings.ReplaceAll(c.model, " ", "-") }

func (e *embedResult) measure(ctx context.Context, p plan, dir, hub string) error {
	server, err := startEmbedder(ctx, p, dir, e.engine, hub)
	if err != nil {
		return err
	}
	defer server.stop()
	client, err := embedder.New(embedder.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer client.Close()
	model := "local/" + e.repo()
	if err := server.poll(ctx, time.Minute, func() error {
		_, err := client.Info(ctx, model)
		return err
	}); err != nil {
		return err
	}
	passages := make([]string, e.batch)
	for i := range passages {
		// The prefix "search _ document : " has 4 tokens, the frame 2.
		passages[i] = sentence(i, passageTokens-6)
	}
	if _, err := client.Embed(ctx, model, passages, "document"); err != nil {
		return err // and warm it is
	}
	before, err := cpuTime(server.pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	for e.texts == 0 || time.Since(begin) < p.slice {
		out, err := client.Embed(ctx, model, passages, "document")
		if err != nil {
			return err
		}
		if out.Tokens != passageTokens*e.batch {
			return fmt.Errorf("%d tokens in %d texts, want %d each", out.Tokens, e.batch, passageTokens)
		}
		e.texts += e.batch
	}
	e.took = time.Since(begin)
	after, err := cpuTime(server.pid)
	if err != nil {
		return err
	}
	e.cpu = after - before
	begin = time.Now()
	for i := 0; i < 3 || time.Since(begin) < p.slice/2; i++ {
		asked := time.Now()
		if _, err := client.Embed(ctx, model, []string{sentence(i, questionWords)}, "query"); err != nil {
			return err
		}
		e.questions = append(e.questions, time.Since(asked))
	}
	e.memory, err = readMemory(server.pid)
	return err
}

// sentence has n words that are a token each.
func sentence(seed, n int) string {
	words := []string{"the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "rain"}
	var out []string
	for i := range n {
		out = append(out, words[(seed+i*i)%len(words)])
	}
	return strings.Join(out, " ")
}

func startEmbedder(ctx context.Context, p plan, dir, engine, hub string) (*process, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the embedding process: %w", err)
	}
	cache := filepath.Join(dir, "cache")
	return launch(ctx, command{
		name: "embed", log: dir, path: filepath.Join(p.bin, "formation-runtime"), args: []string{"embed", "--dir", dir, "--engine", engine},
		env: append(embedder.Environ(nil), "SVC_CACHE_DIR="+cache, "HF_ENDPOINT="+hub),
	})
}

func writeEmbeddings(b *strings.Builder, results []embedResult) {
	if len(results) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "embeddings, texts of %d tokens\tper second\tcpu/text\tquestion p50\tPSS\t\n", passageTokens)
	for _, e := range results {
		if e.failed != nil {
			fmt.Fprintf(w, "%s, %s\tnot measured\t\t\t\t\n", e.engine, e.model)
			continue
		}
		fmt.Fprintf(w, "%s, %s\t%.1f\t%s\t%s\t%s\t\n", e.engine, e.model,
			float64(e.texts)/e.took.Seconds(), ms(e.cpu/time.Duration(e.texts)), ms(quantile(e.questions, .5)), mb(e.memory.pss))
	}
	_ = w.Flush() // a Builder takes everything
	for _, e := range results {
		if e.failed != nil {
			fmt.Fprintf(b, "%s, %s: %v\n", e.engine, e.model, e.failed)
		}
	}
	b.WriteString("\n")
}

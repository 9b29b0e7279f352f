package embedtest

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/fault"
)

// Tolerance is how far a number of a vector may be from the plain computation.
const Tolerance = 1e-4

// Write lays the files of a repository into a new directory.
func Write(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Near compares a vector with the plain one. Any goroutine may call it.
func Near(t testing.TB, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d numbers, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - want[i]); d > Tolerance || math.IsNaN(d) {
			t.Errorf("%s: number %d is %g, want %g", what, i, got[i], want[i])
			return
		}
	}
}

// texts differ in length, and so are batched with others than their neighbours.
var texts = []string{
	"cat", "the quick brown fox jumps over the lazy dog", "hello world", "the weather is not fast today",
	"a red house and a blue tree and a cat and a dog and the sun and rain", "zzz", "xylophone sat on mat", "rain",
}

// Conform checks the promises of an engine: the same vectors as the plain
// computation gives, whatever is batched with whatever.
func Conform(t *testing.T, engine model.Engine) {
	t.Run("vectors are those of the plain computation", func(t *testing.T) {
		t.Parallel()
		conformVectors(t, engine, func(*Bert) {})
	})
	t.Run("weights in a file of their own", func(t *testing.T) {
		t.Parallel()
		conformVectors(t, engine, func(b *Bert) { b.External = true })
	})
	t.Run("a graph that pools by itself", func(t *testing.T) {
		t.Parallel()
		conformVectors(t, engine, func(b *Bert) { b.SentenceEmbedding = true })
	})
	t.Run("every pooling", func(t *testing.T) {
		t.Parallel()
		conformPooling(t, engine)
	})
	t.Run("long texts are cut", func(t *testing.T) {
		t.Parallel()
		conformLength(t, engine)
	})
	t.Run("calls at once", func(t *testing.T) {
		t.Parallel()
		conformConcurrency(t, engine)
	})
	t.Run("what is no embedder is refused", func(t *testing.T) {
		t.Parallel()
		conformRefusals(t, engine)
	})
	t.Run("the end of the context", func(t *testing.T) {
		t.Parallel()
		m := load(t, engine, Files(NewBert(Tiny, 5)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := m.Embed(ctx, texts, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// load loads files with an engine until the end of the test.
func load(t testing.TB, engine model.Engine, files map[string][]byte) *model.Model {
	t.Helper()
	m, err := model.Load(t.Context(), model.Config{ID: "local/acme/tiny", Dir: Write(t, files), ONNX: "onnx/model.onnx", Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func conformVectors(t *testing.T, engine model.Engine, set func(*Bert)) {
	bert := NewBert(Tiny, 2)
	set(bert)
	m := load(t, engine, Files(bert))
	if m.Dimension() != Tiny.Hidden || m.MaxTokens() != Tiny.Positions {
		t.Errorf("dimension %d, %d tokens", m.Dimension(), m.MaxTokens())
	}
	prefixes := map[string]string{"": "", "query": "search _ query : ", "document": "search _ document : ", "clustering": ""}
	for task, prefix := range prefixes {
		vectors, tokens, err := m.Embed(t.Context(), texts, task)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for i, text := range texts {
			ids := IDs(prefix + text)
			sum += len(ids)
			Near(t, task+" "+text, vectors[i], bert.Mean(ids))
		}
		if tokens != sum {
			t.Errorf("%d tokens, want %d", tokens, sum)
		}
	}
}

func conformPooling(t *testing.T, engine model.Engine) {
	bert := NewBert(Tiny, 3)
	text := "the quick brown fox"
	rows := bert.Hidden(IDs(text))
	n, h := len(rows), Tiny.Hidden
	most, sum := slices.Clone(rows[0]), slices.Clone(rows[0])
	for _, row := range rows[1:] {
		for i, v := range row {
			most[i], sum[i] = max(most[i], v), sum[i]+v
		}
	}
	scaled := func(by float64) []float64 {
		out := make([]float64, h)
		for i := range out {
			out[i] = sum[i] / by
		}
		return out
	}
	tests := map[string][]float64{
		`{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}`: rows[0],
		`{"pooling_mode_max_tokens": true}`:                                   most,
		`{"pooling_mode_mean_tokens": true}`:                                  scaled(float64(n)),
		`{"pooling_mode_mean_sqrt_len_tokens": true}`:                         scaled(math.Sqrt(float64(n))),
		`{"pooling_mode_lasttoken": true}`:                                    rows[n-1],
		`{"pooling_mode": "cls"}`:                                             rows[0],
		`{}`:                                                                  scaled(float64(n)),
		`{"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true}`:   slices.Concat(rows[0], most),
	}
	for config, want := range tests {
		files := Files(bert)
		files["1_Pooling/config.json"] = []byte(config)
		files["modules.json"] = []byte(`[{"type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]`)
		// A long companion, so that the row is filled up.
		vectors, _, err := load(t, engine, files).Embed(t.Context(), []string{text, strings.Repeat("cat ", 40)}, "")
		if err != nil {
			t.Fatal(err)
		}
		Near(t, config, vectors[0], want)
	}
}

func conformLength(t *testing.T, engine model.Engine) {
	size := Tiny
	size.Positions = 50 // no power of two
	bert := NewBert(size, 4)
	long := strings.Repeat("cat dog ", 100)
	vectors, tokens, err := load(t, engine, Files(bert)).Embed(t.Context(), []string{long}, "")
	if err != nil {
		t.Fatal(err)
	}
	if tokens != size.Positions {
		t.Errorf("%d tokens, want %d", tokens, size.Positions)
	}
	Near(t, "a long text", vectors[0], bert.Mean(IDs(strings.Repeat("cat dog ", (size.Positions-2)/2))))
}

func conformConcurrency(t *testing.T, engine model.Engine) {
	bert := NewBert(Tiny, 6)
	m := load(t, engine, Files(bert))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			mine := slices.Concat(texts[i:], texts[:i])
			vectors, _, err := m.Embed(t.Context(), mine, "")
			if err != nil {
				t.Error(err)
				return
			}
			for j, text := range mine {
				Near(t, text, vectors[j], bert.Mean(IDs(text)))
			}
		})
	}
	wg.Wait()
}

func conformRefusals(t *testing.T, engine model.Engine) {
	tests := map[string]struct {
		set   func(files map[string][]byte)
		words string
	}{
		"no ONNX":          {func(f map[string][]byte) { f["onnx/model.onnx"] = []byte("no model") }, "onnx/model.onnx"},
		"cut ONNX":         {func(f map[string][]byte) { f["onnx/model.onnx"] = f["onnx/model.onnx"][:50_000] }, "onnx/model.onnx"},
		"no file":          {func(f map[string][]byte) { delete(f, "onnx/model.onnx") }, "onnx/model.onnx"},
		"wants pictures":   {func(f map[string][]byte) { f["onnx/model.onnx"] = odd("pixel_values", typeInt64, 2, 3) }, "pixel_values"},
		"gives labels":     {func(f map[string][]byte) { f["onnx/model.onnx"] = odd("input_ids", typeInt64, 2, 2) }, "vector per token"},
		"float ids":        {func(f map[string][]byte) { f["onnx/model.onnx"] = odd("input_ids", typeFloat, 2, 3) }, "int64"},
		"no tokenizer":     {func(f map[string][]byte) { delete(f, "tokenizer.json") }, "tokenizer.json"},
		"a bad tokenizer":  {func(f map[string][]byte) { f["tokenizer.json"] = []byte("{}") }, "tokenizer.json: model"},
		"too many tokens":  {func(f map[string][]byte) { f["config.json"] = []byte(`{"vocab_size": 50}`) }, "vocab_size"},
		"no room for text": {func(f map[string][]byte) { f["sentence_bert_config.json"] = []byte(`{"max_seq_length": 2}`) }, "special"},
		"unknown module": {func(f map[string][]byte) {
			f["modules.json"] = []byte(`[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]`)
		}, ".Dense"},
		"unknown pooling": {func(f map[string][]byte) {
			f["1_Pooling/config.json"] = []byte(`{"pooling_mode_weightedmean_tokens": true}`)
		}, "weightedmean"},
		"pooling elsewhere": {func(f map[string][]byte) { f["modules.json"] = []byte(`[{"path": "../x", "type": "a.Pooling"}]`) }, "leaves"},
	}
	for name, tt := range tests {
		files := Files(NewBert(Tiny, 7))
		tt.set(files)
		_, err := model.Load(t.Context(), model.Config{ID: "local/acme/tiny", Dir: Write(t, files), ONNX: "onnx/model.onnx", Engine: engine})
		if fault.NameOf(err) != model.NameUnsuitable || fault.KindOf(err) != fault.Unprocessable {
			t.Errorf("%s: got %v", name, err)
		} else if !strings.Contains(err.Error(), tt.words) || !strings.Contains(err.Error(), "local/acme/tiny") {
			t.Errorf("%s: the message lacks %q: %v", name, tt.words, err)
		}
	}
	m := load(t, engine, Files(NewBert(Tiny, 7)))
	for what, name := range map[[2]string]string{
		{"", ""}: model.NameBadText, {" \n\u00a0", "query"}: model.NameBadText, {"cat", "poetry"}: model.NameBadTask,
	} {
		_, _, err := m.Embed(t.Context(), []string{"cat", what[0]}, what[1])
		if fault.KindOf(err) != fault.Invalid || fault.NameOf(err) != name {
			t.Errorf("%q: got %v", what, err)
		}
	}
}

// odd is a model of one step that is no sentence embedder.
func odd(input string, kind int64, ranks ...int) []byte {
	g := &graph{}
	dims := [][]string{nil, {"a"}, {"a", "b"}, {"a", "b", "c"}}
	g.inputs = message(nil, graphInput, value(input, kind, dims[ranks[0]]...))
	g.outputs = message(nil, graphOutput, value("logits", typeFloat, dims[ranks[1]]...))
	x := g.op("Cast", []string{input}, attr{"to", typeFloat})
	if ranks[1] == 3 {
		g.ints("axes", []int64{2}, 1)
		x = g.op("Unsqueeze", []string{x, "axes"})
	}
	g.named("logits", "Identity", []string{x})
	return g.bytes()
}

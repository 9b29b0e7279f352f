package embedtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// Size is the shape of a made model.
type Size struct {
	Layers, Hidden, Heads, Inner int
	Vocab                        int // at least the words of Words
	Positions                    int // the longest input in tokens
}

// Tiny is the model that tests use: 2 layers of 32.
var Tiny = Size{Layers: 2, Hidden: 32, Heads: 4, Inner: 64, Vocab: 400, Positions: 64}

// MiniLM has the shape of the usual small sentence embedder, with random
// weights: what its computation costs is the same.
var MiniLM = Size{Layers: 6, Hidden: 384, Heads: 12, Inner: 1536, Vocab: 30522, Positions: 512}

// epsilon of the layer normalisations, as BERT has it.
const epsilon = 1e-12

// linear is a dense layer: x*w + b, w in rows of inputs.
type linear struct{ w, b []float32 }

type norm struct{ scale, bias []float32 }

type layer struct {
	query, key, value, out linear
	up, down               linear
	attn, ffn              norm
}

// Bert is a made model: its weights, which both the ONNX file and the plain
// computation are made of.
type Bert struct {
	Size              Size
	word, pos, kind   []float32
	norm              norm
	layers            []layer
	External          bool // keep the matrices in a file of their own
	SentenceEmbedding bool // give one vector per text: the mean of its tokens
}

// NewBert makes a model of the shape from a seed.
func NewBert(s Size, seed uint64) *Bert {
	r := rand.New(rand.NewPCG(seed, 1))
	m := &Bert{Size: s}
	m.word, m.pos, m.kind = randoms(r, s.Vocab*s.Hidden, 1), randoms(r, s.Positions*s.Hidden, 0.2), randoms(r, 2*s.Hidden, 0.1)
	m.norm = newNorm(r, s.Hidden)
	for range s.Layers {
		m.layers = append(m.layers, layer{
			query: newLinear(r, s.Hidden, s.Hidden), key: newLinear(r, s.Hidden, s.Hidden),
			value: newLinear(r, s.Hidden, s.Hidden), out: newLinear(r, s.Hidden, s.Hidden),
			up: newLinear(r, s.Hidden, s.Inner), down: newLinear(r, s.Inner, s.Hidden),
			attn: newNorm(r, s.Hidden), ffn: newNorm(r, s.Hidden),
		})
	}
	return m
}

func randoms(r *rand.Rand, n int, scale float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64() * scale)
	}
	return out
}

func newLinear(r *rand.Rand, in, out int) linear {
	return linear{randoms(r, in*out, 1/math.Sqrt(float64(in))), randoms(r, out, 0.1)}
}

func newNorm(r *rand.Rand, n int) norm {
	v := norm{randoms(r, n, 0.1), randoms(r, n, 0.1)}
	for i := range v.scale {
		v.scale[i]++
	}
	return v
}

// ONNX returns the model as an ONNX file, and the file of its matrices when
// External is set (its name is DataFile).
func (m *Bert) ONNX() (model, data []byte) {
	s := m.Size
	g := &graph{}
	if m.External {
		g.external = DataFile
	}
	for _, name := range []string{"input_ids", "attention_mask", "token_type_ids"} {
		g.inputs = message(g.inputs, graphInput, value(name, typeInt64, "batch", "sequence"))
	}
	h := int64(s.Hidden)
	g.ints("zero", []int64{0}, 1)
	g.ints("one", []int64{1}, 1)
	g.ints("two", []int64{2}, 1)
	g.ints("mask_axes", []int64{1, 2}, 2)
	g.floats("f_one", []float32{1})
	g.floats("f_low", []float32{-10000})
	g.floats("f_scale", []float32{float32(1 / math.Sqrt(float64(s.Hidden/s.Heads)))})
	g.floats("f_half", []float32{0.5})
	g.floats("f_root2", []float32{float32(1 / math.Sqrt2)})
	g.ints("split", []int64{0, 0, int64(s.Heads), int64(s.Hidden / s.Heads)}, 4)
	g.ints("join", []int64{0, 0, h}, 3)

	shape := g.op("Shape", []string{"input_ids"})
	length := g.op("Slice", []string{shape, "one", "two", "zero"})
	g.floats("position_table", m.pos, int64(s.Positions), h)
	x := g.op("Gather", []string{g.floats("word_table", m.word, int64(s.Vocab), h), "input_ids"})
	x = g.op("Add", []string{x, g.op("Gather", []string{g.floats("type_table", m.kind, 2, h), "token_type_ids"})})
	x = g.op("Add", []string{x, g.op("Slice", []string{"position_table", "zero", length, "zero"})})
	x = g.norm("embeddings", x, m.norm)
	mask := g.op("Cast", []string{"attention_mask"}, attr{"to", typeFloat})
	mask = g.op("Mul", []string{g.op("Sub", []string{"f_one", g.op("Unsqueeze", []string{mask, "mask_axes"})}), "f_low"})
	for i, l := range m.layers {
		x = m.layer(g, fmt.Sprintf("layer%d_", i), x, mask, l)
	}
	if m.SentenceEmbedding {
		// The mean of the tokens that are not padding, made inside the graph.
		weight := g.op("Cast", []string{"attention_mask"}, attr{"to", typeFloat})
		row, column := g.op("Unsqueeze", []string{weight, "one"}), g.op("Unsqueeze", []string{weight, "two"})
		mean := g.op("Div", []string{g.op("MatMul", []string{row, x}), g.op("MatMul", []string{row, column})})
		g.named("sentence_embedding", "Squeeze", []string{mean, "one"})
		g.outputs = message(nil, graphOutput, value("sentence_embedding", typeFloat, "batch", strconv.Itoa(s.Hidden)))
	} else {
		g.named("last_hidden_state", "Identity", []string{x})
		g.outputs = message(nil, graphOutput, value("last_hidden_state", typeFloat, "batch", "sequence", strconv.Itoa(s.Hidden)))
	}
	return g.bytes(), g.data
}

func (g *graph) norm(name, x string, n norm) string {
	size := int64(len(n.scale))
	return g.op("LayerNormalization", []string{x, g.floats(name+"_scale", n.scale, size), g.floats(name+"_bias", n.bias, size)},
		attr{"axis", -1}, attr{"epsilon", epsilon})
}

func (g *graph) linear(name, x string, l linear) string {
	out := int64(len(l.b))
	x = g.op("MatMul", []string{x, g.floats(name+"_w", l.w, int64(len(l.w))/out, out)})
	return g.op("Add", []string{x, g.floats(name+"_b", l.b, out)})
}

func (m *Bert) layer(g *graph, name, x, mask string, l layer) string {
	heads := func(part string, w linear, perm ...int64) string {
		v := g.op("Reshape", []string{g.linear(name+part, x, w), "split"})
		return g.op("Transpose", []string{v}, attr{"perm", perm})
	}
	q := heads("q", l.query, 0, 2, 1, 3)
	k := heads("k", l.key, 0, 2, 3, 1)
	v := heads("v", l.value, 0, 2, 1, 3)
	scores := g.op("Mul", []string{g.op("MatMul", []string{q, k}), "f_scale"})
	weights := g.op("Softmax", []string{g.op("Add", []string{scores, mask})}, attr{"axis", -1})
	mixed := g.op("Transpose", []string{g.op("MatMul", []string{weights, v})}, attr{"perm", []int64{0, 2, 1, 3}})
	a := g.linear(name+"o", g.op("Reshape", []string{mixed, "join"}), l.out)
	x = g.norm(name+"attn", g.op("Add", []string{x, a}), l.attn)
	up := g.linear(name+"up", x, l.up)
	erf := g.op("Add", []string{g.op("Erf", []string{g.op("Mul", []string{up, "f_root2"})}), "f_one"})
	gelu := g.op("Mul", []string{g.op("Mul", []string{up, erf}), "f_half"})
	return g.norm(name+"ffn", g.op("Add", []string{x, g.linear(name+"down", gelu, l.down)}), l.ffn)
}

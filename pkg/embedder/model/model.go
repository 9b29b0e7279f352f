// Package model is a sentence embedder in memory: the tokenizer, the task
// prefixes, the pooling and the length of one model directory, over an engine
// that runs its ONNX file.
//
// A text gets the same vector whatever it is batched with and whichever engine
// runs, within rounding. What the directory asks for and is not known here is
// refused at Load, never ignored. The embedding server imports it; the engines
// implement Engine.
package model

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/agentformation/service/pkg/embedder/tokenizer"
	"github.com/agentformation/service/pkg/fault"
)

// Names of the faults of this package.
const (
	NameUnsuitable = "EMBEDDING_MODEL_UNSUITABLE" // Unprocessable: the directory holds no embedder that is known here
	NameBadText    = "INVALID_EMBEDDING_TEXT"     // Invalid: a blank text
	NameBadTask    = "INVALID_EMBEDDING_TASK"     // Invalid: the model knows no such task
)

// Engine runs ONNX files.
type Engine interface {
	// Name says which engine it is, for logs and people.
	Name() string
	// Open loads a file for Run. It plans with Graph.Plan what to feed and to
	// read.
	Open(path string) (Session, error)
}

// Session is a loaded file. Run is called from one goroutine at a time.
type Session interface {
	// Run gives the planned output of a batch. The end of ctx ends it soon, or
	// lets it finish.
	Run(ctx context.Context, b Batch) (Tensor, error)
	// Close frees what the session holds.
	Close() error
}

// Batch is texts as tokens, in rows of the same length; the shorter ones are
// filled up at their end, where Mask is 0.
type Batch struct {
	Rows, Length     int
	Limit            int     // an engine may fill up to this length, if Length is below
	IDs, Mask, Types []int64 // Rows*Length each
}

// Tensor is an output: [rows, hidden] is pooled already, [rows, length, hidden]
// has a vector per token. length may exceed that of the batch.
type Tensor struct {
	Shape []int
	Data  []float32
}

// Config is what Load needs.
type Config struct {
	// ID is the model id, for messages and for what is known of its family.
	ID string
	// Dir holds the files, ONNX is the path of the model within it.
	Dir, ONNX string
	Engine    Engine
	// MaxTokens cuts longer texts, whatever the model allows; 0 is 2048. The
	// memory of a call grows with its square.
	MaxTokens int
	// BatchTokens is the most tokens of a batch, 0 is 4096.
	BatchTokens int
}

// batchRows is the most texts of a batch: more is not faster on a CPU.
const batchRows = 32

// Model is safe for concurrent use; batches run one after the other.
type Model struct {
	cfg     Config
	tok     *tokenizer.Tokenizer
	session Session
	layout  layout
	limit   int
	pad     int64
	dim     int
	turn    chan struct{} // holds one token: who has it runs a batch
}

// Load reads the directory and proves the model with one text. Its error is a
// fault: Unprocessable when the model is of a kind that is not known here.
func Load(ctx context.Context, cfg Config) (m *Model, err error) {
	defer func() {
		if broke := broken(recover()); broke != nil {
			m, err = nil, (&Model{cfg: cfg}).unsuitable(broke)
		}
	}()
	if cfg.MaxTokens == 0 {
		cfg.MaxTokens = 2048
	}
	if cfg.BatchTokens == 0 {
		cfg.BatchTokens = 4096
	}
	m = &Model{cfg: cfg, turn: make(chan struct{}, 1)}
	if err := m.read(); err != nil {
		return nil, m.unsuitable(err)
	}
	session, err := cfg.Engine.Open(filepath.Join(cfg.Dir, filepath.FromSlash(cfg.ONNX)))
	if err != nil {
		return nil, m.unsuitable(fmt.Errorf("%s: %w", cfg.ONNX, err))
	}
	m.session = session
	vectors, _, err := m.embed(ctx, []string{"word"}, "")
	if err != nil {
		_ = session.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("load embedding model %s: %w", cfg.ID, context.Cause(ctx))
		}
		return nil, m.unsuitable(err)
	}
	m.dim = len(vectors[0])
	return m, nil
}

func (m *Model) unsuitable(err error) error {
	return fault.Wrap(fault.Unprocessable, NameUnsuitable, fmt.Sprintf("embedding model %s can't be used: %v", m.cfg.ID, err), err)
}

func (m *Model) read() error {
	data, err := readLimited(m.cfg.Dir, "tokenizer.json", tokenizerLimit)
	if err != nil {
		return err
	}
	if m.tok, err = tokenizer.Parse(data); err != nil {
		return err
	}
	if m.layout, err = readLayout(m.cfg.Dir, m.cfg.ID); err != nil {
		return err
	}
	m.pad = m.layout.pad
	m.limit = m.cfg.MaxTokens
	if m.layout.limit > 0 {
		m.limit = min(m.limit, m.layout.limit)
	}
	if m.limit <= m.tok.Specials() {
		return fmt.Errorf("a text may have %d tokens, which leaves none beside the %d special ones", m.limit, m.tok.Specials())
	}
	if m.layout.vocabulary > 0 && m.tok.Size() > m.layout.vocabulary {
		return fmt.Errorf("tokenizer.json has tokens up to %d, but the model only %d (vocab_size in config.json)", m.tok.Size()-1, m.layout.vocabulary)
	}
	return nil
}

// Dimension is the length of a vector.
func (m *Model) Dimension() int { return m.dim }

// MaxTokens is the length at which a text is cut, special tokens included.
func (m *Model) MaxTokens() int { return m.limit }

// Engine is the name of the engine that runs it.
func (m *Model) Engine() string { return m.cfg.Engine.Name() }

// Close frees the model; no Embed may run or follow.
func (m *Model) Close() error { return m.session.Close() }

// Embed returns a vector for each text, in order, and how many tokens all of
// them had. task is "", "query", "document", "clustering", "classification" or
// any prompt that the model names. Batches of other calls may run in between.
func (m *Model) Embed(ctx context.Context, texts []string, task string) (vectors [][]float32, tokens int, err error) {
	defer func() {
		if broke := broken(recover()); broke != nil {
			vectors, tokens, err = nil, 0, fmt.Errorf("embed with %s: %w", m.cfg.ID, broke)
		}
	}()
	vectors, tokens, err = m.embed(ctx, texts, task)
	if err != nil && ctx.Err() != nil {
		return nil, 0, fmt.Errorf("embed with %s: %w", m.cfg.ID, context.Cause(ctx))
	}
	return vectors, tokens, err
}

// broken is the error that a panic stands for, nil without one. What reads a
// model are libraries, and what they read anybody may have made; the process
// serves the models of others too.
func broken(panicked any) error {
	if panicked == nil {
		return nil
	}
	return fmt.Errorf("it breaks what reads it: %v", panicked)
}

func (m *Model) embed(ctx context.Context, texts []string, task string) ([][]float32, int, error) {
	prefix, err := m.layout.prefix(task)
	if err != nil {
		return nil, 0, err
	}
	encoded := make([]tokenizer.Encoding, len(texts))
	order := make([]int, len(texts))
	tokens := 0
	for i, text := range texts {
		if strings.TrimFunc(text, unicode.IsSpace) == "" {
			return nil, 0, fault.New(fault.Invalid, NameBadText, fmt.Sprintf("text %d of %d is blank: there is nothing to embed", i+1, len(texts)))
		}
		encoded[i], order[i] = m.tok.Encode(prefix+text, m.limit), i
		tokens += len(encoded[i].IDs)
	}
	// Texts of like length share a batch: what is filled up is computed in vain.
	slices.SortStableFunc(order, func(a, b int) int { return len(encoded[b].IDs) - len(encoded[a].IDs) })
	vectors := make([][]float32, len(texts))
	for len(order) > 0 {
		longest := max(len(encoded[order[0]].IDs), 1)
		n := min(len(order), batchRows, max(1, m.cfg.BatchTokens/longest))
		if err := m.batch(ctx, encoded, order[:n], vectors); err != nil {
			return nil, 0, err
		}
		order = order[n:]
	}
	return vectors, tokens, nil
}

// batch computes the vectors of the texts that rows names; the first is the
// longest.
func (m *Model) batch(ctx context.Context, encoded []tokenizer.Encoding, rows []int, vectors [][]float32) error {
	b := Batch{Rows: len(rows), Length: max(len(encoded[rows[0]].IDs), 1), Limit: m.limit}
	size := b.Rows * b.Length
	b.IDs, b.Mask, b.Types = make([]int64, size), make([]int64, size), make([]int64, size)
	for i := range b.IDs {
		b.IDs[i] = m.pad
	}
	for r, i := range rows {
		at := r * b.Length
		copy(b.IDs[at:], encoded[i].IDs)
		copy(b.Types[at:], encoded[i].Types)
		for j := range encoded[i].IDs {
			b.Mask[at+j] = 1
		}
	}
	if ctx.Err() != nil { // a select takes either when both are ready
		return context.Cause(ctx)
	}
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	out, err := m.run(ctx, b)
	if err != nil {
		return fmt.Errorf("run the model: %w", err)
	}
	for r, i := range rows {
		if vectors[i], err = m.layout.vector(out, r, len(encoded[i].IDs)); err != nil {
			return err
		}
		if m.dim != 0 && len(vectors[i]) != m.dim {
			return fmt.Errorf("a vector of %d, not %d numbers", len(vectors[i]), m.dim)
		}
	}
	return nil
}

// run runs a batch and ends the turn, also when the engine panics.
func (m *Model) run(ctx context.Context, b Batch) (Tensor, error) {
	defer func() { <-m.turn }()
	return m.session.Run(ctx, b)
}

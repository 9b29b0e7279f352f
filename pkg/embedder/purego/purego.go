// Package purego runs ONNX files in Go alone, where no ONNX Runtime is: ten
// times slower and more, which small models bear.
//
// It compiles a graph for each shape of a batch and keeps it, so the shapes are
// rounded up to a few. Only the embedding process imports it.
package purego

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	mlctx "github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/onnx-gomlx/onnx"

	"github.com/agentformation/service/pkg/embedder/model"
)

// Shapes are rounded up: the length to a power of two from shortest on, or to
// the longest a text may be, the rows to a power of two. That is at most shapes
// graphs per model: 8 lengths up to 2048 and 6 numbers of rows up to 32.
const (
	shortest = 16
	shapes   = 64
)

// Engine opens files in Go.
type Engine struct{}

// Name implements model.Engine.
func (Engine) Name() string { return "go" }

// Open implements model.Engine.
func (Engine) Open(path string) (s model.Session, err error) {
	defer recovered(&err)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := onnx.Parse(data)
	if err != nil {
		return nil, err
	}
	plan, err := inspect(file).Plan()
	if err != nil {
		return nil, err
	}
	if err := loadExternal(filepath.Dir(path), file); err != nil {
		return nil, err
	}
	ctx := mlctx.New().Reuse() // nothing but the file's own weights
	if err := file.VariablesToContext(ctx); err != nil {
		return nil, err
	}
	// One step after the other: its parallel way races on the buffers that steps
	// share (v0.26). A large product is still spread over the processors.
	backend, err := simplego.New("ops_sequential")
	if err != nil {
		return nil, err
	}
	call := func(ctx *mlctx.Context, inputs []*graph.Node) []*graph.Node {
		named := map[string]*graph.Node{}
		for i, name := range plan.Inputs {
			named[name] = inputs[i]
		}
		return file.CallGraph(ctx, inputs[0].Graph(), named, plan.Output)
	}
	exec, err := mlctx.NewExec(backend, ctx, call)
	if err != nil {
		return nil, err
	}
	exec.SetMaxCache(shapes)
	return &session{plan: plan, exec: exec, ctx: ctx, backend: backend}, nil
}

// recovered turns a panic, which is how the library fails, into an error.
func recovered(err *error) {
	switch r := recover().(type) {
	case nil:
	case error:
		*err = fmt.Errorf("the Go engine: %w", r)
	default:
		*err = fmt.Errorf("the Go engine: %v", r)
	}
}

func inspect(file *onnx.Model) model.Graph {
	kinds := map[dtypes.DType]string{dtypes.Float32: "float32", dtypes.Int64: "int64"}
	ports := func(names []string, shapes []onnx.DynamicShape) []model.Port {
		var out []model.Port
		for i, name := range names {
			kind, ok := kinds[shapes[i].DType]
			if !ok {
				kind = shapes[i].DType.String()
			}
			out = append(out, model.Port{Name: name, Rank: shapes[i].Rank(), Kind: kind})
		}
		return out
	}
	return model.Graph{Inputs: ports(file.Inputs()), Outputs: ports(file.Outputs())}
}

// external is where TensorProto says that a weight lies in another file.
const external = 1

// loadExternal reads the weights that lie in files beside the model.
func loadExternal(dir string, file *onnx.Model) error {
	files := map[string][]byte{}
	for _, weight := range file.Proto.Graph.Initializer {
		if weight.DataLocation != external {
			continue
		}
		at := map[string]string{}
		for _, entry := range weight.ExternalData {
			at[entry.Key] = entry.Value
		}
		name := at["location"]
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the weight %s lies in %q, outside the model", weight.Name, name)
		}
		data, ok := files[name]
		if !ok {
			var err error
			if data, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				if p, ok := errors.AsType[*fs.PathError](err); ok {
					err = p.Err
				}
				return fmt.Errorf("the weights in %s: %w", name, err)
			}
			files[name] = data
		}
		from, to, err := span(at, len(data))
		if err != nil {
			return fmt.Errorf("the weight %s in %s: %w", weight.Name, name, err)
		}
		weight.RawData, weight.DataLocation = data[from:to], 0
	}
	return nil
}

func span(at map[string]string, size int) (from, to int, err error) {
	to = size
	if s := at["offset"]; s != "" {
		if from, err = strconv.Atoi(s); err != nil {
			return 0, 0, fmt.Errorf("offset %q", s)
		}
	}
	if s := at["length"]; s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > size {
			return 0, 0, fmt.Errorf("length %q of %d bytes", s, size)
		}
		to = from + n
	}
	if from < 0 || from > to || to > size {
		return 0, 0, fmt.Errorf("bytes %d to %d of %d", from, to, size)
	}
	return from, to, nil
}

type session struct {
	plan    model.Plan
	exec    *mlctx.Exec
	ctx     *mlctx.Context
	backend backends.Backend
}

// Run implements model.Session. It can't be ended early.
func (s *session) Run(_ context.Context, b model.Batch) (out model.Tensor, err error) {
	defer recovered(&err)
	rows, length := ceiling(1, b.Rows), max(b.Length, min(b.Limit, ceiling(shortest, b.Length)))
	var inputs []any
	for _, name := range s.plan.Inputs {
		inputs = append(inputs, tensors.FromFlatDataAndDimensions(widen(b, name, rows, length), rows, length))
	}
	defer func() {
		for _, in := range inputs {
			_ = in.(*tensors.Tensor).FinalizeAll()
		}
	}()
	results, err := s.exec.Exec(inputs...)
	if err != nil {
		return model.Tensor{}, err
	}
	defer func() {
		for _, r := range results {
			_ = r.FinalizeAll()
		}
	}()
	if len(results) != 1 {
		return model.Tensor{}, fmt.Errorf("%d outputs, want 1", len(results))
	}
	data, err := tensors.CopyFlatData[float32](results[0])
	if err != nil {
		return model.Tensor{}, err
	}
	return model.Tensor{Shape: results[0].Shape().Dimensions, Data: data}, nil
}

// ceiling is the least power of two that n fits in, from least on.
func ceiling(least, n int) int {
	for least < n {
		least *= 2
	}
	return least
}

// widen fills up rows and length. The added rows repeat the first: a row that is
// masked whole would divide by nothing.
func widen(b model.Batch, input string, rows, length int) []int64 {
	data := b.Tensor(input)
	out := make([]int64, rows*length)
	for r := range rows {
		from := 0
		if r < b.Rows {
			from = r * b.Length
		}
		copy(out[r*length:], data[from:from+b.Length])
	}
	return out
}

// Close implements model.Session.
func (s *session) Close() (err error) {
	defer recovered(&err)
	s.exec.Finalize()
	s.ctx.Finalize()
	s.backend.Finalize()
	return nil
}

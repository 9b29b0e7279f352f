// Package ort runs ONNX files with the ONNX Runtime, a shared library that hub
// finds; it is loaded at run time and never linked.
//
// Without the library nothing of it costs anything. Only the embedding process
// imports it: a fault in the library ends that process alone.
package ort

import (
	"context"
	"errors"
	"fmt"
	"slices"

	onnx "github.com/yalue/onnxruntime_go"

	"github.com/agentformation/service/pkg/embedder/model"
)

// Engine opens files with the library.
type Engine struct{ threads int }

// New loads the library at path; threads is how many a run may use, 0 leaves it
// to the library. A process has one library: New is not safe for concurrent
// use, and a second one gives an engine of the first path.
func New(path string, threads int) (*Engine, error) {
	if !onnx.IsInitialized() {
		onnx.SetSharedLibraryPath(path)
		if err := onnx.InitializeEnvironment(onnx.WithLogLevelError()); err != nil {
			return nil, fmt.Errorf("load the ONNX Runtime %s: %w", path, err)
		}
		if err := onnx.DisableTelemetry(); err != nil {
			return nil, fmt.Errorf("switch off the telemetry of the ONNX Runtime: %w", err)
		}
	}
	return &Engine{threads: threads}, nil
}

// Name implements model.Engine.
func (e *Engine) Name() string { return "onnxruntime " + onnx.GetVersion() }

// Open implements model.Engine.
func (e *Engine) Open(path string) (model.Session, error) {
	plan, err := inspect(path)
	if err != nil {
		return nil, err
	}
	options, err := onnx.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	defer options.Destroy() //nolint:errcheck // frees memory, can't fail on a live one
	if e.threads > 0 {
		if err := options.SetIntraOpNumThreads(e.threads); err != nil {
			return nil, err
		}
	}
	// Batches differ in shape, so an arena would keep the greatest of each.
	if err := errors.Join(options.SetCpuMemArena(false), options.SetMemPattern(false)); err != nil {
		return nil, err
	}
	s, err := onnx.NewDynamicAdvancedSession(path, plan.Inputs, []string{plan.Output}, options)
	if err != nil {
		return nil, err
	}
	return &session{plan: plan, onnx: s}, nil
}

// inspect reads inputs and outputs, without the work that makes a run fast.
func inspect(path string) (model.Plan, error) {
	options, err := onnx.NewSessionOptions()
	if err != nil {
		return model.Plan{}, err
	}
	defer options.Destroy() //nolint:errcheck // as above
	if err := options.SetGraphOptimizationLevel(onnx.GraphOptimizationLevelDisableAll); err != nil {
		return model.Plan{}, err
	}
	ins, outs, err := onnx.GetInputOutputInfoWithOptions(path, options)
	if err != nil {
		return model.Plan{}, err
	}
	return model.Graph{Inputs: ports(ins), Outputs: ports(outs)}.Plan()
}

func ports(infos []onnx.InputOutputInfo) []model.Port {
	var out []model.Port
	for _, info := range infos {
		kind := info.DataType.String()
		switch {
		case info.OrtValueType != onnx.ONNXTypeTensor:
			kind = info.OrtValueType.String()
		case info.DataType == onnx.TensorElementDataTypeFloat:
			kind = "float32"
		case info.DataType == onnx.TensorElementDataTypeInt64:
			kind = "int64"
		}
		out = append(out, model.Port{Name: info.Name, Rank: len(info.Dimensions), Kind: kind})
	}
	return out
}

type session struct {
	plan model.Plan
	onnx *onnx.DynamicAdvancedSession
}

// Run implements model.Session.
func (s *session) Run(ctx context.Context, b model.Batch) (model.Tensor, error) {
	var inputs []onnx.Value
	defer func() {
		for _, in := range inputs {
			_ = in.Destroy()
		}
	}()
	shape := onnx.NewShape(int64(b.Rows), int64(b.Length))
	for _, name := range s.plan.Inputs {
		in, err := onnx.NewTensor(shape, b.Tensor(name))
		if err != nil {
			return model.Tensor{}, err
		}
		inputs = append(inputs, in)
	}
	options, err := onnx.NewRunOptions()
	if err != nil {
		return model.Tensor{}, err
	}
	defer options.Destroy() //nolint:errcheck // as above
	outputs := []onnx.Value{nil}
	if err := s.run(ctx, inputs, outputs, options); err != nil {
		return model.Tensor{}, err
	}
	defer outputs[0].Destroy() //nolint:errcheck // as above
	out, ok := outputs[0].(*onnx.Tensor[float32])
	if !ok {
		return model.Tensor{}, fmt.Errorf("the output %s is a %T, not a tensor of float32", s.plan.Output, outputs[0])
	}
	t := model.Tensor{Data: slices.Clone(out.GetData())}
	for _, d := range out.GetShape() {
		t.Shape = append(t.Shape, int(d))
	}
	return t, nil
}

// run ends early with ctx.
func (s *session) run(ctx context.Context, inputs, outputs []onnx.Value, options *onnx.RunOptions) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = options.Terminate()
	})
	err := s.onnx.RunWithOptions(inputs, outputs, options)
	if !stop() {
		<-ended // options are freed next
	}
	return err
}

// Close implements model.Session.
func (s *session) Close() error { return s.onnx.Destroy() }

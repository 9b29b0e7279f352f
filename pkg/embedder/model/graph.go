package model

import (
	"fmt"
	"slices"
	"strings"
)

// Names of the inputs that a sentence embedder may have.
const (
	InputIDs   = "input_ids"
	InputMask  = "attention_mask"
	InputTypes = "token_type_ids"
)

// Port is an input or output of an ONNX file.
type Port struct {
	Name string
	Rank int
	// Kind is the type of its elements, "float32" or "int64" where all is well.
	Kind string
}

// Graph is what an engine finds in a file.
type Graph struct{ Inputs, Outputs []Port }

// Plan is what is fed to a file and read from it.
type Plan struct {
	Inputs []string // in the order of the file
	Output string
}

// pooledOutput is what exporters call the vector of the whole text.
const pooledOutput = "sentence_embedding"

// tokenOutputs is what they call the vectors of the tokens, best first.
var tokenOutputs = []string{"last_hidden_state", "token_embeddings"}

// Plan chooses the output, and refuses what is no sentence embedder. Vectors of
// tokens are taken first: the pooling here is tested, and not every engine knows
// what a graph needs to pool by itself.
func (g Graph) Plan() (Plan, error) {
	var p Plan
	for _, in := range g.Inputs {
		if !slices.Contains([]string{InputIDs, InputMask, InputTypes}, in.Name) {
			return Plan{}, fmt.Errorf("it wants the input %q; known are %s, %s and %s", in.Name, InputIDs, InputMask, InputTypes)
		}
		if in.Kind != "int64" || in.Rank != 2 {
			return Plan{}, fmt.Errorf("its input %q has %d dimensions of %s, want 2 of int64", in.Name, in.Rank, in.Kind)
		}
		p.Inputs = append(p.Inputs, in.Name)
	}
	if !slices.Contains(p.Inputs, InputIDs) {
		return Plan{}, fmt.Errorf("it has no input %s", InputIDs)
	}
	for _, want := range append(slices.Clone(tokenOutputs), pooledOutput) {
		for _, out := range g.Outputs {
			if out.Name == want && out.fits() {
				p.Output = out.Name
				return p, nil
			}
		}
	}
	var names []string
	for _, out := range g.Outputs {
		if out.fits() && out.Rank == 3 {
			p.Output = out.Name
			return p, nil
		}
		names = append(names, fmt.Sprintf("%s (%d dimensions of %s)", out.Name, out.Rank, out.Kind))
	}
	return Plan{}, fmt.Errorf("none of its outputs is a vector per token or text: %s", strings.Join(names, ", "))
}

func (p Port) fits() bool {
	return p.Kind == "float32" && (p.Rank == 3 || p.Rank == 2 && p.Name == pooledOutput)
}

// Tensor returns the data of one of the planned inputs.
func (b Batch) Tensor(input string) []int64 {
	switch input {
	case InputMask:
		return b.Mask
	case InputTypes:
		return b.Types
	}
	return b.IDs
}

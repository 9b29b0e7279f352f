package model

import (
	"errors"
	"fmt"
	"math"
)

// vector makes the vector of one row, whose first n tokens are the text's.
func (l *layout) vector(out Tensor, row, n int) ([]float32, error) {
	size := 1
	for _, d := range out.Shape {
		size *= d
	}
	if len(out.Shape) < 2 || len(out.Shape) > 3 || size != len(out.Data) || row >= out.Shape[0] {
		return nil, fmt.Errorf("the model gave %d numbers in the shape %v", len(out.Data), out.Shape)
	}
	var v []float64
	hidden := out.Shape[len(out.Shape)-1]
	if len(out.Shape) == 2 {
		v = wide(out.Data[row*hidden : (row+1)*hidden])
	} else {
		if n < 1 || n > out.Shape[1] {
			return nil, fmt.Errorf("the model gave %d vectors for %d tokens", out.Shape[1], n)
		}
		at := row * out.Shape[1] * hidden
		tokens := out.Data[at : at+n*hidden]
		for _, mode := range l.pooling {
			v = append(v, pool(mode, tokens, hidden)...)
		}
	}
	return l.finish(v)
}

func wide(in []float32) []float64 {
	out := make([]float64, len(in))
	for i, x := range in {
		out[i] = float64(x)
	}
	return out
}

// pool makes one vector of those of the tokens.
func pool(mode string, tokens []float32, hidden int) []float64 {
	n := len(tokens) / hidden
	switch mode {
	case "cls_token":
		return wide(tokens[:hidden])
	case "lasttoken":
		return wide(tokens[(n-1)*hidden:])
	}
	v := wide(tokens[:hidden])
	for t := 1; t < n; t++ {
		for i, x := range tokens[t*hidden : (t+1)*hidden] {
			if mode == "max_tokens" {
				v[i] = max(v[i], float64(x))
			} else {
				v[i] += float64(x)
			}
		}
	}
	by := 1.0
	switch mode {
	case "mean_tokens":
		by = float64(n)
	case "mean_sqrt_len_tokens":
		by = math.Sqrt(float64(n))
	}
	for i := range v {
		v[i] /= by
	}
	return v
}

// finish normalises where asked to, and refuses a vector that says nothing.
func (l *layout) finish(v []float64) ([]float32, error) {
	sum := 0.0
	for _, x := range v {
		sum += x * x
	}
	if sum == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return nil, errors.New("the model gave a vector that is zero or not a number")
	}
	by := 1.0
	if l.normalise {
		by = 1 / math.Sqrt(sum)
	}
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x * by)
	}
	return out, nil
}

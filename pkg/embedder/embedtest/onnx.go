package embedtest

import (
	"encoding/binary"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields of onnx.proto that are written here.
const (
	modelIR, modelProducer, modelGraph, modelOpset = 1, 2, 7, 8
	graphNode, graphName, graphInit                = 1, 2, 5
	graphInput, graphOutput                        = 11, 12
	nodeInput, nodeOutput, nodeName, nodeOp        = 1, 2, 3, 4
	nodeAttr                                       = 5
	attrName, attrFloat, attrInt, attrInts         = 1, 2, 3, 8
	attrType                                       = 20
	tensorDims, tensorType, tensorName, tensorRaw  = 1, 2, 8, 9
	tensorExternal, tensorLocation                 = 13, 14
	typeFloat, typeInt64                           = 1, 7
	attrIsFloat, attrIsInt, attrIsInts             = 1, 2, 7
	opset                                          = 17 // the first with LayerNormalization
)

// graph collects the parts of an ONNX graph. Weights from external on go to
// data, which is the file that stands beside the model.
type graph struct {
	nodes, weights, inputs, outputs []byte
	external                        string // name of the data file, "" keeps all in one
	data                            []byte
	count                           int
}

func message(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}

func text(b []byte, field protowire.Number, s string) []byte { return message(b, field, []byte(s)) }

func number(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

// attr is one attribute of a node: a float64, an int or a []int64.
type attr struct {
	name  string
	value any
}

func (a attr) bytes() []byte {
	b := text(nil, attrName, a.name)
	switch v := a.value.(type) {
	case float64:
		b = protowire.AppendTag(b, attrFloat, protowire.Fixed32Type)
		b = protowire.AppendFixed32(b, math.Float32bits(float32(v)))
		return number(b, attrType, attrIsFloat)
	case int:
		return number(number(b, attrInt, int64(v)), attrType, attrIsInt)
	case []int64:
		for _, i := range v {
			b = number(b, attrInts, i)
		}
		return number(b, attrType, attrIsInts)
	}
	return b
}

// op adds a node and returns the name of its output.
func (g *graph) op(kind string, inputs []string, attrs ...attr) string {
	g.count++
	return g.named(kind+"_"+strconv.Itoa(g.count), kind, inputs, attrs...)
}

func (g *graph) named(output, kind string, inputs []string, attrs ...attr) string {
	var b []byte
	for _, in := range inputs {
		b = text(b, nodeInput, in)
	}
	b = text(b, nodeOutput, output)
	b = text(b, nodeName, "n_"+output)
	b = text(b, nodeOp, kind)
	for _, a := range attrs {
		b = message(b, nodeAttr, a.bytes())
	}
	g.nodes = message(g.nodes, graphNode, b)
	return output
}

// floats adds a weight, in the external file when there is one.
func (g *graph) floats(name string, values []float32, dims ...int64) string {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	b := tensor(name, typeFloat, dims)
	if g.external != "" && len(dims) > 1 {
		at := len(g.data)
		g.data = append(g.data, raw...)
		for _, kv := range [][2]string{{"location", g.external}, {"offset", strconv.Itoa(at)}, {"length", strconv.Itoa(len(raw))}} {
			b = message(b, tensorExternal, text(text(nil, 1, kv[0]), 2, kv[1]))
		}
		b = number(b, tensorLocation, 1)
	} else {
		b = message(b, tensorRaw, raw)
	}
	g.weights = message(g.weights, graphInit, b)
	return name
}

// ints adds a constant of whole numbers; no dims make it a scalar.
func (g *graph) ints(name string, values []int64, dims ...int64) string {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	g.weights = message(g.weights, graphInit, message(tensor(name, typeInt64, dims), tensorRaw, raw))
	return name
}

func tensor(name string, kind int64, dims []int64) []byte {
	var b []byte
	for _, d := range dims {
		b = number(b, tensorDims, d)
	}
	return text(number(b, tensorType, kind), tensorName, name)
}

// value describes an input or output; a dimension is a number or a name.
func value(name string, kind int64, dims ...string) []byte {
	var shape []byte
	for _, d := range dims {
		if n, err := strconv.ParseInt(d, 10, 64); err == nil {
			shape = message(shape, 1, number(nil, 1, n))
		} else {
			shape = message(shape, 1, text(nil, 2, d))
		}
	}
	return message(text(nil, 1, name), 2, message(nil, 1, message(number(nil, 1, kind), 2, shape)))
}

// bytes is the ONNX file.
func (g *graph) bytes() []byte {
	b := text(g.nodes, graphName, "embedder")
	b = append(append(append(b, g.weights...), g.inputs...), g.outputs...)
	m := number(nil, modelIR, 8)
	m = text(m, modelProducer, "embedtest")
	m = message(m, modelGraph, b)
	return message(m, modelOpset, number(text(nil, 1, ""), 2, opset))
}

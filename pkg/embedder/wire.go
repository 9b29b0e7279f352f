package embedder

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Routes of the embedding process.
const (
	PathEmbed = "/v1/embed" // POST Request -> Response
	PathInfo  = "/v1/info"  // POST Request without texts -> Info
)

// Limits of one request on the wire. Client keeps within them.
const (
	MaxTexts = 64        // texts
	MaxText  = 256 << 10 // bytes of a text; no model here reads as much
	MaxBody  = 24 << 20  // bytes of a request
)

// Request asks for the vectors of texts.
type Request struct {
	Model string   `json:"model"` // local/<owner>/<name>[:<revision>]
	Texts []string `json:"texts,omitempty"`
	Task  string   `json:"task,omitempty"`
}

// Response holds the vectors one after the other, as base64 of little-endian
// float32.
type Response struct {
	Dimension int    `json:"dimension"`
	Tokens    int    `json:"tokens"`
	Vectors   string `json:"vectors"`
}

// Failure is the body of every other answer.
type Failure struct {
	Kind    string `json:"kind"` // as of fault.Kind
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Pack makes a Response of vectors of the same length.
func Pack(vectors [][]float32, dimension, tokens int) Response {
	raw := make([]byte, 0, 4*dimension*len(vectors))
	for _, v := range vectors {
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
	}
	return Response{Dimension: dimension, Tokens: tokens, Vectors: base64.StdEncoding.EncodeToString(raw)}
}

// Unpack returns the n vectors of the Response.
func (r Response) Unpack(n int) ([][]float32, error) {
	raw, err := base64.StdEncoding.DecodeString(r.Vectors)
	if err != nil {
		return nil, fmt.Errorf("read the vectors: %w", err)
	}
	if r.Dimension < 1 || len(raw) != 4*n*r.Dimension {
		return nil, errors.New("read the vectors: their number is not that of the texts")
	}
	vectors := make([][]float32, n)
	for i := range vectors {
		vectors[i] = make([]float32, r.Dimension)
		for j := range vectors[i] {
			vectors[i][j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*(i*r.Dimension+j):]))
		}
	}
	return vectors, nil
}

package fakellm

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"strconv"
	"strings"
)

const (
	defaultDimensions = 256
	maxDimensions     = 8192
	maxInputs         = 2048
)

type embedQuery struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Dimensions int             `json:"dimensions"`
	Format     string          `json:"encoding_format"`
}

// embeddings answers /v1/embeddings: each word adds to a direction of its own,
// so texts that share words lie close.
func (s *Server) embeddings(x *exchange) error {
	var q embedQuery
	if err := json.Unmarshal(x.body, &q); err != nil {
		return fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	inputs, err := q.inputs()
	if err != nil {
		return err
	}
	if s.embedding(x, q.Model, inputs) {
		writeJSON(x.w, http.StatusOK, q.answer(inputs))
	}
	return nil
}

// embedding records a call for vectors and plays the rule that matches it;
// false when that was the reply.
func (s *Server) embedding(x *exchange, model string, inputs []string) bool {
	x.call.Model, x.call.Purpose, x.call.User = model, "embedding", strings.Join(inputs, "\n")
	if x.call.User == probeText {
		x.call.Purpose = probePurpose
	}
	x.begin()
	asked := query{Model: model, purpose: x.call.Purpose, user: x.call.User, last: "user"}
	reply, ok := s.match(&asked)
	if !ok {
		return true
	}
	if reply.Status != 0 || reply.Reset || reply.Stall || reply.Body != "" {
		x.send(&asked, &reply)
		return false
	}
	return x.pass(reply.Gate) && x.pause(reply.delay())
}

func (q *embedQuery) inputs() ([]string, error) {
	if q.Dimensions == 0 {
		q.Dimensions = defaultDimensions
	}
	if q.Model == "" || q.Dimensions < 0 || q.Dimensions > maxDimensions {
		return nil, fmt.Errorf("you must provide a model, and at most %d dimensions", maxDimensions)
	}
	var one string
	if json.Unmarshal(q.Input, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if err := json.Unmarshal(q.Input, &many); err != nil || len(many) == 0 || len(many) > maxInputs {
		return nil, fmt.Errorf("input must be a string or a list of 1 to %d strings", maxInputs)
	}
	return many, nil
}

func (q *embedQuery) answer(inputs []string) []byte {
	b := []byte(`{"object":"list","data":[`)
	tokens := 0
	for i, text := range inputs {
		if i > 0 {
			b = append(b, ',')
		}
		tokens += len(text)/4 + 1
		b = append(b, `{"object":"embedding","index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"embedding":`...)
		b = appendVector(b, embed(text, q.Dimensions), q.Format)
		b = append(b, '}')
	}
	b = append(b, `],"model":`...)
	b = appendQuoted(b, q.Model)
	return append(b, fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d}}`, tokens, tokens)...)
}

// embed adds up one pseudo-random direction per word and normalises the sum.
func embed(text string, dimensions int) []float32 {
	sum := make([]float64, dimensions)
	for word := range wordSet(text + " this is any text") {
		h := fnv.New64a()
		_, _ = h.Write([]byte(word))
		state := h.Sum64()
		for i := range sum {
			state = state*6364136223846793005 + 1442695040888963407
			sum[i] += float64(int64(state)) / math.MaxInt64
		}
	}
	var length float64
	for _, v := range sum {
		length += v * v
	}
	length = math.Sqrt(length)
	out := make([]float32, dimensions)
	for i, v := range sum {
		out[i] = float32(v / length)
	}
	return out
}

func appendVector(b []byte, v []float32, format string) []byte {
	if format == "base64" {
		raw := make([]byte, 0, 4*len(v))
		for _, f := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"')
	}
	b = append(b, '[')
	for i, f := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(f), 'g', -1, 32)
	}
	return append(b, ']')
}

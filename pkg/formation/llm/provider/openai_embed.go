package provider

import (
	"context"
	"net/http"
	"strconv"

	"github.com/agentformation/service/pkg/formation/llm"
)

// Embed makes vectors of texts; see llm.Embedder. The protocol knows no tasks.
func (o *openAI) Embed(ctx context.Context, req llm.EmbedRequest) (llm.Embedding, error) {
	b := appendString([]byte(`{"model":`), req.Model)
	b = append(b, `,"input":[`...)
	for i, text := range req.Texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, text)
	}
	b = append(b, "]}"...)
	var res *http.Response
	if err := o.client.Post(ctx, "embeddings", b, &res); err != nil || res.StatusCode != http.StatusOK {
		failed, _ := o.failure(res, err)
		return llm.Embedding{}, failed
	}
	defer func() { _ = res.Body.Close() }()
	out := embedReply{out: llm.Embedding{Model: req.Model, Vectors: make([][]float32, len(req.Texts))}}
	err := o.whole(res, out.read)
	return out.out, o.scrubbed(err)
}

// embedReply reads the vectors of one call, in whatever order they come.
type embedReply struct {
	out    llm.Embedding
	failed *said
}

func (r *embedReply) read(data []byte) error {
	s := scanner{b: data}
	s.object(func(key []byte) {
		switch string(key) {
		case "data":
			position := 0
			s.array(func() {
				r.vector(&s, position)
				position++
			})
		case "usage":
			s.object(func(key []byte) {
				if string(key) == "prompt_tokens" {
					r.out.Usage.PromptTokens = s.integer()
				} else {
					s.skip()
				}
			})
		case "model":
			if model := s.text(); model != "" {
				r.out.Model = model
			}
		case "error":
			r.failed = readFailure(&s)
		default:
			s.skip()
		}
	})
	r.out.Usage.TotalTokens = r.out.Usage.PromptTokens
	switch {
	case !s.finish():
		return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of embeddings"}
	case r.failed != nil:
		return r.failed.inStream()
	}
	for _, v := range r.out.Vectors {
		if len(v) == 0 {
			return &llm.CallError{Reason: llm.Garbled, Detail: "a text has no vector"}
		}
	}
	return nil
}

func (r *embedReply) vector(s *scanner, position int) {
	var v []float32
	s.object(func(key []byte) {
		switch string(key) {
		case "index":
			position = s.integer()
		case "embedding":
			s.array(func() {
				f, err := strconv.ParseFloat(string(s.raw()), 32)
				if err != nil {
					s.fail()
				}
				v = append(v, float32(f))
			})
		default:
			s.skip()
		}
	})
	if position >= 0 && position < len(r.out.Vectors) {
		r.out.Vectors[position] = v
	}
}

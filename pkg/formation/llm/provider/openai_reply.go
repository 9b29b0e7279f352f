package provider

import (
	"github.com/agentformation/service/pkg/formation/llm"
)

// reply builds a completion from the objects of a stream, or from the one
// object of a plain reply: both have the same shape, but for the name of the
// message.
type reply struct {
	out answer
	// piece and refusal are the text of the object being read.
	piece, refusal []byte
	failed         *said
}

func newReply(model string, yield func(llm.Chunk, error) bool) *reply {
	return &reply{out: answer{model: model, yield: yield}}
}

func (r *reply) answer() *answer { return &r.out }

func (r *reply) end(complete bool) error { return r.out.end(complete) }

// event reads one object and yields its text.
func (r *reply) event(data []byte) (done bool, err error) {
	if string(data) == "[DONE]" {
		return true, nil
	}
	return false, r.plain(data)
}

func (r *reply) plain(data []byte) error {
	s := scanner{b: data}
	r.piece, r.refusal, r.failed = nil, nil, nil
	r.object(&s)
	if !s.finish() {
		return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of a chat completion"}
	}
	if r.failed != nil {
		return r.failed.inStream()
	}
	if err := r.out.check(); err != nil {
		return err
	}
	r.out.say(r.piece)
	if len(r.refusal) > 0 {
		r.out.say(r.refusal)
		r.out.finish = "content_filter"
	}
	return nil
}

func (r *reply) object(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "choices":
			first := true
			s.array(func() {
				if first {
					r.out.begun = true
					r.choice(s)
				} else {
					s.skip()
				}
				first = false
			})
		case "usage":
			r.readUsage(s)
		case "model":
			if model := s.text(); model != "" {
				r.out.model = model
			}
		case "error":
			r.failed = readFailure(s)
		default:
			s.skip()
		}
	})
}

func (r *reply) choice(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "delta", "message":
			r.message(s)
		case "finish_reason":
			if finish := s.textBytes(); len(finish) > 0 && r.out.finish != "content_filter" {
				r.out.finish = finishName(finish)
			}
		default:
			s.skip()
		}
	})
}

// finishName maps the reasons of all servers to the four of llm.Chunk.
func finishName(b []byte) string {
	switch string(b) {
	case "tool_calls", "function_call":
		return "tool_calls"
	case "length", "max_tokens":
		return "length"
	case "content_filter":
		return "content_filter"
	default:
		return "stop"
	}
}

func (r *reply) message(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "content":
			r.content(s)
		case "refusal":
			r.refusal = s.textBytes()
		case "tool_calls":
			position := 0
			s.array(func() {
				r.toolCall(s, position)
				position++
			})
		default:
			s.skip()
		}
	})
}

// content reads a string, or the list of parts that some servers send.
func (r *reply) content(s *scanner) {
	if s.peek() != '[' {
		r.piece = s.textBytes()
		return
	}
	r.piece = nil
	s.array(func() {
		s.object(func(key []byte) {
			if string(key) == "text" {
				r.piece = append(r.piece, s.textBytes()...)
			} else {
				s.skip()
			}
		})
	})
}

// toolCall reads a tool call or a piece of one.
func (r *reply) toolCall(s *scanner, position int) {
	part := partialCall{index: -1}
	s.object(func(key []byte) {
		switch string(key) {
		case "index":
			part.index = max(s.integer(), -1)
		case "id":
			part.id = s.text()
		case "function":
			s.object(func(key []byte) {
				switch string(key) {
				case "name":
					part.name = s.text()
				case "arguments":
					part.args = r.arguments(s)
				default:
					s.skip()
				}
			})
		default:
			s.skip()
		}
	})
	c := r.partial(part, position)
	if c.id == "" {
		c.id = part.id
	}
	if c.name == "" {
		c.name = part.name
	}
	c.args = append(c.args, part.args...)
}

// arguments reads them as the string that the protocol wants, or as the object
// that some servers send.
func (r *reply) arguments(s *scanner) []byte {
	switch s.peek() {
	case '"':
		return s.bytes()
	case '{':
		return s.raw()
	default:
		s.skip()
		return nil
	}
}

// partial finds the call that a piece belongs to: by its index, else (some
// servers have none) by a new id, else by its position among the pieces.
func (r *reply) partial(part partialCall, position int) *partialCall {
	calls := r.out.calls
	if part.index < 0 {
		part.index = position
		for i := range calls {
			if part.id != "" && calls[i].id == part.id {
				return &calls[i]
			}
		}
		if part.id != "" {
			part.index = len(calls)
		} else if n := len(calls); n > 0 && part.name == "" {
			return &calls[n-1]
		}
	}
	return r.out.call(part.index)
}

func (r *reply) readUsage(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "prompt_tokens":
			r.out.usage.PromptTokens = s.integer()
		case "completion_tokens":
			r.out.usage.CompletionTokens = s.integer()
		case "total_tokens":
			r.out.usage.TotalTokens = s.integer()
		case "prompt_tokens_details":
			s.object(func(key []byte) {
				if string(key) == "cached_tokens" {
					r.out.usage.CachedTokens = s.integer()
				} else {
					s.skip()
				}
			})
		default:
			s.skip()
		}
	})
}

// readFailure reads an error in place of a completion; null is none.
func readFailure(s *scanner) *said {
	switch s.peek() {
	case '"':
		return &said{message: s.text()}
	case '{':
		e := &said{}
		s.object(func(key []byte) { e.field(s, key) })
		return e
	default:
		s.skip()
		return nil
	}
}

package provider

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// maxCalls bounds the tool calls of one reply.
const maxCalls = 128

// reply builds a completion from the objects of a stream, or from the one
// object of a plain reply: both have the same shape, but for the name of the
// message.
type reply struct {
	yield   func(llm.Chunk, error) bool
	stopped bool // the reader left

	text   joiner
	calls  []partialCall
	usage  chat.Usage
	finish string
	model  string
	// begun tells that a choice was seen.
	begun bool

	// piece and refusal are the text of the object being read.
	piece, refusal []byte
	failed         *said
	overrun        bool // more than maxCalls tool calls
}

// partialCall is a tool call whose arguments are still coming.
type partialCall struct {
	index int
	id    string
	name  string
	args  []byte
}

func newReply(model string, yield func(llm.Chunk, error) bool) *reply {
	return &reply{model: model, yield: yield}
}

// event reads one object and yields its text.
func (r *reply) event(data []byte) error {
	s := scanner{b: data}
	r.piece, r.refusal, r.failed = nil, nil, nil
	r.object(&s)
	if !s.finish() {
		return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of a chat completion"}
	}
	if r.failed != nil {
		return r.failed.inStream()
	}
	if r.overrun {
		return &llm.CallError{Reason: llm.Garbled, Detail: "more than 128 tool calls in one reply"}
	}
	r.pass(r.text.next(r.piece))
	if len(r.refusal) > 0 {
		r.pass(r.text.next(r.refusal))
		r.finish = "content_filter"
	}
	return nil
}

// pass yields text; empty text tells that the model is at work.
func (r *reply) pass(text string) {
	if !r.stopped {
		r.stopped = !r.yield(llm.Chunk{Text: text}, nil)
	}
}

func (r *reply) object(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "choices":
			first := true
			s.array(func() {
				if first {
					r.begun = true
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
				r.model = model
			}
		case "error":
			r.readFailure(s)
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
			if finish := s.textBytes(); len(finish) > 0 && r.finish != "content_filter" {
				r.finish = finishName(finish)
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
	if part.index < 0 {
		part.index = position
		for i := range r.calls {
			if part.id != "" && r.calls[i].id == part.id {
				return &r.calls[i]
			}
		}
		if part.id != "" {
			part.index = len(r.calls)
		} else if n := len(r.calls); n > 0 && part.name == "" {
			return &r.calls[n-1]
		}
	}
	for i := range r.calls {
		if r.calls[i].index == part.index {
			return &r.calls[i]
		}
	}
	if r.overrun = r.overrun || len(r.calls) == maxCalls; r.overrun {
		return &partialCall{}
	}
	r.calls = append(r.calls, partialCall{index: part.index})
	return &r.calls[len(r.calls)-1]
}

func (r *reply) readUsage(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "prompt_tokens":
			r.usage.PromptTokens = s.integer()
		case "completion_tokens":
			r.usage.CompletionTokens = s.integer()
		case "total_tokens":
			r.usage.TotalTokens = s.integer()
		case "prompt_tokens_details":
			s.object(func(key []byte) {
				if string(key) == "cached_tokens" {
					r.usage.CachedTokens = s.integer()
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
func (r *reply) readFailure(s *scanner) {
	switch s.peek() {
	case '"':
		r.failed = &said{message: s.text()}
	case '{':
		e := &said{}
		s.object(func(key []byte) { e.field(s, key) })
		r.failed = e
	default:
		s.skip()
	}
}

// end yields the Done chunk. complete tells that the server said it was done;
// a stream that just ends is whole only when it gave a finish reason.
func (r *reply) end(complete bool) error {
	if r.stopped {
		return nil
	}
	if !r.begun {
		return &llm.CallError{Reason: llm.Garbled, Detail: "the reply has no choices"}
	}
	if !complete && r.finish == "" {
		return &llm.CallError{Reason: llm.Broken, Detail: "the stream ended before the answer did"}
	}
	if rest := r.text.rest(); rest != "" {
		r.pass(rest)
	}
	if r.stopped {
		return nil
	}
	done := llm.Chunk{Done: true, Usage: r.usage, Finish: r.finish, Model: r.model, Calls: r.toolCalls()}
	if done.Usage.TotalTokens == 0 {
		done.Usage.TotalTokens = done.Usage.PromptTokens + done.Usage.CompletionTokens
	}
	switch {
	case len(done.Calls) > 0 && (done.Finish == "" || done.Finish == "stop"):
		done.Finish = "tool_calls"
	case done.Finish == "":
		done.Finish = "stop"
	}
	r.stopped = !r.yield(done, nil)
	return nil
}

// toolCalls completes the calls; one without an id gets a random one, as its
// result must name it.
func (r *reply) toolCalls() []chat.ToolCall {
	if len(r.calls) == 0 {
		return nil
	}
	calls := make([]chat.ToolCall, len(r.calls))
	for i, c := range r.calls {
		if c.id == "" {
			var id [8]byte
			_, _ = rand.Read(id[:]) // does not fail
			c.id = "call_" + hex.EncodeToString(id[:])
		}
		args, _ := repair(c.args, true)
		calls[i] = chat.ToolCall{ID: c.id, Name: c.name, Args: json.RawMessage(args)}
	}
	return calls
}

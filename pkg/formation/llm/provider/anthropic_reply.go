package provider

import (
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// messageReply builds a completion from the events of a stream, or from the one
// message of a plain reply.
type messageReply struct {
	out answer
	// forced tells that the arguments of the answer tool are the text.
	forced bool
	input  int // tokens of the prompt outside the cache
	wrote  int // tokens written to the cache

	kind     []byte // of the event being read
	index    int
	failed   *said
	streamed bool
}

func newMessageReply(model string, yield func(llm.Chunk, error) bool) *messageReply {
	return &messageReply{out: answer{model: model, yield: yield}}
}

func (r *messageReply) answer() *answer { return &r.out }

// end yields the Done chunk. Only the event that says so completes a stream.
func (r *messageReply) end(complete bool) error {
	if r.forced && r.out.finish == "tool_calls" {
		r.out.finish = "stop" // the tool was the answer
	}
	if !complete {
		r.out.finish = ""
	}
	for i := range r.out.calls {
		if c := &r.out.calls[i]; len(c.args) == 0 {
			c.args = []byte("{}") // a stream has no delta for none
		}
	}
	return r.out.end(complete)
}

// event reads one event of a stream.
func (r *messageReply) event(data []byte) (done bool, err error) {
	r.kind, r.index, r.failed, r.streamed = nil, 0, nil, true
	s := scanner{b: data}
	var text []byte
	heard := false
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			r.kind = s.textBytes()
		case "index":
			r.index = s.integer()
		case "message":
			r.message(&s)
		case "content_block":
			r.block(&s, r.index)
		case "delta":
			var piece []byte
			piece, heard = r.delta(&s)
			text = append(text, piece...)
		case "usage":
			r.usage(&s)
		case "error":
			r.failed = readFailure(&s)
		default:
			s.skip()
		}
	})
	if err := r.check(&s); err != nil {
		return false, err
	}
	if heard {
		r.out.say(text)
	} else {
		r.out.pass("")
	}
	return string(r.kind) == "message_stop", nil
}

// plain reads a whole message, or the error in its place.
func (r *messageReply) plain(data []byte) error {
	r.failed = nil
	s := scanner{b: data}
	r.message(&s)
	return r.check(&s)
}

func (r *messageReply) check(s *scanner) error {
	switch {
	case !s.finish():
		return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of a message"}
	case r.failed != nil:
		return r.failed.inStream()
	}
	return r.out.check()
}

// message reads a message: whole, or without content at the start of a stream.
func (r *messageReply) message(s *scanner) {
	s.object(func(key []byte) {
		switch string(key) {
		case "content":
			at := 0
			s.array(func() {
				r.block(s, at)
				at++
			})
		case "stop_reason":
			r.stop(s)
		case "usage":
			r.usage(s)
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

// block reads a block: whole, or empty where a stream opens it. What is neither
// text nor a call of ours (thoughts, tools that the provider runs) is passed over.
func (r *messageReply) block(s *scanner, index int) {
	var kind, text, input []byte
	var id, name string
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			kind = s.textBytes()
		case "text":
			text = s.textBytes()
		case "id":
			id = s.text()
		case "name":
			name = s.text()
		case "input":
			input = s.raw()
		default:
			s.skip()
		}
	})
	if s.bad {
		return
	}
	r.out.begun = true
	switch {
	case string(kind) == "text":
		r.out.say(text)
	case string(kind) != "tool_use":
	case r.streamed && string(input) == "{}": // the arguments come in deltas
		if !r.forced {
			c := r.out.call(index)
			c.id, c.name = id, name
		}
	case r.forced:
		r.out.say(input)
	default:
		c := r.out.call(index)
		c.id, c.name, c.args = id, name, append(c.args, input...)
	}
}

// delta reads a piece of a block, or the end of the message. heard tells that
// it is text.
func (r *messageReply) delta(s *scanner) (text []byte, heard bool) {
	var kind, partial []byte
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			kind = s.textBytes()
		case "text":
			text = s.textBytes()
		case "partial_json":
			partial = s.textBytes()
		case "stop_reason":
			r.stop(s)
		default:
			s.skip()
		}
	})
	switch string(kind) {
	case "text_delta":
		return text, true
	case "input_json_delta":
		if r.forced {
			return partial, true
		}
		for i := range r.out.calls {
			if r.out.calls[i].index == r.index {
				r.out.calls[i].args = append(r.out.calls[i].args, partial...)
			}
		}
	}
	return nil, false
}

func (r *messageReply) stop(s *scanner) {
	switch reason := s.textBytes(); string(reason) {
	case "":
		return
	case "tool_use":
		r.out.finish = "tool_calls"
	case "max_tokens", "model_context_window_exceeded":
		r.out.finish = "length"
	case "refusal":
		r.out.finish = "content_filter"
	default:
		r.out.finish = "stop"
	}
	r.out.begun = true
}

// usage reads a count; a later one of a stream replaces the earlier. The
// protocol counts the prompt without what was read from or written to the cache.
func (r *messageReply) usage(s *scanner) {
	u := &r.out.usage
	s.object(func(key []byte) {
		switch string(key) {
		case "input_tokens":
			r.input = s.integer()
		case "cache_creation_input_tokens":
			r.wrote = s.integer()
		case "cache_read_input_tokens":
			u.CachedTokens = s.integer()
		case "output_tokens":
			u.CompletionTokens = s.integer()
		default:
			s.skip()
		}
	})
	u.PromptTokens = r.input + r.wrote + u.CachedTokens
	*u = chat.Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, CachedTokens: u.CachedTokens, TotalTokens: u.PromptTokens + u.CompletionTokens}
}

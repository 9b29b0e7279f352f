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

// answer gathers what a provider says into the chunks of llm.Model, whatever
// the protocol.
type answer struct {
	yield   func(llm.Chunk, error) bool
	stopped bool // the reader left

	text   joiner
	calls  []partialCall
	usage  chat.Usage
	finish string // of llm.Chunk; "" when the provider gave none
	model  string
	// begun tells that something of an answer was seen.
	begun   bool
	overrun bool // more than maxCalls tool calls
	// hold keeps the text back until it is whole: it is JSON that was asked for
	// in words, which many models put into a code block.
	hold bool
	held []byte
}

// partialCall is a tool call whose arguments are still coming.
type partialCall struct {
	index int
	id    string
	name  string
	seal  string
	args  []byte
}

// pass yields text; empty text tells that the model is at work.
func (a *answer) pass(text string) {
	if !a.stopped {
		a.stopped = !a.yield(llm.Chunk{Text: text}, nil)
	}
}

// say yields the whole runes of a piece of text.
func (a *answer) say(piece []byte) {
	if a.hold {
		a.held = append(a.held, piece...)
		piece = nil
	}
	a.pass(a.text.next(piece))
}

// call finds the call that a piece belongs to, or begins it.
func (a *answer) call(index int) *partialCall {
	for i := range a.calls {
		if a.calls[i].index == index {
			return &a.calls[i]
		}
	}
	if a.overrun = a.overrun || len(a.calls) == maxCalls; a.overrun {
		return &partialCall{}
	}
	a.calls = append(a.calls, partialCall{index: index})
	return &a.calls[len(a.calls)-1]
}

// check finds what makes an answer unreadable while it comes.
func (a *answer) check() error {
	if a.overrun {
		return &llm.CallError{Reason: llm.Garbled, Detail: "more than 128 tool calls in one reply"}
	}
	return nil
}

// end yields the Done chunk. complete tells that the server said it was done;
// a stream that just ends is whole only when it gave a finish reason.
func (a *answer) end(complete bool) error {
	if a.stopped {
		return nil
	}
	if !a.begun {
		return &llm.CallError{Reason: llm.Garbled, Detail: "the reply has no choices"}
	}
	if !complete && a.finish == "" {
		return &llm.CallError{Reason: llm.Broken, Detail: "the stream ended before the answer did"}
	}
	if a.hold && len(a.held) > 0 {
		a.pass(a.text.next(unfenced(a.held)))
	}
	if rest := a.text.rest(); rest != "" {
		a.pass(rest)
	}
	if a.stopped {
		return nil
	}
	done := llm.Chunk{Done: true, Usage: a.usage, Finish: a.finish, Model: a.model, Calls: a.toolCalls()}
	if done.Usage.TotalTokens == 0 {
		done.Usage.TotalTokens = done.Usage.PromptTokens + done.Usage.CompletionTokens
	}
	switch {
	case len(done.Calls) > 0 && (done.Finish == "" || done.Finish == "stop"):
		done.Finish = "tool_calls"
	case done.Finish == "":
		done.Finish = "stop"
	}
	a.stopped = !a.yield(done, nil)
	return nil
}

// toolCalls completes the calls; one without an id gets a random one, as its
// result must name it.
func (a *answer) toolCalls() []chat.ToolCall {
	if len(a.calls) == 0 {
		return nil
	}
	calls := make([]chat.ToolCall, len(a.calls))
	for i, c := range a.calls {
		if c.id == "" {
			var id [8]byte
			_, _ = rand.Read(id[:]) // does not fail
			c.id = "call_" + hex.EncodeToString(id[:])
		}
		args, _ := repair(c.args, true)
		calls[i] = chat.ToolCall{ID: c.id, Name: c.name, Args: json.RawMessage(args), Seal: c.seal}
	}
	return calls
}

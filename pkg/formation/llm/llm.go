// Package llm is the seam to language models: the Model interface, the chunks
// it streams, and the router from "provider/model" ids to providers. The wire
// protocols live in llm/provider; no vendor type crosses it.
package llm

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Model answers conversations. Implementations are safe for concurrent use.
type Model interface {
	// Stream runs one completion. The sequence yields deltas in order and ends
	// with exactly one chunk whose Done is set, or with an error. Breaking out
	// of the loop or ending ctx releases the connection.
	Stream(ctx context.Context, req Request) iter.Seq2[Chunk, error]
}

// Request is one completion to run.
type Request struct {
	// Model is the id behind the provider prefix, for example "gpt-5-mini".
	Model    string
	Messages []chat.Message
	Tools    []chat.ToolSpec
	// NoCalls tells that the Tools must not be called: providers want those
	// described that the conversation shows calls of.
	NoCalls  bool
	Settings Settings
	// Deltas tells that somebody reads the text while it is made. Without it
	// an adapter may use the provider's plain reply, which costs less.
	Deltas bool
	// Schema, when set, asks for a JSON object of this shape.
	Schema     json.RawMessage
	SchemaName string
	// JSON asks for any JSON object when there is no Schema.
	JSON bool
	// Fresh asks for an answer made anew, past the response cache.
	Fresh bool
	// Account is whom the call is booked on.
	Account Account
	// Purpose names the caller for scripts and traces: "agent", "routing".
	Purpose string
}

// Account is whom a call is booked on. An empty field is nobody in particular.
type Account struct {
	Agent   string
	User    string
	Request string // the turn that asks
}

// Settings are the sampling and transport settings of a call. A nil pointer
// leaves the provider's own default. Timeout, MaxRetries and Fallback are the
// Router's business; adapters do not read them.
type Settings struct {
	Temperature *float64
	MaxTokens   *int
	// Timeout is the longest silence of one attempt: until the first piece of
	// the answer and between two pieces, so a long answer that keeps coming is
	// not cut. A plain reply comes in one piece. 0 means none.
	Timeout    time.Duration
	MaxRetries int // attempts after the first; 0 means none
	// Fallback is the "provider/model" id (or alias) to ask when the first
	// model has used up its attempts; "" means none.
	Fallback string
}

// Chunk is a piece of a completion. A chunk with neither Text, Restarted nor
// Done only tells that the provider is at work (it writes the arguments of a
// tool call, for example); the Router drops it.
type Chunk struct {
	Text string
	// Restarted is set on a chunk of its own: the stream broke after text had
	// been yielded and begins anew, perhaps with another model. The reader
	// drops the text it holds. Only the Router sets it.
	Restarted bool
	// Calls is set on the Done chunk only, complete and in order.
	Calls []chat.ToolCall
	// Done marks the last chunk; the fields below are set with it.
	Done   bool
	Usage  chat.Usage
	Finish string // stop, tool_calls, length, content_filter
	Model  string // the model that answered, as the provider names it
	// Cached tells that the answer is an earlier one, given again; it used no
	// tokens. Only the Router sets it.
	Cached bool
}

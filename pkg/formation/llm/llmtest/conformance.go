package llmtest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

// guard bounds a case that hangs; none takes a tenth of it.
const guard = 2 * time.Minute

// Key is what adapters under test are made with; it must appear in no error.
const Key = "sk-conformance-0123456789"

// Suite is an adapter and what its protocol can express.
type Suite struct {
	// New makes the adapter against a fake server, with Key.
	New func(t *testing.T, fake *fakellm.Server) llm.Model
	// Media are the kinds of parts that the protocol has a place for.
	Media []chat.PartKind
	// TextArgs and TextArgsStreamed tell that the arguments of a tool call are
	// text, valid or not, in a plain reply and in a stream; else they are an
	// object, and a call that can't be one fails the answer.
	TextArgs, TextArgsStreamed bool
	// Embeds tells that the adapter makes embeddings; CountsEmbedded that the
	// protocol tells their tokens.
	Embeds, CountsEmbedded bool
}

// Run checks the promises of llm.Model on an adapter of a wire protocol.
func Run(t *testing.T, s Suite) {
	t.Run("answers", s.answers)
	t.Run("JSON", s.json)
	t.Run("media", s.media)
	t.Run("tools", s.tools)
	t.Run("errors", s.errors)
	t.Run("breaks", s.breaks)
	t.Run("cancel", s.cancel)
	t.Run("wire", s.wire)
	t.Run("embeddings", s.embeddings)
}

// start returns a model and the fake behind it, scripted with rules.
func (s Suite) start(t *testing.T, rules ...fakellm.Rule) (llm.Model, *fakellm.Server) {
	t.Helper()
	fake := fakellm.Start(t, fakellm.Options{Key: Key})
	fake.Add(rules...)
	return s.New(t, fake), fake
}

func ask(message string, deltas bool) llm.Request {
	return llm.Request{
		Model:    "fake-1",
		Messages: []chat.Message{{Role: chat.System, Content: "Be brief."}, {Role: chat.User, Content: message}},
		Deltas:   deltas,
	}
}

// read runs a completion and returns its pieces of text and the rest.
func read(t *testing.T, m llm.Model, req llm.Request) (texts []string, last llm.Chunk, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	done := 0
	for chunk, cerr := range m.Stream(ctx, req) {
		if cerr != nil {
			return texts, last, cerr
		}
		if done > 0 {
			t.Errorf("chunk %+v after the one that is Done", chunk)
		}
		if chunk.Text != "" {
			texts = append(texts, chunk.Text)
		}
		if chunk.Done {
			last = chunk
			done++
		}
	}
	if done != 1 {
		t.Errorf("%d chunks are Done, want 1", done)
	}
	return texts, last, nil
}

// both runs a subtest for the plain and the streamed form of a call.
func both(t *testing.T, run func(t *testing.T, deltas bool)) {
	t.Helper()
	for _, mode := range []struct {
		name   string
		deltas bool
	}{{"plain", false}, {"stream", true}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			run(t, mode.deltas)
		})
	}
}

const poem = "Grüße aus Köln — 你好, 🙂 and a \"quote\"\nwith a second line."

func (s Suite) answers(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, deltas bool) {
		m, fake := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: poem, Chunks: 5}})
		texts, last, err := read(t, m, ask("hello", deltas))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(texts, ""); got != poem {
			t.Errorf("text %q, want %q", got, poem)
		}
		if want := map[bool]int{false: 1, true: 5}[deltas]; len(texts) != want {
			t.Errorf("%d pieces of text, want %d: %q", len(texts), want, texts)
		}
		if last.Finish != "stop" || last.Model != "fake-1" || len(last.Calls) != 0 {
			t.Errorf("finish %q, model %q, calls %v", last.Finish, last.Model, last.Calls)
		}
		u := last.Usage
		if u.PromptTokens <= 0 || u.CompletionTokens <= 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
			t.Errorf("usage %+v does not add up", u)
		}
		if calls := fake.Calls(); len(calls) != 1 || calls[0].Stream != deltas || calls[0].User != "hello" {
			t.Errorf("the server saw %+v", calls)
		}
	})
	t.Run("a missing usage is no error", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: "ok", NoUsage: true}})
			texts, last, err := read(t, m, ask("hello", deltas))
			if err != nil || strings.Join(texts, "") != "ok" || last.Usage != (chat.Usage{}) {
				t.Errorf("texts %q, usage %+v, error %v", texts, last.Usage, err)
			}
		})
	})
	t.Run("the length limit shows", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: "cut", Finish: "length"}})
			if _, last, err := read(t, m, ask("hello", deltas)); err != nil || last.Finish != "length" {
				t.Errorf("finish %q, error %v", last.Finish, err)
			}
		})
	})
	t.Run("what the provider's cache gave shows", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: "ok", CachedTokens: 900}})
			_, last, err := read(t, m, ask("hello", deltas))
			u := last.Usage
			if err != nil || u.CachedTokens != 900 || u.PromptTokens <= 900 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
				t.Errorf("usage %+v, error %v", u, err)
			}
		})
	})
}

func (s Suite) tools(t *testing.T) {
	t.Parallel()
	rule := fakellm.Rule{Reply: fakellm.Reply{Chunks: 6, Calls: []fakellm.ToolCall{
		{ID: "call_1", Name: "weather", Args: `{"city":"Zürich 🙂","days":3}`},
		{ID: "call_2", Name: "clock", Args: `{"zone":"Europe/Zurich"}`},
		{ID: "call_3", Name: "noop", Args: `{}`},
	}}}
	want := []chat.ToolCall{
		{ID: "call_1", Name: "weather", Args: json.RawMessage(`{"city":"Zürich 🙂","days":3}`)},
		{ID: "call_2", Name: "clock", Args: json.RawMessage(`{"zone":"Europe/Zurich"}`)},
		{ID: "call_3", Name: "noop", Args: json.RawMessage(`{}`)},
	}
	both(t, func(t *testing.T, deltas bool) {
		m, fake := s.start(t, rule)
		req := ask("what is the weather?", deltas)
		req.Tools = []chat.ToolSpec{{Name: "weather", Description: "tells it", Schema: json.RawMessage(`{"type":"object"}`)}, {Name: "noop"}}
		texts, last, err := read(t, m, req)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, last.Calls, cmpopts.IgnoreFields(chat.ToolCall{}, "Seal")); diff != "" || last.Finish != "tool_calls" || len(texts) != 0 {
			t.Errorf("finish %q, texts %q, calls (-want +got):\n%s", last.Finish, texts, diff)
		}
		req.Messages = append(req.Messages,
			chat.Message{Role: chat.Assistant, Calls: last.Calls},
			chat.Message{Role: chat.Tool, CallID: "call_1", Content: "rain"},
			chat.Message{Role: chat.Tool, CallID: "call_2", Content: ""},
			chat.Message{Role: chat.Tool, CallID: "call_3", Content: "sunny"})
		texts, _, err = read(t, m, req)
		if got := strings.Join(texts, ""); err != nil || got != "The tool answered: sunny" {
			t.Errorf("after the tool: %q, error %v", got, err)
		}
		if n := fake.Count(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
	t.Run("text may come before the calls", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: "let me look", Calls: []fakellm.ToolCall{{ID: "c", Name: "f", Args: `{"a":"b"}`}}}})
			texts, last, err := read(t, m, ask("go", deltas))
			if err != nil || strings.Join(texts, "") != "let me look" || len(last.Calls) != 1 || string(last.Calls[0].Args) != `{"a":"b"}` || last.Finish != "tool_calls" {
				t.Errorf("texts %q, last %+v, error %v", texts, last, err)
			}
		})
	})
	t.Run("calls can be forbidden", func(t *testing.T) {
		t.Parallel()
		m, fake := s.start(t)
		req := ask("go", false)
		req.Tools, req.NoCalls = []chat.ToolSpec{{Name: "weather"}}, true
		if _, _, err := read(t, m, req); err != nil {
			t.Fatal(err)
		}
		body := strings.ToLower(fake.Calls()[0].Body)
		if !strings.Contains(body, "weather") || !strings.Contains(body, `"none"`) {
			t.Errorf("the request says %s", body)
		}
	})
	t.Run("invalid arguments", s.invalidArguments)
}

// invalidArguments are passed on where the protocol can carry them, so that the
// model can be told; else the answer fails and may be asked for again.
func (s Suite) invalidArguments(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, deltas bool) {
		m, _ := s.start(t, fakellm.Rule{Times: 1, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "c", Name: "f", Args: `{"a":`}}}})
		req := ask("go", deltas)
		_, last, err := read(t, m, req)
		switch {
		case !s.TextArgs && !s.TextArgsStreamed:
			var failed *llm.CallError
			if !errors.As(err, &failed) || failed.Reason != llm.Garbled {
				t.Errorf("calls %v, error %v, want one that may be tried again", last.Calls, err)
			}
			return
		case deltas && s.TextArgsStreamed, !deltas && s.TextArgs:
			if err != nil || len(last.Calls) != 1 || string(last.Calls[0].Args) != `{"a":` {
				t.Fatalf("calls %v, error %v", last.Calls, err)
			}
		default:
			return // the protocol has no place for them here
		}
		req.Messages = append(req.Messages, chat.Message{Role: chat.Assistant, Calls: last.Calls}, chat.Message{Role: chat.Tool, CallID: "c", Content: "not valid JSON"})
		if _, _, err = read(t, m, req); err != nil {
			t.Errorf("the model can't be told: %v", err)
		}
	})
}

func (s Suite) errors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		reply  fakellm.Reply
		reason llm.Reason
		wait   time.Duration
	}{
		{"400", fakellm.Reply{Status: 400, Message: "context too long"}, llm.Refused, 0},
		{"401", fakellm.Reply{Status: 401, Message: "Incorrect API key provided: sk-conf****6789", Code: "invalid_api_key"}, llm.Rejected, 0},
		{"403", fakellm.Reply{Status: 403, Message: "key " + Key + " may not use this model"}, llm.Rejected, 0},
		{"404", fakellm.Reply{Status: 404, Message: "no model fake-1", Code: "model_not_found"}, llm.Missing, 0},
		{"429 with seconds", fakellm.Reply{Status: 429, Headers: map[string]string{"Retry-After": "7"}}, llm.Throttled, 7 * time.Second},
		{"429 with milliseconds", fakellm.Reply{Status: 429, Headers: map[string]string{"Retry-After-Ms": "250", "Retry-After": "7"}}, llm.Throttled, 250 * time.Millisecond},
		{"429 of an empty account", fakellm.Reply{Status: 429, Message: "pay first", Code: "insufficient_quota"}, llm.Exhausted, 0},
		{"500", fakellm.Reply{Status: 500}, llm.Overloaded, 0},
		{"503 of a proxy", fakellm.Reply{Status: 503, Body: "<html>upstream is down</html>"}, llm.Overloaded, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, deltas bool) {
				m, fake := s.start(t, fakellm.Rule{Reply: c.reply})
				_, _, err := read(t, m, ask("hello", deltas))
				var failed *llm.CallError
				if !errors.As(err, &failed) {
					t.Fatalf("error %v, want a *llm.CallError", err)
				}
				if failed.Reason != c.reason || failed.Status != c.reply.Status || failed.RetryAfter != c.wait {
					t.Errorf("%+v, want reason %d, status %d, wait %s", failed, c.reason, c.reply.Status, c.wait)
				}
				if strings.Contains(err.Error(), Key[:7]) {
					t.Errorf("the error shows the key: %v", err)
				}
				if n := fake.Count(); n != 1 {
					t.Errorf("%d calls: retries are the router's business", n)
				}
			})
		})
	}
}

// breaks are replies that do not end as they should.
func (s Suite) breaks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		deltas bool
		reply  fakellm.Reply
		texts  int // pieces that arrive before the error
		reason llm.Reason
	}{
		{"reset", false, fakellm.Reply{Reset: true}, 0, llm.Broken},
		{"reset of a stream", true, fakellm.Reply{Reset: true}, 0, llm.Broken},
		{"a plain reply cut", false, fakellm.Reply{Text: poem, CutBytes: 90}, 0, llm.Broken},
		{"cut after the headers", true, fakellm.Reply{Text: poem, Cut: true}, 0, llm.Broken},
		{"cut after two deltas", true, fakellm.Reply{Text: poem, Chunks: 5, CutAfter: 3}, 2, llm.Broken},
		{"cut inside a rune", true, fakellm.Reply{Text: poem, Chunks: 3, CutRune: true}, 0, llm.Broken},
		{"a plain reply cut inside a rune", false, fakellm.Reply{Text: poem, CutRune: true}, 0, llm.Broken},
		{"ended without an end", true, fakellm.Reply{Text: poem, Chunks: 5, EndAfter: 3}, 2, llm.Broken},
		{"ended without a word", true, fakellm.Reply{RawStream: "\n"}, 0, llm.Garbled},
		{"a plain reply of garbage", false, fakellm.Reply{Body: `{"choices":[{"message":{"content":"x"`}, 0, llm.Garbled},
		{"a plain reply without choices", false, fakellm.Reply{Empty: true}, 0, llm.Garbled},
		{"a stream without choices", true, fakellm.Reply{Empty: true}, 0, llm.Garbled},
		{"a frame of garbage", true, fakellm.Reply{Text: poem, Chunks: 5, GarbageAfter: 2}, 1, llm.Garbled},
		{"an error inside a stream", true, fakellm.Reply{Text: poem, Chunks: 5, FailAfter: 2, Message: "overloaded"}, 1, llm.Overloaded},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, _ := s.start(t, fakellm.Rule{Reply: c.reply})
			texts, _, err := read(t, m, ask("hello", c.deltas))
			var failed *llm.CallError
			if !errors.As(err, &failed) || failed.Reason != c.reason {
				t.Fatalf("error %#v, want reason %d", err, c.reason)
			}
			if len(texts) != c.texts {
				t.Errorf("%d pieces of text before the error, want %d: %q", len(texts), c.texts, texts)
			}
		})
	}
}

func (s Suite) cancel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		deltas bool
		reply  fakellm.Reply
	}{
		{"before a plain reply", false, fakellm.Reply{Stall: true}},
		{"before the first token", true, fakellm.Reply{Stall: true}},
		{"in the middle", true, fakellm.Reply{Text: poem, Chunks: 5, StallAfter: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, fake := s.start(t, fakellm.Rule{Reply: c.reply})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := llm.Collect(m.Stream(ctx, ask("hello", c.deltas)), nil); err == nil {
				t.Error("a cancelled call has no error")
			}
			waitIdle(t, fake)
		})
	}
	t.Run("by leaving the loop", func(t *testing.T) {
		t.Parallel()
		m, fake := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: poem, Chunks: 5, StallAfter: 3}})
		for chunk, err := range m.Stream(t.Context(), ask("hello", true)) {
			if err != nil {
				t.Fatal(err)
			}
			if chunk.Text != "" {
				break
			}
		}
		waitIdle(t, fake)
	})
}

// waitIdle waits until the server has seen the caller leave.
func waitIdle(t *testing.T, fake *fakellm.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	if err := fake.WaitActive(ctx, 0); err != nil {
		t.Errorf("the connection was not released: %v", err)
	}
}

// wire holds what networks and servers do to correct replies.
func (s Suite) wire(t *testing.T) {
	t.Parallel()
	t.Run("borders anywhere", s.bordersAnywhere)
	t.Run("a slow first token", s.slowFirstToken)
	t.Run("deltas do not wait for the end", s.deltasAtOnce)
	t.Run("connections are used again", s.connectionsAgain)
}

func (s Suite) bordersAnywhere(t *testing.T) {
	t.Parallel()
	m, _ := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: poem, Chunks: 3, Pieces: 400}})
	texts, last, err := read(t, m, ask("hello", true))
	if got := strings.Join(texts, ""); err != nil || got != poem || last.Finish != "stop" {
		t.Errorf("text %q, finish %q, error %v", got, last.Finish, err)
	}
}

func (s Suite) slowFirstToken(t *testing.T) {
	t.Parallel()
	m, fake := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: "late", Gate: "go"}})
	go func() {
		if fake.WaitCount(t.Context(), 1) == nil {
			fake.Release("go")
		}
	}()
	texts, _, err := read(t, m, ask("hello", true))
	if got := strings.Join(texts, ""); err != nil || got != "late" {
		t.Errorf("text %q, error %v", got, err)
	}
}

func (s Suite) deltasAtOnce(t *testing.T) {
	t.Parallel()
	m, fake := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: poem, Chunks: 5, Gate: "go", GateAfter: 3}})
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	reply, err := llm.Collect(m.Stream(ctx, ask("hello", true)), func(string) error {
		fake.Release("go") // the rest comes only when the beginning was seen
		return nil
	})
	if err != nil || reply.Text != poem {
		t.Errorf("text %q, error %v", reply.Text, err)
	}
}

func (s Suite) connectionsAgain(t *testing.T) {
	t.Parallel()
	m, fake := s.start(t)
	for i := range 6 {
		if _, _, err := read(t, m, ask("hello", i%2 == 0)); err != nil {
			t.Fatal(err)
		}
	}
	// Where the machine stands still for a moment between the last word of a reply
	// and its end, a connection is given up.
	if n := fake.Connections(); n > 2 {
		t.Errorf("6 calls in a row used %d connections", n)
	}
}

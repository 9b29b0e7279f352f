package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// counting answers with the number of the ask.
func counting(asked *int) modelFunc {
	return func(_ context.Context, req llm.Request, yield func(llm.Chunk, error) bool) {
		*asked++
		text := fmt.Sprintf("Answer %d. It is good. ", *asked)
		if last := req.Messages[len(req.Messages)-1].Content; strings.Contains(last, "tool") {
			args := json.RawMessage(`{}`)
			if strings.Contains(last, "broken") {
				args = json.RawMessage(`{"a":`)
			}
			yield(llm.Chunk{Done: true, Finish: "tool_calls", Calls: []chat.ToolCall{{ID: "c", Name: "f", Args: args}}}, nil)
			return
		}
		finish := "stop"
		if req.Purpose == "cut" {
			finish = "length"
		}
		if yield(llm.Chunk{Text: text}, nil) {
			yield(llm.Chunk{Done: true, Finish: finish, Usage: chat.Usage{TotalTokens: 5}, Model: "real"}, nil)
		}
	}
}

func caching(asked *int, cfg llm.Caching, local llm.Embedder) llm.Config {
	cfg.Enabled = true
	return llm.Config{
		Providers: map[string]llm.Provider{"p": only(counting(asked)), "q": only(counting(asked))},
		Aliases:   map[string]string{"fast": "p/m"}, Caching: cfg, Local: local,
	}
}

func question(text string) llm.Request {
	return llm.Request{Messages: []chat.Message{{Role: chat.System, Content: "s"}, {Role: chat.User, Content: text}}}
}

func TestCache_AnswersEqualRequestsOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	meter := &ledger{allow: 1}
	cfg := caching(&asked, llm.Caching{}, nil)
	cfg.Meter = meter
	r := newRouter(t, cfg)
	for i, id := range []string{"p/m", "fast", "p/m"} {
		reply, err := llm.Collect(r.Stream(t.Context(), id, question("hello")), nil)
		if err != nil || reply.Text != "Answer 1. It is good. " || reply.Last.Model != "real" || reply.Last.Cached != (i > 0) || (i > 0) != (reply.Last.Usage == chat.Usage{}) {
			t.Errorf("ask %d: %+v, error %v", i, reply, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestCache_TellsRequestsApart(t *testing.T) {
	t.Parallel()
	half, limit := 0.5, 7
	image := chat.Part{Kind: chat.Image, MediaType: "image/png", Data: []byte("a")}
	changes := map[string]func(*llm.Request){
		"system":   func(r *llm.Request) { r.Messages[0].Content = "t" },
		"question": func(r *llm.Request) { r.Messages[1].Content = "hello?" },
		"border":   func(r *llm.Request) { r.Messages[0].Content, r.Messages[1].Content = "shel", "lo" },
		"history": func(r *llm.Request) {
			r.Messages = append(r.Messages, chat.Message{Role: chat.Assistant, Content: "x"})
		},
		"part":        func(r *llm.Request) { r.Messages[1].Parts = []chat.Part{image} },
		"tools":       func(r *llm.Request) { r.Tools = []chat.ToolSpec{{Name: "f"}} },
		"tool schema": func(r *llm.Request) { r.Tools = []chat.ToolSpec{{Name: "f", Schema: json.RawMessage(`{}`)}} },
		"no calls":    func(r *llm.Request) { r.Tools, r.NoCalls = []chat.ToolSpec{{Name: "f"}}, true },
		"temperature": func(r *llm.Request) { r.Settings.Temperature = &half },
		"limit":       func(r *llm.Request) { r.Settings.MaxTokens = &limit },
		"schema":      func(r *llm.Request) { r.Schema = json.RawMessage(`{}`) },
		"JSON":        func(r *llm.Request) { r.JSON = true },
		"call": func(r *llm.Request) {
			r.Messages[0] = chat.Message{Role: chat.Assistant, Calls: []chat.ToolCall{{ID: "1", Name: "f"}}}
		},
		"result": func(r *llm.Request) { r.Messages[0] = chat.Message{Role: chat.Tool, CallID: "1", Content: "s"} },
	}
	asked := 0
	r := newRouter(t, caching(&asked, llm.Caching{}, nil))
	want := 0
	ask := func(id string, req llm.Request) {
		t.Helper()
		want++
		if _, err := heard(r.Stream(t.Context(), id, req)); err != nil {
			t.Fatal(err)
		}
	}
	ask("p/m", question("hello"))
	ask("q/m", question("hello"))
	ask("p/n", question("hello"))
	for name, change := range changes {
		req := question("hello")
		change(&req)
		ask("p/m", req)
		if asked != want {
			t.Fatalf("%s: the answer to another request was given", name)
		}
	}
}

func TestCache_DoesNotKeepWhatIsNotWorthIt(t *testing.T) {
	t.Parallel()
	tool := []chat.ToolSpec{{Name: "f"}}
	for name, c := range map[string]struct {
		change func(*llm.Request)
		asked  int
	}{
		"a fresh answer":              {func(r *llm.Request) { r.Fresh = true }, 2},
		"a cut answer":                {func(r *llm.Request) { r.Purpose = "cut" }, 2},
		"JSON that is none":           {func(r *llm.Request) { r.JSON = true }, 2},
		"a shape that it has not":     {func(r *llm.Request) { r.Schema = json.RawMessage(`{}`) }, 2},
		"a call of an unknown tool":   {func(r *llm.Request) { r.Messages[1].Content = "tool" }, 2},
		"a call of a known tool":      {func(r *llm.Request) { r.Messages[1].Content, r.Tools = "tool", tool }, 1},
		"a call with wrong JSON":      {func(r *llm.Request) { r.Messages[1].Content, r.Tools = "broken tool", tool }, 2},
		"an answer as it ought to be": {func(*llm.Request) {}, 1},
	} {
		asked := 0
		r := newRouter(t, caching(&asked, llm.Caching{}, nil))
		for range 2 {
			req := question("hello")
			c.change(&req)
			if _, err := heard(r.Stream(t.Context(), "p/m", req)); err != nil {
				t.Fatal(err)
			}
		}
		if asked != c.asked {
			t.Errorf("%s: asked %d times, want %d", name, asked, c.asked)
		}
	}
}

func TestCache_DoesNotKeepTheFallbacksAnswer(t *testing.T) {
	t.Parallel()
	asked, failed := 0, 0
	cfg := caching(&asked, llm.Caching{}, nil)
	cfg.Providers["bad"] = only(modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		failed++
		yield(llm.Chunk{}, &llm.CallError{Reason: llm.Refused})
	}))
	r := newRouter(t, cfg)
	req := question("hello")
	req.Settings.Fallback = "p/m"
	for range 2 {
		if _, err := heard(r.Stream(t.Context(), "bad/m", req)); err != nil {
			t.Fatal(err)
		}
	}
	if failed != 2 || asked != 2 {
		t.Errorf("asked %d and %d times", failed, asked)
	}
}

func TestCache_ReplaysAStreamInPieces(t *testing.T) {
	t.Parallel()
	asked := 0
	r := newRouter(t, caching(&asked, llm.Caching{ChunkStrategy: "sentences", ChunkLength: 1}, nil))
	req := question("hello")
	req.Deltas = true
	for _, want := range [][]string{{"Answer 1. It is good. ", "<done>"}, {"Answer 1. ", "It is good. ", "<done>"}} {
		got, err := heard(r.Stream(t.Context(), "p/m", req))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	for _, err := range r.Stream(t.Context(), "p/m", req) {
		if err != nil {
			t.Error(err)
		}
		break // a reader who leaves is not yielded to again
	}
}

func TestCache_ForgetsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := newRouter(t, caching(&asked, llm.Caching{TTL: time.Hour}, nil))
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 1}, {59 * time.Minute, 1}, {time.Minute, 2}, {59 * time.Minute, 2}} {
			<-time.After(step.wait)
			if _, err := heard(r.Stream(t.Context(), "p/m", question("hello"))); err != nil || asked != step.want {
				t.Errorf("after %s more: asked %d times, want %d, error %v", step.wait, asked, step.want, err)
			}
		}
	})
}

func TestCache_KeepsTheAnswersUsedLast(t *testing.T) {
	t.Parallel()
	asked := 0
	r := newRouter(t, caching(&asked, llm.Caching{MaxEntries: 2}, nil))
	for _, step := range []struct {
		text string
		want int
	}{{"a", 1}, {"b", 2}, {"a", 2}, {"c", 3}, {"a", 3}, {"b", 4}} {
		if _, err := heard(r.Stream(t.Context(), "p/m", question(step.text))); err != nil || asked != step.want {
			t.Errorf("%q: asked %d times, want %d, error %v", step.text, asked, step.want, err)
		}
	}
}

// meaning places texts by their first word.
func meaning(embedded *int) embedder {
	return embedder{embed: func(req llm.EmbedRequest) (llm.Embedding, error) {
		var out llm.Embedding
		for _, text := range req.Texts {
			*embedded++
			v := []float32{0, 1, 0.02}
			if strings.HasPrefix(text, "weather") {
				v = []float32{1, 0, float32(len(text)) / 10000}
			}
			out.Vectors = append(out.Vectors, v)
		}
		return out, nil
	}}
}

func TestCache_KnowsAnotherWording(t *testing.T) {
	t.Parallel()
	asked, embedded := 0, 0
	near := llm.Caching{P: 0.98, Embedding: "local/o/e"}
	r := newRouter(t, caching(&asked, near, meaning(&embedded)))
	ask := func(user, text string, want int) {
		t.Helper()
		req := question(text)
		req.Account.User, req.Tools = user, []chat.ToolSpec{{Name: "f"}}
		if _, err := heard(r.Stream(t.Context(), "p/m", req)); err != nil || asked != want {
			t.Errorf("%s: %q: asked %d times, want %d, error %v", user, text, asked, want, err)
		}
	}
	ask("ann", "weather in Rome", 1)
	if embedded != 0 {
		t.Errorf("%d texts embedded with nothing to compare", embedded)
	}
	ask("ann", "weather of Rome, please", 1)
	ask("ann", "news from Rome", 2)
	ask("bob", "weather of Rome, now", 3) // an answer may repeat what ann said
	ask("bob", "weather in Rome", 3)      // but all of this one was in the request
	ask("ann", "weather of Rome on day 12", 4)
	ask("ann", "weather of Rome, day 13", 5) // numbers are not alike
	ask("ann", "weather of Rome for day 12", 5)
	ask("eve", "weather tool", 6)
	ask("eve", "weather tools", 7) // calls are not repeated for other words
}

func TestCache_ComparesNoWordingsWithoutAnEmbedder(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]llm.Caching{
		"hash only": {P: 0.98, Embedding: "local/o/e", HashOnly: true}, "no model": {P: 0.98}, "a broken model": {P: 0.98, Embedding: "local/o/none"},
	} {
		asked, embedded := 0, 0
		local := meaning(&embedded)
		if name == "a broken model" {
			local.embed = func(llm.EmbedRequest) (llm.Embedding, error) {
				return llm.Embedding{}, &llm.CallError{Reason: llm.Broken}
			}
		}
		r := newRouter(t, caching(&asked, cfg, local))
		for _, text := range []string{"weather in Rome", "weather of Rome"} {
			if _, err := heard(r.Stream(t.Context(), "p/m", question(text))); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if asked != 2 || embedded != 0 {
			t.Errorf("%s: asked %d times, %d embedded", name, asked, embedded)
		}
	}
}

func TestRouter_LeavesADeadModelAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead, asked := 0, 0
		cfg := caching(&asked, llm.Caching{}, nil)
		cfg.Caching.Enabled = false
		cfg.Providers["dead"] = only(modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
			dead++
			<-time.After(2 * time.Second)
			yield(llm.Chunk{}, &llm.CallError{Reason: llm.Overloaded})
		}))
		r := newRouter(t, cfg)
		req := question("hello")
		req.Settings = llm.Settings{MaxRetries: 9, Fallback: "p/m"}
		start := time.Now()
		for i := range 10 {
			if _, err := heard(r.Stream(t.Context(), "dead/m", req)); err != nil || asked != i+1 {
				t.Fatalf("call %d: error %v", i, err)
			}
		}
		if took := time.Since(start); dead != 5 || took > 20*time.Second {
			t.Errorf("%d attempts with the dead model in %s, want 5", dead, took)
		}
		req.Settings.Fallback = ""
		_, err := heard(r.Stream(t.Context(), "dead/m", req))
		if err == nil || !strings.Contains(err.Error(), "left alone") || dead != 5 {
			t.Errorf("without a fallback: %v", err)
		}
		<-time.After(15 * time.Second)
		_, _ = heard(r.Stream(t.Context(), "dead/m", req))
		if dead != 6 {
			t.Errorf("%d attempts, want one probe", dead)
		}
	})
}

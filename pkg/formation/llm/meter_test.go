package llm_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// ledger is a meter that allows a number of attempts and keeps what it was told.
type ledger struct {
	allow int

	mu      sync.Mutex
	calls   []llm.Call
	settled []chat.Usage
	freed   int
}

var errBudget = fault.New(fault.RateLimited, "BUDGET_EXCEEDED", "the daily budget is used up")

func (l *ledger) Reserve(_ context.Context, c llm.Call) (llm.Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) == l.allow {
		return nil, errBudget
	}
	l.calls = append(l.calls, c)
	return l, nil
}

func (l *ledger) Settle(ctx context.Context, u chat.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		panic("settled with a context that is over")
	}
	l.settled = append(l.settled, u)
}

func (l *ledger) Release(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		panic("released with a context that is over")
	}
	l.freed++
}

// scripted answers each attempt with the next of its steps.
type scripted struct {
	steps []func(yield func(llm.Chunk, error) bool)
	asked int
}

func (s *scripted) model() modelFunc {
	return func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		step := s.steps[min(s.asked, len(s.steps)-1)]
		s.asked++
		step(yield)
	}
}

func answers(u chat.Usage) func(yield func(llm.Chunk, error) bool) {
	return func(yield func(llm.Chunk, error) bool) {
		if yield(llm.Chunk{Text: "123456"}, nil) {
			yield(llm.Chunk{Done: true, Usage: u}, nil)
		}
	}
}

func breaks(text string, reason llm.Reason) func(yield func(llm.Chunk, error) bool) {
	return func(yield func(llm.Chunk, error) bool) {
		if text == "" || yield(llm.Chunk{Text: text}, nil) {
			yield(llm.Chunk{}, &llm.CallError{Reason: reason})
		}
	}
}

func TestMeter_BooksEachAttemptOnce(t *testing.T) {
	t.Parallel()
	used := chat.Usage{PromptTokens: 7, CompletionTokens: 8, TotalTokens: 15}
	for _, c := range []struct {
		name    string
		steps   []func(yield func(llm.Chunk, error) bool)
		calls   int
		settled []chat.Usage
		freed   int
	}{
		{"as used", []func(func(llm.Chunk, error) bool){answers(used)}, 1, []chat.Usage{used}, 0},
		{"not told", []func(func(llm.Chunk, error) bool){answers(chat.Usage{})}, 1, []chat.Usage{{PromptTokens: 10, CompletionTokens: 2, TotalTokens: 12}}, 0},
		{"failed before a word", []func(func(llm.Chunk, error) bool){breaks("", llm.Overloaded), answers(used)}, 2, []chat.Usage{used}, 1},
		{
			"broke after words",
			[]func(func(llm.Chunk, error) bool){breaks("123", llm.Broken), answers(used)},
			2,
			[]chat.Usage{{PromptTokens: 10, CompletionTokens: 1, TotalTokens: 11}, used},
			0,
		},
		{"refused", []func(func(llm.Chunk, error) bool){breaks("", llm.Refused)}, 1, nil, 1},
		{
			"numbers that can't be",
			[]func(func(llm.Chunk, error) bool){answers(chat.Usage{PromptTokens: -1, CompletionTokens: 8, TotalTokens: math.MinInt, CachedTokens: math.MaxInt})},
			1,
			[]chat.Usage{{CompletionTokens: 8}},
			0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				meter, s := &ledger{allow: 9}, &scripted{steps: c.steps}
				r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(s.model())}, Meter: meter, Aliases: map[string]string{"fast": "p/m"}})
				req := settings(2)
				req.Account = llm.Account{Agent: "a", User: "u"}
				req.Messages = []chat.Message{{Role: chat.User, Content: "hello"}}
				_, _ = heard(r.Stream(t.Context(), "fast", req))
				if diff := cmp.Diff(c.settled, meter.settled); diff != "" || meter.freed != c.freed || len(meter.calls) != c.calls {
					t.Errorf("%d calls, %d released, settled (-want +got):\n%s", len(meter.calls), meter.freed, diff)
				}
				want := llm.Call{ModelID: "p/m", Account: req.Account, Prompt: 10, MaxCompletion: 4096}
				if diff := cmp.Diff(want, meter.calls[0]); diff != "" {
					t.Errorf("call (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestMeter_BooksThePromptOfACallThatWasLeft: whoever leaves before the first
// word has had the provider work all the same.
func TestMeter_BooksThePromptOfACallThatWasLeft(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]time.Duration{"silent for too long": time.Hour, "cancelled": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), leave)
				defer cancel()
				meter := &ledger{allow: 9}
				r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(slow(2*time.Hour, "late"))}, Meter: meter})
				req := llm.Request{Settings: llm.Settings{Timeout: time.Minute}, Messages: []chat.Message{{Role: chat.User, Content: "hello"}}}
				if _, err := heard(r.Stream(ctx, "p/m", req)); err == nil {
					t.Error("the call was answered")
				}
				if diff := cmp.Diff([]chat.Usage{{PromptTokens: 10, TotalTokens: 10}}, meter.settled); diff != "" || meter.freed != 0 {
					t.Errorf("%d released, settled (-want +got):\n%s", meter.freed, diff)
				}
			})
		})
	}
}

func TestMeter_EndsTheCallAtTheCap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allow, asked int
		fallback     string
	}{
		"at once":         {0, 0, "p/other"},
		"at a retry":      {1, 1, "p/other"},
		"at the fallback": {3, 3, "p/other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				meter := &ledger{allow: c.allow}
				s := &scripted{steps: []func(func(llm.Chunk, error) bool){breaks("", llm.Overloaded)}}
				r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(s.model())}, Meter: meter})
				req := settings(2)
				req.Settings.Fallback = c.fallback
				_, err := heard(r.Stream(t.Context(), "p/m", req))
				if !errors.Is(err, errBudget) || fault.NameOf(err) != "BUDGET_EXCEEDED" || s.asked != c.asked {
					t.Errorf("%d attempts, error %v", s.asked, err)
				}
			})
		})
	}
}

func TestMeter_BooksWhatAReaderWhoLeftHasHeard(t *testing.T) {
	t.Parallel()
	meter, s := &ledger{allow: 9}, &scripted{steps: []func(func(llm.Chunk, error) bool){answers(chat.Usage{})}}
	r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(s.model())}, Meter: meter})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range r.Stream(ctx, "p/m", settings(0)) {
		if err != nil {
			t.Error(err)
		}
		cancel()
		break
	}
	if len(meter.settled) != 1 || meter.settled[0].CompletionTokens != 2 {
		t.Errorf("settled %+v, released %d", meter.settled, meter.freed)
	}
}

// embedder is a model that makes vectors.
type embedder struct {
	modelFunc
	embed func(llm.EmbedRequest) (llm.Embedding, error)
}

func (e embedder) Embed(_ context.Context, req llm.EmbedRequest) (llm.Embedding, error) {
	return e.embed(req)
}

// lengths makes vectors that tell which text they are of.
func lengths(req llm.EmbedRequest) (llm.Embedding, error) {
	out := llm.Embedding{Model: req.Model, Usage: chat.Usage{PromptTokens: len(req.Texts), TotalTokens: len(req.Texts)}}
	for _, text := range req.Texts {
		out.Vectors = append(out.Vectors, []float32{float32(len(text)), 1})
	}
	return out, nil
}

func TestRouter_EmbedsInBatches(t *testing.T) {
	t.Parallel()
	meter := &ledger{allow: 9}
	var sizes []int
	r := newRouter(t, llm.Config{Meter: meter, Aliases: map[string]string{"vectors": "p/e"}, Providers: map[string]llm.Provider{"p": only(embedder{embed: func(req llm.EmbedRequest) (llm.Embedding, error) {
		sizes = append(sizes, len(req.Texts))
		if req.Model != "e" || req.Task != llm.TaskQuery {
			t.Errorf("request %+v", req)
		}
		return lengths(req)
	}})}})
	texts := make([]string, 200)
	for i := range texts {
		texts[i] = strings.Repeat("x", i+1)
	}
	out, err := r.Embed(t.Context(), "vectors", llm.EmbedRequest{Texts: texts, Task: llm.TaskQuery, Account: llm.Account{Agent: "a"}})
	if err != nil || len(out.Vectors) != 200 || out.Vectors[150][0] != 151 || out.Usage.TotalTokens != 200 {
		t.Errorf("%d vectors, usage %+v, error %v", len(out.Vectors), out.Usage, err)
	}
	if diff := cmp.Diff([]int{96, 96, 8}, sizes); diff != "" || len(meter.settled) != 3 || !meter.calls[0].Embedding || meter.calls[0].Account.Agent != "a" {
		t.Errorf("%d settled, first %+v, batches (-want +got):\n%s", len(meter.settled), meter.calls[0], diff)
	}
	if out, err := r.Embed(t.Context(), "vectors", llm.EmbedRequest{}); err != nil || len(out.Vectors) != 0 {
		t.Errorf("no texts: %+v, error %v", out, err)
	}
}

func TestRouter_EmbedsAgainButNotElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(embedder{embed: func(req llm.EmbedRequest) (llm.Embedding, error) {
			if n++; n < 3 {
				return llm.Embedding{}, &llm.CallError{Reason: llm.Throttled, RetryAfter: 2 * time.Second}
			}
			return lengths(req)
		}})}})
		start := time.Now()
		out, err := r.Embed(t.Context(), "p/e", llm.EmbedRequest{Texts: []string{"a"}})
		if err != nil || len(out.Vectors) != 1 || n != 3 || time.Since(start) != 4*time.Second {
			t.Errorf("%d attempts in %s, error %v", n, time.Since(start), err)
		}
	})
}

func TestRouter_RefusesVectorsThatWouldBreakAnIndex(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, vectors := range map[string][][]float32{
			"too few": {{1}}, "of two dimensions": {{1, 2}, {1}}, "of none": {{}, {}},
		} {
			r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(embedder{embed: func(llm.EmbedRequest) (llm.Embedding, error) {
				return llm.Embedding{Vectors: vectors}, nil
			}})}})
			if _, err := r.Embed(t.Context(), "p/e", llm.EmbedRequest{Texts: []string{"a", "b"}}); err == nil || !strings.Contains(err.Error(), "model p/e") {
				t.Errorf("%s: error %v", name, err)
			}
		}
	})
}

func TestRouter_ServesLocalModelsFromTheHost(t *testing.T) {
	t.Parallel()
	meter := &ledger{}
	local := embedder{embed: func(req llm.EmbedRequest) (llm.Embedding, error) {
		if req.Model != "owner/repo:rev" {
			return llm.Embedding{}, fault.New(fault.Unavailable, "", "the process is down")
		}
		return lengths(req)
	}}
	r := newRouter(t, llm.Config{Local: local, Meter: meter})
	if err := r.Check("local/owner/repo:rev"); err != nil {
		t.Error(err)
	}
	if out, err := r.Embed(t.Context(), "local/owner/repo:rev", llm.EmbedRequest{Texts: []string{"a"}}); err != nil || len(out.Vectors) != 1 {
		t.Errorf("%+v, error %v", out, err)
	}
	if _, err := r.Embed(t.Context(), "local/owner/other", llm.EmbedRequest{Texts: []string{"a"}}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("error %v", err)
	}
	if _, err := heard(r.Stream(t.Context(), "local/owner/repo", settings(0))); err == nil || !strings.Contains(err.Error(), "only embed") {
		t.Errorf("a conversation: %v", err)
	}
	if err := r.Check("local/repo"); err == nil || !strings.Contains(err.Error(), "local/owner/name") {
		t.Errorf("no owner: %v", err)
	}
	if err := newRouter(t, llm.Config{}).Check("local/owner/repo"); err == nil || !strings.Contains(err.Error(), "no embedding process") {
		t.Errorf("no embedder: %v", err)
	}
	if _, err := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(modelFunc(nil))}}).Embed(t.Context(), "p/m", llm.EmbedRequest{Texts: []string{"a"}}); err == nil || !strings.Contains(err.Error(), "makes no embeddings") {
		t.Errorf("a model without vectors: %v", err)
	}
}

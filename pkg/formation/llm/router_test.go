package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modelFunc is a model made of its Stream.
type modelFunc func(ctx context.Context, req llm.Request, yield func(llm.Chunk, error) bool)

func (f modelFunc) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) { f(ctx, req, yield) }
}

func only(m llm.Model) llm.Provider {
	return func(llm.Endpoint) (llm.Model, error) { return m, nil }
}

func newRouter(t *testing.T, cfg llm.Config) *llm.Router {
	t.Helper()
	r, err := llm.NewRouter(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// heard is what a reader gets: texts, "<restart>" and "<done>".
func heard(chunks iter.Seq2[llm.Chunk, error]) (out []string, err error) {
	for c, err := range chunks {
		switch {
		case err != nil:
			return out, err
		case c.Restarted:
			out = append(out, "<restart>")
		case c.Done:
			out = append(out, "<done>")
		default:
			out = append(out, c.Text)
		}
	}
	return out, nil
}

func settings(retries int) llm.Request {
	return llm.Request{Settings: llm.Settings{MaxRetries: retries}, Deltas: true}
}

func TestRouter_FindsTheModelBehindAnID(t *testing.T) {
	t.Parallel()
	var asked []string
	echo := func(ep llm.Endpoint) (llm.Model, error) {
		return modelFunc(func(_ context.Context, req llm.Request, yield func(llm.Chunk, error) bool) {
			asked = append(asked, fmt.Sprintf("%s at %q: %s", ep.Name, ep.BaseURL, req.Model))
			yield(llm.Chunk{Done: true}, nil)
		}), nil
	}
	r := newRouter(t, llm.Config{
		Providers:  map[string]llm.Provider{"openai": echo},
		Compatible: echo,
		Endpoints:  map[string]string{"groq": "http://127.0.0.1:1/v1", "openai": "http://127.0.0.1:2/v1"},
		Aliases:    map[string]string{"fast": "groq/meta/llama-3"},
	})
	for _, id := range []string{"openai/gpt-5-mini", "groq/x", "fast"} {
		if _, err := heard(r.Stream(t.Context(), id, llm.Request{Model: "ignored"})); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := heard(r.Model("fast").Stream(t.Context(), llm.Request{})); err != nil {
		t.Error(err)
	}
	want := []string{
		`openai at "http://127.0.0.1:2/v1": gpt-5-mini`, `groq at "http://127.0.0.1:1/v1": x`,
		`groq at "http://127.0.0.1:1/v1": meta/llama-3`, `groq at "http://127.0.0.1:1/v1": meta/llama-3`,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRouter_TellsWhatIsWrongWithAnID(t *testing.T) {
	t.Parallel()
	known := map[string]llm.Provider{"openai": only(nil), "demo": only(nil)}
	r := newRouter(t, llm.Config{Providers: known, Endpoints: map[string]string{"x": "http://h"}})
	for id, want := range map[string]string{
		"gpt-5":   `want provider/model`,
		"/m":      `want provider/model`,
		"p/":      `want provider/model`,
		"acme/m":  `unknown provider "acme"; known are demo, openai, or set llm.endpoints.acme`,
		"x/model": `unknown provider "x"`, // no Compatible is configured
	} {
		_, err := heard(r.Stream(t.Context(), id, llm.Request{}))
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Failed {
			t.Errorf("%s: error %v, want %q", id, err, want)
		}
		if cerr := r.Check(id); cerr == nil || !strings.Contains(cerr.Error(), want) {
			t.Errorf("Check(%s): error %v, want %q", id, cerr, want)
		}
	}
	if err := r.Check("demo/m"); err != nil {
		t.Error(err)
	}
	if _, err := llm.NewRouter(llm.Config{Providers: known, Aliases: map[string]string{"fast": "acme/m"}}); err == nil || !strings.Contains(err.Error(), `alias "fast"`) {
		t.Errorf("a broken alias: error %v", err)
	}
}

func TestRouter_OpensAProviderOnceAndOnFirstUse(t *testing.T) {
	t.Parallel()
	var opened, keys atomic.Int32
	r := newRouter(t, llm.Config{
		Providers: map[string]llm.Provider{"p": func(ep llm.Endpoint) (llm.Model, error) {
			opened.Add(1)
			if string(ep.Key) != "sk-1" || ep.Transport == nil {
				t.Errorf("endpoint %+v", ep)
			}
			return modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
				yield(llm.Chunk{Done: true}, nil)
			}), nil
		}},
		Key: func(string) (llm.Secret, error) { keys.Add(1); return "sk-1", nil },
	})
	if opened.Load() != 0 {
		t.Error("opened before the first call")
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := heard(r.Stream(t.Context(), "p/m", llm.Request{})); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if opened.Load() != 1 || keys.Load() != 1 {
		t.Errorf("opened %d times with %d looks at the key", opened.Load(), keys.Load())
	}
}

func TestRouter_TriesAgainToOpenAProvider(t *testing.T) {
	t.Parallel()
	broken := true
	r := newRouter(t, llm.Config{
		Providers: map[string]llm.Provider{"p": only(llmtest.NewScript(t, llmtest.Step{Text: "ok"}))},
		Key: func(string) (llm.Secret, error) {
			if broken {
				return "", fault.New(fault.Failed, "SECRETS_ERROR", "secret P_KEY is missing")
			}
			return "", nil
		},
	})
	_, err := heard(r.Stream(t.Context(), "p/m", llm.Request{}))
	if fault.NameOf(err) != "SECRETS_ERROR" || !strings.Contains(err.Error(), "p/m") || !strings.Contains(err.Error(), "P_KEY") {
		t.Errorf("error %v", err)
	}
	broken = false
	if got, err := heard(r.Stream(t.Context(), "p/m", llm.Request{})); err != nil || got[0] != "ok" {
		t.Errorf("got %q, error %v", got, err)
	}
}

func TestSecret_ShowsNowhere(t *testing.T) {
	t.Parallel()
	ep := llm.Endpoint{Name: "p", Key: "sk-secret"}
	encoded, err := json.Marshal(struct{ Key llm.Secret }{ep.Key})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(ep), fmt.Sprintf("%+v", ep), fmt.Sprintf("%#v", ep), string(encoded)} {
		if strings.Contains(text, "sk-secret") {
			t.Errorf("the key shows in %s", text)
		}
	}
}

// failing fails n times before it answers with text; each failure comes after
// a piece of text when pieces is set.
func failing(n int, failure *llm.CallError, piece string) (modelFunc, *[]time.Duration) {
	var at []time.Duration
	start := time.Now()
	return func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		at = append(at, time.Since(start))
		if len(at) <= n {
			if piece == "" || yield(llm.Chunk{Text: piece}, nil) {
				yield(llm.Chunk{}, failure)
			}
			return
		}
		if yield(llm.Chunk{Text: "good"}, nil) {
			yield(llm.Chunk{Done: true}, nil)
		}
	}, &at
}

func TestRouter_RetriesWhatMaySucceedLater(t *testing.T) {
	t.Parallel()
	for reason := llm.Broken; reason <= llm.Refused; reason++ {
		t.Run(fmt.Sprint(reason), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, at := failing(1, &llm.CallError{Reason: reason}, "")
				r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
				got, err := heard(r.Stream(t.Context(), "p/m", settings(3)))
				if again := reason <= llm.TimedOut; again != (err == nil) || again != (len(*at) == 2) {
					t.Errorf("reason %d: %d attempts, got %q, error %v", reason, len(*at), got, err)
				}
			})
		})
	}
}

func TestRouter_WaitsLongerBeforeEachAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, at := failing(9, &llm.CallError{Reason: llm.Overloaded}, "")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		_, err := heard(r.Stream(t.Context(), "p/m", settings(4)))
		if len(*at) != 5 || fault.KindOf(err) != fault.Unavailable {
			t.Fatalf("%d attempts, error %v", len(*at), err)
		}
		want := 250 * time.Millisecond
		for i := 1; i < len(*at); i++ {
			if wait := (*at)[i] - (*at)[i-1]; wait < want/2 || wait > want*3/2 {
				t.Errorf("wait %d is %s, want about %s", i, wait, want)
			}
			want = want * 3 / 2
		}
	})
}

func TestRouter_WaitsAsLongAsTheProviderAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, at := failing(2, &llm.CallError{Reason: llm.Throttled, RetryAfter: 7 * time.Second}, "")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		if _, err := heard(r.Stream(t.Context(), "p/m", settings(2))); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Duration{0, 7 * time.Second, 14 * time.Second}, *at); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
	})
}

func TestRouter_DoesNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, at := failing(1, &llm.CallError{Reason: llm.Throttled, Status: 429, RetryAfter: time.Hour}, "")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		_, err := heard(r.Stream(t.Context(), "p/m", settings(5)))
		f := fault.From(err)
		if len(*at) != 1 || f.Kind != fault.RateLimited || f.Data["retry_after"] != 3600 {
			t.Errorf("%d attempts, error %v, data %v", len(*at), err, f.Data)
		}
	})
}

func TestRouter_RestartsAStreamThatBrokeAfterText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _ := failing(2, &llm.CallError{Reason: llm.Broken}, "bad")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		got, err := heard(r.Stream(t.Context(), "p/m", settings(2)))
		want := []string{"bad", "<restart>", "bad", "<restart>", "good", "<done>"}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("error %v, (-want +got):\n%s", err, diff)
		}
		m, _ = failing(1, &llm.CallError{Reason: llm.Broken}, "bad")
		r = newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		reply, err := llm.Collect(r.Stream(t.Context(), "p/m", settings(1)), nil)
		if err != nil || reply.Text != "good" || !reply.Restarted {
			t.Errorf("collected %+v, error %v", reply, err)
		}
	})
}

func TestRouter_DoesNotMarkARestartThatNobodySaw(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _ := failing(1, &llm.CallError{Reason: llm.Broken}, "")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		got, err := heard(r.Stream(t.Context(), "p/m", settings(1)))
		if diff := cmp.Diff([]string{"good", "<done>"}, got); err != nil || diff != "" {
			t.Errorf("error %v, (-want +got):\n%s", err, diff)
		}
	})
}

func TestRouter_AsksTheFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad, attempts := failing(9, &llm.CallError{Reason: llm.Broken}, "bad")
		good := llmtest.NewScript(t, llmtest.Step{Model: "b", Text: "fine"})
		r := newRouter(t, llm.Config{
			Providers: map[string]llm.Provider{"p": only(bad), "q": only(good)},
			Aliases:   map[string]string{"spare": "q/b"},
		})
		req := settings(1)
		req.Settings.Fallback = "spare"
		got, err := heard(r.Stream(t.Context(), "p/a", req))
		want := []string{"bad", "<restart>", "bad", "<restart>", "fine", "<done>"}
		if diff := cmp.Diff(want, got); err != nil || diff != "" || len(*attempts) != 2 {
			t.Errorf("%d attempts, error %v, (-want +got):\n%s", len(*attempts), err, diff)
		}
	})
}

func TestRouter_ReportsTheFirstModelWhenTheFallbackFailsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rejected := llmtest.NewScript(t, llmtest.Step{Err: &llm.CallError{Reason: llm.Rejected, Status: 401}})
		missing := llmtest.NewScript(t, llmtest.Step{Err: &llm.CallError{Reason: llm.Missing}})
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(rejected), "q": only(missing)}})
		req := settings(3)
		req.Settings.Fallback = "q/b"
		_, err := heard(r.Stream(t.Context(), "p/a", req))
		if want := "model p/a: the provider rejected the key (HTTP 401)"; err == nil || err.Error() != want || fault.KindOf(err) != fault.Failed {
			t.Errorf("error %v, want %s", err, want)
		}
	})
}

func TestRouter_NamesTheFaultOfEachReason(t *testing.T) {
	t.Parallel()
	for reason, want := range map[llm.Reason]fault.Kind{
		llm.Broken: fault.Unavailable, llm.Overloaded: fault.Unavailable, llm.TimedOut: fault.Unavailable,
		llm.Throttled: fault.RateLimited, llm.Exhausted: fault.RateLimited,
		llm.Garbled: fault.Failed, llm.Rejected: fault.Failed, llm.Missing: fault.Failed, llm.Refused: fault.Failed,
	} {
		script := llmtest.NewScript(t, llmtest.Step{Err: &llm.CallError{Reason: reason, Detail: "because"}})
		_, err := heard(script.Router().Stream(t.Context(), "test/m", llm.Request{}))
		f := fault.From(err)
		if f.Kind != want || !strings.HasPrefix(f.Message, "model test/m: ") || !strings.HasSuffix(f.Message, ": because") || f.Data["model"] != "test/m" {
			t.Errorf("reason %d: %v of kind %s with %v, want %s", reason, err, f.Kind, f.Data, want)
		}
		var failed *llm.CallError
		if !errors.As(err, &failed) || failed.Reason != reason {
			t.Errorf("reason %d is not in the chain of %v", reason, err)
		}
	}
}

// slow says its words with a pause before each one and then is done.
func slow(pause time.Duration, words ...string) modelFunc {
	return func(ctx context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		for i := range len(words) + 1 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				yield(llm.Chunk{}, &llm.CallError{Reason: llm.Broken, Cause: ctx.Err()})
				return
			}
			if i == len(words) {
				yield(llm.Chunk{Done: true}, nil)
			} else if !yield(llm.Chunk{Text: words[i]}, nil) {
				return
			}
		}
	}
}

func TestRouter_EndsASilentCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(slow(time.Minute, "late"))}})
		start := time.Now()
		_, err := heard(r.Stream(t.Context(), "p/m", llm.Request{Settings: llm.Settings{Timeout: 30 * time.Second}}))
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("took %s", took)
		}
		if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "silent for 30s") {
			t.Errorf("error %v", err)
		}
	})
}

func TestRouter_LetsALongAnswerFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(slow(20*time.Second, "one", "", "two"))}})
		got, err := heard(r.Stream(t.Context(), "p/m", llm.Request{Settings: llm.Settings{Timeout: 30 * time.Second}}))
		if diff := cmp.Diff([]string{"one", "two", "<done>"}, got); err != nil || diff != "" {
			t.Errorf("error %v, (-want +got):\n%s", err, diff)
		}
	})
}

func TestRouter_DoesNotBlameTheModelForASlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(slow(time.Second, "one", "two"))}})
		for _, err := range r.Stream(t.Context(), "p/m", llm.Request{Settings: llm.Settings{Timeout: 2 * time.Second}}) {
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Minute)
		}
	})
}

func TestRouter_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		model llm.Model
	}{
		{"in a call", slow(time.Hour)},
		{"between two attempts", func() llm.Model {
			m, _ := failing(1, &llm.CallError{Reason: llm.Throttled, RetryAfter: 50 * time.Second}, "")
			return m
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(c.model), "q": only(slow(0))}})
				req := settings(5)
				req.Settings.Fallback = "q/m" // is not asked: the caller has left
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(errors.New("the user left")) })
				start := time.Now()
				_, err := heard(r.Stream(ctx, "p/m", req))
				if took := time.Since(start); took != time.Second || fault.KindOf(err) != fault.Canceled {
					t.Errorf("after %s: error %v", took, err)
				}
				ctx, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				if _, err := heard(r.Stream(ctx, "p/m", req)); c.name == "in a call" && fault.KindOf(err) != fault.Unavailable {
					t.Errorf("at a deadline: error %v", err)
				}
			})
		})
	}
}

func TestRouter_StopsWhenTheReaderLeaves(t *testing.T) {
	t.Parallel()
	ended := false
	m := modelFunc(func(ctx context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		if yield(llm.Chunk{Text: "one"}, nil) {
			t.Error("the reader left, and the model was not told")
		}
		ended = true
	})
	r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
	req := settings(5)
	req.Settings.Fallback = "p/other"
	for _, err := range r.Stream(t.Context(), "p/m", req) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if !ended {
		t.Error("the model still runs")
	}
}

func TestRouter_TakesAnAnswerWithoutAnEndForABrokenOne(t *testing.T) {
	t.Parallel()
	m := modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
		yield(llm.Chunk{Text: "half"}, nil)
	})
	r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
	_, err := heard(r.Stream(t.Context(), "p/m", llm.Request{}))
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "before it was complete") {
		t.Errorf("error %v", err)
	}
}

func TestRouter_ShowsNoLowLevelText(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t, llmtest.Step{Err: errors.New("sql: password is hunter2")})
	_, err := heard(script.Router().Stream(t.Context(), "test/m", llm.Request{}))
	if err == nil || strings.Contains(err.Error(), "hunter2") || fault.KindOf(err) != fault.Internal {
		t.Errorf("error %v", err)
	}
}

func TestCollect_EndsWithTheReadersError(t *testing.T) {
	t.Parallel()
	left := errors.New("left")
	script := llmtest.NewScript(t, llmtest.Step{Deltas: []string{"a", "b"}})
	_, err := llm.Collect(script.Router().Stream(t.Context(), "test/m", llm.Request{}), func(string) error { return left })
	if !errors.Is(err, left) {
		t.Errorf("error %v", err)
	}
}

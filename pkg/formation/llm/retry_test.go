package llm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
)

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

func TestRouter_LogsTheCauseThatItDoesNotServe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m, _ := failing(9, &llm.CallError{Reason: llm.Broken, Cause: errors.New("dial 10.0.0.7: no route")}, "")
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}, Log: zerolog.New(&log)})
		_, err := heard(r.Stream(t.Context(), "p/m", settings(1)))
		if err == nil || strings.Contains(err.Error(), "10.0.0.7") || !strings.Contains(log.String(), "10.0.0.7") {
			t.Errorf("error %v, log %s", err, log.String())
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

func TestRouter_EndsACallThatFallsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := modelFunc(func(ctx context.Context, req llm.Request, yield func(llm.Chunk, error) bool) {
			if yield(llm.Chunk{Text: "half"}, nil) {
				slow(time.Hour)(ctx, req, yield)
			}
		})
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"p": only(m)}})
		start := time.Now()
		got, err := heard(r.Stream(t.Context(), "p/m", llm.Request{Settings: llm.Settings{Timeout: 30 * time.Second}}))
		if took := time.Since(start); took != 30*time.Second || len(got) != 1 || fault.KindOf(err) != fault.Unavailable {
			t.Errorf("after %s: %q, error %v", took, got, err)
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

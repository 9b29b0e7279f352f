package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
	var opened atomic.Int32
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
		Key: func(string) (llm.Secret, error) { return "sk-1", nil },
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
	if opened.Load() != 1 {
		t.Errorf("opened %d times", opened.Load())
	}
}

func TestRouter_OpensAProviderAnewWhenItsKeyChanged(t *testing.T) {
	t.Parallel()
	key, others := llm.Secret("old"), 0
	provider := func(ep llm.Endpoint) (llm.Model, error) {
		if ep.Name == "q" {
			others++
		}
		return modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
			_ = yield(llm.Chunk{Text: "key " + string(ep.Key)}, nil) && yield(llm.Chunk{Done: true}, nil)
		}), nil
	}
	r := newRouter(t, llm.Config{
		Providers: map[string]llm.Provider{"p": provider, "q": provider},
		Key: func(name string) (llm.Secret, error) {
			if name == "q" {
				return "of q", nil
			}
			return key, nil
		},
	})
	ask := func(model, want string) {
		t.Helper()
		if got, err := heard(r.Stream(t.Context(), model, llm.Request{})); err != nil || got[0] != "key "+want {
			t.Errorf("%s was asked with %q, want %q; error %v", model, got, want, err)
		}
	}
	// A call that runs keeps what it began with.
	next, stop := iter.Pull2(r.Stream(t.Context(), "p/m", llm.Request{}))
	defer stop()
	if c, err, ok := next(); !ok || err != nil || c.Text != "key old" {
		t.Errorf("got %+v, %v", c, err)
	}
	ask("q/m", "of q")
	key = "new"
	ask("p/m", "new")
	ask("q/m", "of q")
	if c, err, ok := next(); !ok || err != nil || !c.Done {
		t.Errorf("the running call ended with %+v, %v", c, err)
	}
	key = ""
	ask("p/other", "")
	if others != 1 {
		t.Errorf("another provider was opened %d times", others)
	}
}

func TestRouter_AnotherKeyClosesTheCircuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := llm.Secret("broken")
		r := newRouter(t, llm.Config{
			Providers: map[string]llm.Provider{"p": func(ep llm.Endpoint) (llm.Model, error) {
				return modelFunc(func(_ context.Context, _ llm.Request, yield func(llm.Chunk, error) bool) {
					if ep.Key == "broken" {
						yield(llm.Chunk{}, &llm.CallError{Reason: llm.Overloaded})
						return
					}
					yield(llm.Chunk{Done: true}, nil)
				}), nil
			}},
			Key: func(string) (llm.Secret, error) { return key, nil },
		})
		persistent := llm.Request{}
		persistent.Settings.MaxRetries = 20
		_, err := heard(r.Stream(t.Context(), "p/m", persistent))
		if err == nil || !strings.Contains(err.Error(), "left alone") {
			t.Fatalf("the circuit is not open: %v", err)
		}
		key = "right"
		if _, err := heard(r.Stream(t.Context(), "p/m", llm.Request{})); err != nil {
			t.Error(err)
		}
	})
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

package llm_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
)

// mute never answers.
type mute struct{}

func (mute) Stream(ctx context.Context, _ llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		<-ctx.Done()
		yield(llm.Chunk{}, &llm.CallError{Reason: llm.Broken, Cause: ctx.Err()})
	}
}

func TestProbe_WaitsTenSecondsAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := hearing(t, mute{}, nil)
		began := time.Now()
		_, err := r.Probe(t.Context(), "test/m", llm.AnswersText)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %s", took)
		}
		want := "model test/m: the provider did not answer in time: silent for 10s"
		if fault.From(err).Message != want || llm.Unusable(err) {
			t.Errorf("got %v", err)
		}
	})
}

func TestProbe_CostsWhatTheBudgetAllows(t *testing.T) {
	t.Parallel()
	poor := &purse{refuse: fault.New(fault.RateLimited, "BUDGET_EXCEEDED", "no more today")}
	if _, err := hearing(t, mute{}, poor).Probe(t.Context(), "test/m", llm.AnswersText); fault.NameOf(err) != "BUDGET_EXCEEDED" || llm.Unusable(err) {
		t.Errorf("got %v", err)
	}
}

// shelf serves local models by their description.
type shelf struct{ err error }

func (shelf) Embed(context.Context, llm.EmbedRequest) (llm.Embedding, error) {
	panic("a description is enough")
}

func (s shelf) Dimension(_ context.Context, model string) (int, error) { return len(model), s.err }

func TestProbe_LocalModelsAreDescribedNotAsked(t *testing.T) {
	t.Parallel()
	away := fault.New(fault.Unavailable, "EMBEDDER_UNAVAILABLE", "nobody is there")
	for name, tc := range map[string]struct {
		local llm.Embedder
		want  string
	}{
		"there": {shelf{}, ""},
		"away":  {shelf{away}, "model local/acme/tiny: nobody is there"},
		"none":  {nil, `model id "local/acme/tiny": this host has no embedding process`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := llm.NewRouter(llm.Config{Local: tc.local})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Probe(t.Context(), "local/acme/tiny", llm.MakesVectors)
			if tc.want == "" && (err != nil || got.Dimension != len("acme/tiny")) {
				t.Errorf("%+v, %v", got, err)
			}
			if tc.want != "" && (err == nil || fault.From(err).Message != tc.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

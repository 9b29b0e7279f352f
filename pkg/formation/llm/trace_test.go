package llm_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// told runs work under a trace and returns its model spans as lines.
func told(t *testing.T, work func(context.Context)) ([]string, telemetry.Totals) {
	t.Helper()
	ctx, trace := telemetry.New(telemetry.Config{}).Trace(t.Context(), telemetry.TraceInfo{})
	work(ctx)
	var out []string
	for _, s := range trace.Spans() {
		cost := "-"
		if c, _ := s.Value(telemetry.AttrCost).(*telemetry.Cost); c != nil {
			cost = fmt.Sprint(c.Amount, c.Currency)
		}
		out = append(out, fmt.Sprintf("%s %s by %s/%s (%s) for %s: %v %s retries %v cached %v %s error %v", s.Kind, s.Name,
			s.Text(telemetry.AttrProvider), s.Text(telemetry.AttrModel), s.Text(telemetry.AttrResponseModel), s.Text(telemetry.AttrAgent),
			s.Value(telemetry.AttrTokens), cost, s.Value("retries"), s.Value(telemetry.AttrCached), s.Text(telemetry.AttrFinish), s.Error))
	}
	return out, trace.Totals()
}

// priced gives the models of "a" a price.
func priced(id string, u chat.Usage) (float64, string, bool) {
	return float64(u.TotalTokens) / 100, "EUR", id == "a/m"
}

func TestTrace_AModelCallIsOneSpanOverItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book := &ledger{allow: 9}
		s := &scripted{steps: []func(yield func(llm.Chunk, error) bool){
			breaks("half an answer", llm.Broken),
			answers(chat.Usage{PromptTokens: 10, CompletionTokens: 5, TotalTokens: 15}),
		}}
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"a": only(s.model())}, Meter: book, Price: priced})
		req := settings(2)
		req.Account, req.Purpose = llm.Account{Agent: "writer"}, "agent"
		got, totals := told(t, func(ctx context.Context) {
			if _, err := heard(r.Stream(ctx, "a/m", req)); err != nil {
				t.Error(err)
			}
		})
		var booked chat.Usage
		for _, u := range book.settled {
			booked = booked.Add(u)
		}
		want := []string{fmt.Sprintf("model a/m by a/m () for writer: {%d %d 0} %vEUR retries 1 cached false  error false",
			booked.PromptTokens, booked.CompletionTokens, float64(booked.TotalTokens)/100)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if booked.TotalTokens <= 15 || totals.Tokens.Input != booked.PromptTokens || totals.Tokens.Output != booked.CompletionTokens {
			t.Errorf("totals %+v, booked %+v", totals, booked)
		}
	})
}

func TestTrace_AFallbackIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad, _ := failing(9, &llm.CallError{Reason: llm.Overloaded}, "")
		good := &scripted{steps: []func(yield func(llm.Chunk, error) bool){answers(chat.Usage{PromptTokens: 1, TotalTokens: 1})}}
		r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"a": only(bad), "b": only(good.model())}, Price: priced})
		req := settings(0)
		req.Settings.Fallback = "b/spare"
		got, _ := told(t, func(ctx context.Context) {
			if _, err := heard(r.Stream(ctx, "a/m", req)); err != nil {
				t.Error(err)
			}
			if _, err := heard(r.Stream(ctx, "a/m", settings(0))); err == nil {
				t.Error("no error")
			}
			if _, err := heard(r.Stream(ctx, "nobody/x", req)); err != nil {
				t.Error(err)
			}
		})
		if len(got) != 3 || got[0] != "model b/spare by b/spare () for : {1 0 0} - retries 1 cached false  error false" || got[1] != "model a/m by a/m () for : {0 0 0} - retries 0 cached <nil>  error true" || got[2] != "model b/spare by b/spare () for : {1 0 0} - retries 0 cached false  error false" {
			t.Errorf("got %q", got)
		}
	})
}

func TestTrace_ACachedAnswerAsksNoModel(t *testing.T) {
	t.Parallel()
	asked := 0
	r := newRouter(t, caching(&asked, llm.Caching{}, nil))
	got, totals := told(t, func(ctx context.Context) {
		for range 2 {
			if _, err := heard(r.Stream(ctx, "p/m", question("what is it?"))); err != nil {
				t.Error(err)
			}
		}
	})
	if asked != 1 || len(got) != 2 || totals.ModelCalls != 1 {
		t.Errorf("%d asked, totals %+v, spans %q", asked, totals, got)
	}
}

func TestTrace_EmbeddingsAreModelCalls(t *testing.T) {
	t.Parallel()
	r := newRouter(t, llm.Config{Providers: map[string]llm.Provider{"a": only(embedder{embed: lengths})}, Price: priced})
	got, totals := told(t, func(ctx context.Context) {
		if _, err := r.Embed(ctx, "a/m", llm.EmbedRequest{Texts: []string{"one", "two"}}); err != nil {
			t.Error(err)
		}
	})
	if len(got) != 1 || totals.ModelCalls != 1 || totals.Tokens.Input == 0 || totals.Cost == nil {
		t.Errorf("totals %+v, spans %q", totals, got)
	}
}

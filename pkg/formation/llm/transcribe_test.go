package llm_test

import (
	"context"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// ears is a model that hears; hear is what it does, by the number of the call.
type ears struct {
	calls atomic.Int64
	hear  func(ctx context.Context, n int64, req llm.TranscribeRequest) (llm.Transcript, error)
}

func (*ears) Stream(context.Context, llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(func(llm.Chunk, error) bool) {}
}

func (e *ears) Transcribe(ctx context.Context, req llm.TranscribeRequest) (llm.Transcript, error) {
	return e.hear(ctx, e.calls.Add(1), req)
}

// deaf is a model that hears nothing.
type deaf struct{}

func (deaf) Stream(context.Context, llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(func(llm.Chunk, error) bool) {}
}

// purse counts what calls cost.
type purse struct {
	refuse            error
	reserved, settled atomic.Int64
}

func (p *purse) Reserve(_ context.Context, c llm.Call) (llm.Reservation, error) {
	p.reserved.Add(int64(c.Prompt))
	return p, p.refuse
}
func (p *purse) Settle(_ context.Context, u chat.Usage) { p.settled.Add(int64(u.TotalTokens)) }
func (p *purse) Release(context.Context)                {}

func hearing(t *testing.T, m llm.Model, meter llm.Meter) *llm.Router {
	t.Helper()
	r, err := llm.NewRouter(llm.Config{Meter: meter, Providers: map[string]llm.Provider{
		"test": func(llm.Endpoint) (llm.Model, error) { return m, nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func sound() llm.TranscribeRequest {
	return llm.TranscribeRequest{Audio: chat.Part{Kind: chat.Audio, Data: make([]byte, 1000)}, MaxRetries: 2, Timeout: time.Minute}
}

func TestTranscribe_TriesAgainAndIsBooked(t *testing.T) {
	t.Parallel()
	e := &ears{hear: func(_ context.Context, n int64, req llm.TranscribeRequest) (llm.Transcript, error) {
		if n == 1 {
			return llm.Transcript{}, &llm.CallError{Reason: llm.Broken}
		}
		return llm.Transcript{Text: "by " + req.Model, Usage: chat.Usage{TotalTokens: 9}}, nil
	}}
	p := &purse{}
	got, err := hearing(t, e, p).Transcribe(t.Context(), "test/ears", sound())
	if err != nil || got.Text != "by ears" || e.calls.Load() != 2 || p.settled.Load() != 9 || p.reserved.Load() == 0 {
		t.Errorf("%+v, %v after %d calls, %d settled", got, err, e.calls.Load(), p.settled.Load())
	}
}

func TestTranscribe_FailsInWords(t *testing.T) {
	t.Parallel()
	silent := &ears{hear: func(ctx context.Context, _ int64, _ llm.TranscribeRequest) (llm.Transcript, error) {
		<-ctx.Done()
		return llm.Transcript{}, &llm.CallError{Reason: llm.Broken, Cause: ctx.Err()}
	}}
	short := sound()
	short.Timeout, short.MaxRetries = 20*time.Millisecond, 0
	poor := &purse{refuse: fault.New(fault.RateLimited, "BUDGET_EXCEEDED", "no more today")}
	tests := map[string]struct {
		router *llm.Router
		model  string
		want   string
	}{
		"a model that can't": {hearing(t, deaf{}, nil), "test/x", "provider test turns no recordings into text"},
		"a local one":        {hearing(t, deaf{}, nil), "local/a/b", "this host has no embedding process"},
		"no such provider":   {hearing(t, deaf{}, nil), "nobody/x", "nobody"},
		"silence":            {hearing(t, silent, nil), "test/x", "silent for 20ms"},
		"no budget":          {hearing(t, silent, poor), "test/x", "no more today"},
	}
	for name, tt := range tests {
		if _, err := tt.router.Transcribe(t.Context(), tt.model, short); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

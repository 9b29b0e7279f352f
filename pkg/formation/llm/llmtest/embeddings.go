package llmtest

import (
	"errors"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

// embeddings checks the promises of llm.Embedder.
func (s Suite) embeddings(t *testing.T) {
	t.Parallel()
	m, _ := s.start(t)
	if e, ok := m.(llm.Embedder); ok != s.Embeds {
		t.Fatalf("the model is %T, embedder: %t, want %t", e, ok, s.Embeds)
	}
	if !s.Embeds {
		return
	}
	t.Run("a vector per text, in order", s.vectors)
	t.Run("errors", s.embedErrors)
}

func (s Suite) embedder(t *testing.T, rules ...fakellm.Rule) (llm.Embedder, *fakellm.Server) {
	t.Helper()
	m, fake := s.start(t, rules...)
	e, ok := m.(llm.Embedder)
	if !ok {
		t.Fatalf("%T is no llm.Embedder", m)
	}
	return e, fake
}

func (s Suite) vectors(t *testing.T) {
	t.Parallel()
	for _, task := range []string{"", llm.TaskQuery, llm.TaskDocument} {
		e, fake := s.embedder(t)
		out, err := e.Embed(t.Context(), llm.EmbedRequest{
			Model: "embed-1", Task: task, Texts: []string{"the bakery bakes \"bread\"", "bread of the bakery 🙂", "steel and iron"},
		})
		if err != nil || len(out.Vectors) != 3 || len(out.Vectors[0]) == 0 || out.Model != "embed-1" {
			t.Fatalf("%d vectors by %q, error %v", len(out.Vectors), out.Model, err)
		}
		alike, other := dot(out.Vectors[0], out.Vectors[1]), dot(out.Vectors[0], out.Vectors[2])
		if itself := dot(out.Vectors[0], out.Vectors[0]); itself < 0.999 || itself > 1.001 || alike < other+0.2 {
			t.Errorf("itself %.3f, alike %.3f, other %.3f", itself, alike, other)
		}
		if counted := out.Usage.PromptTokens > 0; counted != s.CountsEmbedded || out.Usage.TotalTokens != out.Usage.PromptTokens {
			t.Errorf("usage %+v", out.Usage)
		}
		if calls := fake.Calls(); len(calls) != 1 || calls[0].Purpose != "embedding" || calls[0].Model != "embed-1" {
			t.Errorf("the server saw %+v", calls)
		}
	}
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func (s Suite) embedErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		reply  fakellm.Reply
		reason llm.Reason
		wait   time.Duration
	}{
		{"400", fakellm.Reply{Status: 400, Message: "too long"}, llm.Refused, 0},
		{"401", fakellm.Reply{Status: 401}, llm.Rejected, 0},
		{"429", fakellm.Reply{Status: 429, Headers: map[string]string{"Retry-After": "3"}}, llm.Throttled, 3 * time.Second},
		{"500", fakellm.Reply{Status: 500}, llm.Overloaded, 0},
		{"reset", fakellm.Reply{Reset: true}, llm.Broken, 0},
		{"garbage", fakellm.Reply{Body: `{"data":`}, llm.Garbled, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, _ := s.embedder(t, fakellm.Rule{Reply: c.reply})
			_, err := e.Embed(t.Context(), llm.EmbedRequest{Model: "embed-1", Texts: []string{"x"}})
			var failed *llm.CallError
			if !errors.As(err, &failed) || failed.Reason != c.reason || failed.RetryAfter != c.wait {
				t.Errorf("error %#v, want reason %d, wait %s", err, c.reason, c.wait)
			}
		})
	}
}

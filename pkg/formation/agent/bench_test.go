package agent_test

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// instant answers at once: three calls, and a text when it has their results.
type instant struct{ calls []chat.ToolCall }

func (m instant) Stream(_ context.Context, _ string, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		if req.Messages[len(req.Messages)-1].Role == chat.Tool {
			if yield(llm.Chunk{Text: "done"}, nil) {
				yield(llm.Chunk{Done: true, Model: "m"}, nil)
			}
			return
		}
		yield(llm.Chunk{Done: true, Model: "m", Calls: m.calls}, nil)
	}
}

// nowhere is a journal that keeps nothing.
type nowhere struct{}

func (nowhere) Done(string) ([]byte, bool)                  { return nil, false }
func (nowhere) Save(context.Context, string, []byte) error  { return nil }
func (nowhere) SaveAll(context.Context, []agent.Step) error { return nil }

// BenchmarkRun is the loop's own cost of a turn with three tool calls.
func BenchmarkRun(b *testing.B) {
	model := instant{}
	for _, id := range []string{"1", "2", "3"} {
		model.calls = append(model.calls, chat.ToolCall{ID: id, Name: "look", Args: json.RawMessage(`{"city":"Bern"}`)})
	}
	look := &tool{spec: chat.ToolSpec{Name: "look", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}}
	a := agent.New(agent.Config{
		Agent: &manifest.Agent{ID: "writer", Name: "Writer", Description: "Writes."}, Models: model,
		Formation: &manifest.Formation{LLM: manifest.LLM{Models: []manifest.Model{{Capability: manifest.CapabilityText, ID: "test/m"}}}},
		Tools:     func(context.Context, chat.Invocation) ([]agent.Tool, error) { return []agent.Tool{look}, nil },
		Now:       time.Now, Log: zerolog.Nop(),
	})
	b.ReportAllocs()
	for b.Loop() {
		answer, err := a.Run(b.Context(), agent.Task{Message: "go", Journal: nowhere{}}, func(chat.Event) error { return nil })
		if err != nil || answer.Content != "done" {
			b.Fatal(answer.Content, err)
		}
	}
	b.ReportMetric(float64(look.calls.Load())/float64(b.N), "calls/op")
}

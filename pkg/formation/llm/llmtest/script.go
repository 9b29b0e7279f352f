// Package llmtest holds what tests need of models: Script, a model that answers
// from a list and fails the test on an unexpected ask, and Run, the promises
// that every adapter of a wire protocol must keep. Only tests import it.
package llmtest

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// Step is one expected ask and what the script does about it. Empty
// expectations accept everything.
type Step struct {
	Model   string // the name behind the provider
	Purpose string
	Last    string // a part of the last message's text

	Text   string
	Deltas []string // instead of Text: one chunk each, also when nobody asked for deltas
	Calls  []chat.ToolCall
	Usage  chat.Usage
	// Err ends the answer after its text.
	Err error
	// Wait is received from before the answer begins.
	Wait <-chan struct{}
}

// Script is a model that answers from a list of steps, in order. It is safe
// for concurrent use; concurrent asks take steps as they come.
type Script struct {
	tb testing.TB

	mu    sync.Mutex // guards the fields that follow
	steps []Step
	asked []llm.Request
}

// NewScript returns a Script that fails the test on an ask that is not the
// next step, and at the end when steps are left.
func NewScript(tb testing.TB, steps ...Step) *Script {
	tb.Helper()
	s := &Script{tb: tb, steps: steps}
	tb.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.steps) > 0 {
			tb.Errorf("model script: %d steps were not asked for, the next is %+v", len(s.steps), s.steps[0])
		}
	})
	return s
}

// Router returns a Router whose models "test/<anything>" are this script.
func (s *Script) Router() *llm.Router {
	s.tb.Helper()
	r, err := llm.NewRouter(llm.Config{Providers: map[string]llm.Provider{
		"test": func(llm.Endpoint) (llm.Model, error) { return s, nil },
	}})
	if err != nil {
		s.tb.Fatalf("model script: %v", err)
	}
	return r
}

// Asked returns the requests so far.
func (s *Script) Asked() []llm.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]llm.Request(nil), s.asked...)
}

// Stream answers with the next step.
func (s *Script) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		step, ok := s.next(req)
		if !ok {
			yield(llm.Chunk{}, &llm.CallError{Reason: llm.Refused, Detail: "the script does not expect this ask"})
			return
		}
		if step.Wait != nil {
			select {
			case <-step.Wait:
			case <-ctx.Done():
				yield(llm.Chunk{}, &llm.CallError{Reason: llm.Broken, Cause: context.Cause(ctx)})
				return
			}
		}
		step.play(req, yield)
	}
}

func (step Step) play(req llm.Request, yield func(llm.Chunk, error) bool) {
	deltas := step.Deltas
	if step.Text != "" {
		deltas = append(slices.Clip(deltas), step.Text)
	}
	for _, text := range deltas {
		if !yield(llm.Chunk{Text: text}, nil) {
			return
		}
	}
	if step.Err != nil {
		yield(llm.Chunk{}, step.Err)
		return
	}
	done := llm.Chunk{Done: true, Calls: step.Calls, Usage: step.Usage, Finish: "stop", Model: req.Model}
	if len(step.Calls) > 0 {
		done.Finish = "tool_calls"
	}
	yield(done, nil)
}

// next takes the step that req must be.
func (s *Script) next(req llm.Request) (Step, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, req)
	last := ""
	if n := len(req.Messages); n > 0 {
		last = req.Messages[n-1].Content
	}
	if len(s.steps) == 0 {
		s.tb.Errorf("model script: unexpected ask of %s for %q: %q", req.Model, req.Purpose, last)
		return Step{}, false
	}
	step := s.steps[0]
	if step.Model != "" && step.Model != req.Model || step.Purpose != "" && step.Purpose != req.Purpose ||
		!strings.Contains(last, step.Last) {
		s.tb.Errorf("model script: ask of %s for %q: %q; want %+v", req.Model, req.Purpose, last, step)
		return Step{}, false
	}
	s.steps = s.steps[1:]
	return step, true
}

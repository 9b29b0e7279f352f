package llmtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
)

// recorder is a test that keeps its errors.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestScript_FailsTheTestItServes(t *testing.T) {
	t.Parallel()
	hello := llm.Request{Purpose: "agent", Messages: []chat.Message{{Role: chat.User, Content: "hello"}}}
	for _, c := range []struct {
		name  string
		steps []llmtest.Step
		asks  int
		want  string // a part of the one error; "" is none
	}{
		{"all as expected", []llmtest.Step{{Purpose: "agent", Last: "ell", Text: "hi"}}, 1, ""},
		{"one ask too many", []llmtest.Step{{Text: "hi"}}, 2, "unexpected ask"},
		{"a step left", []llmtest.Step{{Text: "hi"}, {Text: "again"}}, 1, "1 steps were not asked for"},
		{"another purpose", []llmtest.Step{{Purpose: "routing"}}, 0, "1 steps were not asked for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{TB: t}
			s := llmtest.NewScript(r, c.steps...)
			for range c.asks {
				reply, err := llm.Collect(s.Router().Stream(t.Context(), "test/m", hello), nil)
				if err == nil && reply.Text != "hi" {
					t.Errorf("reply %q", reply.Text)
				}
			}
			for _, f := range r.cleanups {
				f()
			}
			if c.want == "" && len(r.errors) != 0 || c.want != "" && (len(r.errors) != 1 || !strings.Contains(r.errors[0], c.want)) {
				t.Errorf("errors %q, want %q", r.errors, c.want)
			}
		})
	}
}

func TestScript_RefusesAnAskThatIsNotTheNext(t *testing.T) {
	t.Parallel()
	for _, step := range []llmtest.Step{{Purpose: "routing"}, {Model: "other"}, {Last: "goodbye"}} {
		r := &recorder{TB: t}
		s := llmtest.NewScript(r, step)
		_, err := llm.Collect(s.Stream(t.Context(), llm.Request{Model: "m", Messages: []chat.Message{{Content: "hello"}}}), nil)
		if err == nil || len(r.errors) != 1 {
			t.Errorf("%+v: error %v, test errors %q", step, err, r.errors)
		}
	}
}

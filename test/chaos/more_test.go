package chaos

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// A deploy that was not answered promises nothing: after the death of the
// supervisor the formation is there as a whole or not at all.
func TestDeploy_UnacknowledgedIsWholeOrAbsent(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"extracting", "validating", "spawning", "health_check"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			s := suite.Start(t, harness.Options{})
			model := fakellm.Start(t, fakellm.Options{})
			r := s.DeployRequest("torn", suite.Pair(t, "torn", model.URL()).Bundle(t, "torn"))
			r.Header["Accept"] = "text/event-stream"
			stream := s.HTTP.MustStream(r)
			for {
				f, err := stream.Next()
				if err != nil {
					t.Fatalf("before %s: %v", stage, err)
				}
				if f.Text("stage") == stage {
					break
				}
			}
			s.Kill()
			s.Serve()
			reply := s.RPC(http.MethodGet, "/rpc/formations")
			if reply.Int("data.total") == 1 {
				harness.Until(t, "the formation runs", func() bool {
					return s.RPC(http.MethodGet, "/rpc/formations/torn").Text("data.status") == "running"
				})
				return
			}
			left := slices.DeleteFunc(s.Files("formations", "tmp", "run"), func(file string) bool {
				return strings.HasPrefix(file, "run/embedder") ||
					slices.Contains([]string{"formations/.staging", "formations/.trash", "run/lock", "run/address"}, file)
			})
			if len(left) > 0 {
				t.Errorf("not listed, but left behind: %v", left)
			}
			s.Deploy("torn", suite.Pair(t, "torn", model.URL()))
		})
	}
}

// A request whose turn dies with the process again and again is given up, so
// that it ends too and does not take the formation along for ever.
func TestAsync_ATurnThatNeverGetsThroughIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, harness.Options{Formations: "  restart:\n    max: 20\n    base_ms: 10\n    max_ms: 50\n"})
	w.model.Add(fakellm.Rule{User: "^deadly", Reply: fakellm.Reply{Text: "never", Gate: "never"}})
	id := w.s.HTTP.Must(w.f.Request(harness.Chat{"message": "deadly", "agent_id": "poet", "use_async": true})).Text("data.request_id")
	const attempts = 5
	for n := range attempts {
		w.asked("^deadly", n+1)
		w.f.UntilStatus("running") // the turn is taken up before the child serves
		w.f.Kill()
	}
	done := w.f.UntilEnded(harness.Context(t), id).Want(t, http.StatusOK, "data.status", "failed")
	if !strings.Contains(done.Text("data.error"), "given up") {
		t.Errorf("the error is %q", done.Text("data.error"))
	}
	w.f.Say(harness.Chat{"message": "harmless", "agent_id": "poet"})
	w.wantCalls("^deadly", attempts, attempts)
}

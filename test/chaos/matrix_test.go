package chaos

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// suite holds the programs that all tests run.
var suite *harness.Suite

func TestMain(m *testing.M) {
	var err error
	if suite, err = harness.Open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := suite.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// world is one cell: a supervisor with one formation, a model, and a victim.
type world struct {
	*testing.T

	s     *harness.Supervisor
	f     *harness.Formation
	model *fakellm.Server
	// strike kills the victim and brings back what nobody else brings back. It
	// returns when the formation runs.
	strike func()
	// dies tells that the formation's process is among the victims.
	dies bool
}

// promise is one row.
type promise struct {
	row string
	// acknowledged and holds are the words of the contract.
	acknowledged, holds string
	check               func(w *world)
}

var matrix = []promise{
	{
		"operation-answered", "deploy, start, stop or delete answered 2xx",
		"desired state is on disk; after restart the fleet converges to it", operationAnswered,
	},
	{
		"async-accepted", "async chat accepted",
		"the request reaches a terminal state, once; its result is polled", asyncAccepted,
	},
	{
		"turn-in-flight", "sync turn in flight",
		"the turn resumes from its journal: finished model calls are not repeated; a retry with its key joins it", turnInFlight,
	},
	{
		"stream-in-flight", "streaming turn in flight",
		"the stream can be resumed with Last-Event-ID; equal deltas continue it", streamInFlight,
	},
	{
		"stream-differs", "streaming turn in flight whose model answers differently the second time",
		"completed carries stream_discontinuity: true", streamDiffers,
	},
	{
		"tool-finished", "turn in flight, between a finished tool call and the next model call",
		"the tool call is not repeated", toolFinished,
	},
	{
		"tool-cut", "turn in flight, in the middle of a tool call",
		"it is not repeated: the turn ends failed with UNKNOWN_OUTCOME", toolCut,
	},
	{
		"tool-cut-repeatable", "turn in flight, in the middle of a call of a tool that only reads",
		"it is repeated, and the turn goes on", toolCutRepeatable,
	},
	{
		"idempotency-key", "idempotency key with a stored reply",
		"replayed; concurrent duplicates run once; same key with another body is 409", idempotencyKey,
	},
	{
		"memory-write", "turn answered",
		"the event is in the log: the transcript and the next turn know it", memoryWrite,
	},
	{
		"cancelled", "request cancelled",
		"it stays cancelled and the model is not asked again", cancelled,
	},
}

var victims = map[string]struct {
	dies   bool
	strike func(w *world)
}{
	"child": {true, func(w *world) { w.f.Kill() }},
	"supervisor": {false, func(w *world) {
		w.s.Kill()
		w.s.Serve()
	}},
	"both": {true, func(w *world) {
		pid := w.f.PID()
		w.s.Kill()
		harness.KillProcess(w, pid)
		w.s.Serve()
	}},
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, p := range matrix {
		for name, victim := range victims {
			t.Run(p.row+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, harness.Options{})
				w.dies = victim.dies
				w.strike = func() {
					w.Helper()
					victim.strike(w)
					w.f.UntilStatus("running")
				}
				p.check(w)
				if t.Failed() {
					t.Logf("acknowledged: %s; must hold after the death of %s: %s", p.acknowledged, name, p.holds)
				}
			})
		}
	}
}

func newWorld(t *testing.T, o harness.Options) *world {
	t.Helper()
	w := &world{T: t, s: suite.Start(t, o), model: fakellm.Start(t, fakellm.Options{})}
	w.f = w.s.Deploy("cell", suite.Pair(t, "cell", w.model.URL()))
	return w
}

// calls counts the model calls of a purpose whose message matches.
func (w *world) calls(purpose, pattern string) (n int) {
	re := regexp.MustCompile(pattern)
	for _, c := range w.model.Calls() {
		if c.Purpose == purpose && re.MatchString(c.User) {
			n++
		}
	}
	return n
}

// asked waits for a number of model calls of agents.
func (w *world) asked(pattern string, n int) {
	w.Helper()
	harness.Until(w, fmt.Sprintf("the model was asked %d times for %s", n, pattern), func() bool {
		return w.calls("agent", pattern) >= n
	})
}

// wantCalls expects a cut call to have been made twice when the formation's
// process died, and once when it lived on.
func (w *world) wantCalls(pattern string, lived, died int) {
	w.Helper()
	want := lived
	if w.dies {
		want = died
	}
	if n := w.calls("agent", pattern); n != want {
		w.Errorf("the model was asked %d times for %s, want %d", n, pattern, want)
	}
}

// hold makes the first call for a pattern wait, before its first frame or
// after some, and later ones answer at once. A call that lives on answers when
// the gate "go" is released.
func (w *world) hold(pattern, first, second string, frames int) {
	w.model.Add(
		fakellm.Rule{Purpose: "agent", User: pattern, Times: 1, Reply: fakellm.Reply{Text: first, Gate: "go", GateAfter: frames}},
		fakellm.Rule{Purpose: "agent", User: pattern, Reply: fakellm.Reply{Text: second}},
	)
}

// list returns the state of each formation.
func (w *world) list() map[string]string {
	w.Helper()
	reply := w.s.RPC(http.MethodGet, "/rpc/formations").Want(w, http.StatusOK)
	items, _ := reply.Get("data.formations").([]any)
	states := map[string]string{}
	for _, item := range items {
		id, _ := harness.Dig(item, "id").(string)
		states[id], _ = harness.Dig(item, "status").(string)
	}
	return states
}

package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// The texts of turns that are cut in their middle: the second telling of
// "other" begins like the first and then differs.
const (
	firstText  = "one two three four"
	secondText = "one five six seven"
)

// cutRules hold what is asked at first, so that the child is killed meanwhile,
// and answer what is asked again.
func cutRules() []fakellm.Rule {
	held := func(user string, times, frames int) fakellm.Rule {
		return fakellm.Rule{User: "^" + user, Times: times, Reply: fakellm.Reply{Text: firstText, Gate: "never", GateAfter: frames}}
	}
	again := func(user, text string) fakellm.Rule {
		return fakellm.Rule{User: "^" + user, Reply: fakellm.Reply{Text: text}}
	}
	return []fakellm.Rule{
		held("same", 2, 3), again("same", firstText),
		held("other", 2, 3), again("other", secondText),
		held("json", 1, 0), again("json", "JSON done"),
		held("async", asyncs, 0), again("async", "async done"),
		{Reply: fakellm.Reply{Text: "load done", DelayMS: 5, ChunkDelayMS: 1}},
	}
}

// asyncs is how many requests are accepted for the background before the kill.
const asyncs = 8

// cut is a streaming turn that is under way when its process dies.
type cut struct {
	message, session, request string
	lastID                    int
	deltas                    string
	stream                    *harness.Stream
}

// openCut begins a streaming turn and reads its first two deltas.
func openCut(t *testing.T, s *harness.Supervisor, f *harness.Formation, message string) *cut {
	t.Helper()
	c := &cut{message: message, session: "sess-" + message, request: "req-" + message}
	c.stream = s.HTTP.MustStream(f.Streamed(harness.Chat{
		"message": message, "agent_id": "poet", "session_id": c.session, "request_id": c.request,
	}))
	frames := append(c.stream.UntilType(t, "content"), c.stream.UntilType(t, "content")...)
	c.lastID, c.deltas = frames[len(frames)-1].ID, harness.Deltas(frames)
	return c
}

// wantBroken expects the connection to have been lost.
func (c *cut) wantBroken(t *testing.T) {
	t.Helper()
	if frames, err := c.stream.Rest(); err == nil {
		t.Errorf("%s: the stream of the killed process ended well: %v", c.message, frames)
	}
}

// events reads the turn's stream after an id, without the frames that open and
// close the reading. The objects have no token around them there.
func (c *cut) events(t *testing.T, s *harness.Supervisor, f *harness.Formation, after int) []harness.Frame {
	t.Helper()
	r := f.Read("/v1/events/" + c.session + "/" + c.request)
	r.Header["Last-Event-ID"] = strconv.Itoa(after)
	frames := s.HTTP.MustStream(r).MustRest(t)
	if len(frames) < 2 || frames[0].Text("type") != "stream_open" || frames[len(frames)-1].Text("type") != "stream_completed" {
		t.Fatalf("%s: the events are %v", c.message, frames)
	}
	inner := frames[1 : len(frames)-1]
	for i := range inner {
		inner[i].Data = `{"token":` + inner[i].Data + `}`
	}
	return inner
}

// chat continues the turn's stream by POST /v1/chat.
func (c *cut) chat(t *testing.T, s *harness.Supervisor, f *harness.Formation) []harness.Frame {
	t.Helper()
	r := f.Streamed(harness.Chat{"request_id": c.request})
	r.Header["Last-Event-ID"] = strconv.Itoa(c.lastID)
	frames := s.HTTP.MustStream(r).MustRest(t)
	if n := len(frames); n == 0 || frames[n-1].Event != "done" {
		t.Fatalf("%s: the continued stream is %v", c.message, frames)
	}
	return frames[:len(frames)-1]
}

// check compares what came after the kill with what the readers hold.
func (c *cut) check(t *testing.T, rest []harness.Frame, text string, discontinuity any) {
	t.Helper()
	if len(rest) == 0 {
		t.Fatalf("%s: nothing came after frame %d", c.message, c.lastID)
	}
	for i, f := range rest {
		if f.ID != c.lastID+1+i {
			t.Errorf("%s: frame %d follows %d", c.message, f.ID, c.lastID+i)
		}
	}
	last := rest[len(rest)-1]
	if last.Text("token.type") != "completed" || last.Text("token.content") != text {
		t.Errorf("%s: the last token is %s", c.message, last.Data)
	}
	if got := last.Get("token.stream_discontinuity"); got != discontinuity {
		t.Errorf("%s: stream_discontinuity is %v, want %v", c.message, got, discontinuity)
	}
	if all := c.deltas + harness.Deltas(rest); discontinuity == nil && all != text {
		t.Errorf("%s: the deltas before and after add up to %q, want %q", c.message, all, text)
	}
}

func TestKill_OneOfTwoChildrenUnderLoad(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model, calm := fakellm.Start(t, fakellm.Options{Record: 20000}), fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(cutRules()...)
	calm.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "calm", DelayMS: 5, ChunkDelayMS: 1}})
	victim := s.Deploy("victim", suite.Pair(t, "victim", model.URL()))
	bystander := s.Deploy("bystander", suite.Pair(t, "bystander", calm.URL()))
	pid, other := victim.PID(), bystander.PID()

	ids := make([]string, asyncs)
	for i := range ids {
		r := victim.Request(harness.Chat{"message": fmt.Sprintf("async %d", i), "agent_id": "poet", "use_async": true})
		ids[i] = s.HTTP.Must(r).Want(t, http.StatusAccepted).Text("data.request_id")
	}
	cuts := []*cut{openCut(t, s, victim, "same1"), openCut(t, s, victim, "same2"), openCut(t, s, victim, "other1"), openCut(t, s, victim, "other2")}
	inFlight := make(chan error, 1)
	keyedJSON := keyed(victim, "in-flight", harness.Chat{"message": "json", "agent_id": "poet"})
	fresh := harness.Fresh(t)
	go func() {
		_, err := fresh.Do(t.Context(), keyedJSON)
		inFlight <- err
	}()
	waitCalls(t, model, "^(async|json)", asyncs+1)

	loads := map[string]*load{
		"own port": begin(t, 8, victim, victim.Own()), "through": begin(t, 8, victim, victim.Through()),
		"bystander": begin(t, 8, bystander, bystander.Own()), "bystander through": begin(t, 8, bystander, bystander.Through()),
	}
	for _, l := range loads {
		l.more(t, 20)
	}
	harness.KillProcess(t, pid)
	for _, l := range loads {
		l.after.Store(true)
	}
	for _, l := range loads {
		l.more(t, 60)
		l.end()
	}
	for name, l := range loads {
		l.check(t, name, name == "own port" || name == "through")
	}
	checkAfterKill(t, victim, pid, bystander, other)
	if err := <-inFlight; err == nil {
		t.Error("the JSON turn was answered by the killed process")
	}
	checkResumed(t, s, victim, cuts, ids)
	s.HTTP.Must(keyedJSON).Want(t, http.StatusOK, "data.response", "JSON done", "request.idempotency_key", "in-flight")
	// Each turn that was cut asked the model once before and once after.
	for pattern, want := range map[string]int{"^json": 2, "^same": 4, "^other": 4, "^async": 2 * asyncs} {
		if n := len(calls(model, pattern)); n != want {
			t.Errorf("the model was asked %d times for %s, want %d", n, pattern, want)
		}
	}
}

func checkAfterKill(t *testing.T, victim *harness.Formation, pid int, bystander *harness.Formation, other int) {
	t.Helper()
	reply := victim.UntilStatus("running").Want(t, http.StatusOK, "data.restart_count", "1", "data.last_exit.signal", "killed")
	if now := reply.Int("data.pid"); now == pid || !harness.Alive(now) {
		t.Errorf("process %d is followed by %d", pid, now)
	}
	bystander.Get().Want(t, http.StatusOK, "data.restart_count", "0", "data.pid", strconv.Itoa(other), "data.status", "running")
}

// checkResumed reads what the killed process had promised.
func checkResumed(t *testing.T, s *harness.Supervisor, f *harness.Formation, cuts []*cut, ids []string) {
	t.Helper()
	for _, c := range cuts {
		c.wantBroken(t)
		text, broken := firstText, any(nil)
		if c.message == "other1" || c.message == "other2" {
			text, broken = secondText, true
		}
		c.check(t, c.chat(t, s, f), text, broken)
		c.check(t, c.events(t, s, f, c.lastID), text, broken)
		whole := c.events(t, s, f, 0)
		if n := count(whole, "completed"); n != 1 || whole[0].ID != 1 {
			t.Errorf("%s: the whole stream has %d ends and begins with frame %d", c.message, n, whole[0].ID)
		}
	}
	for _, id := range ids {
		f.UntilEnded(harness.Context(t), id).Want(t, http.StatusOK, "data.status", "completed", "data.response", "async done")
	}
}

// calls returns the model calls whose message matches.
func calls(model *fakellm.Server, pattern string) (found []fakellm.Call) {
	re := regexp.MustCompile(pattern)
	for _, c := range model.Calls() {
		if re.MatchString(c.User) {
			found = append(found, c)
		}
	}
	return found
}

func waitCalls(t *testing.T, model *fakellm.Server, pattern string, n int) {
	t.Helper()
	harness.Until(t, fmt.Sprintf("the model was asked %d times for %s", n, pattern), func() bool { return len(calls(model, pattern)) >= n })
}

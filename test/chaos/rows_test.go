package chaos

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func operationAnswered(w *world) {
	for _, id := range []string{"runs", "stopped", "started", "deleted"} {
		w.s.Deploy(id, suite.Pair(w, id, w.model.URL()))
	}
	for _, call := range []string{"stopped/stop", "started/stop", "started/start"} {
		w.s.RPC(http.MethodPost, "/rpc/formations/"+call).Want(w, http.StatusOK)
	}
	w.s.RPC(http.MethodDelete, "/rpc/formations/deleted").Want(w, http.StatusOK)
	w.strike()
	want := map[string]string{"cell": "running", "runs": "running", "started": "running", "stopped": "stopped"}
	harness.Until(w, "the fleet converges", func() bool { return cmp.Equal(want, w.list()) })
	if left := w.s.Files("formations/.staging", "formations/.trash", "tmp"); len(left) > 0 {
		w.Errorf("left behind: %v", left)
	}
}

func asyncAccepted(w *world) {
	w.hold("^held", "the answer", "the answer", 0)
	accept := func(message string) string {
		r := w.f.Request(harness.Chat{"message": message, "agent_id": "poet", "use_async": true})
		return w.s.HTTP.Must(r).Want(w, http.StatusAccepted).Text("data.request_id")
	}
	ids := []string{accept("held, and at work"), accept("just accepted")}
	w.asked("^held", 1)
	w.strike()
	w.model.Release("go")
	for i, message := range []string{"held, and at work", "just accepted"} {
		done := w.f.UntilEnded(harness.Context(w), ids[i]).Want(w, http.StatusOK, "data.status", "completed")
		again := w.s.HTTP.Must(w.f.Read("/v1/requests/" + ids[i]))
		if again.Text("data.response") != done.Text("data.response") || again.Text("data.completed_at") != done.Text("data.completed_at") {
			w.Errorf("%s: it ended twice: %s, %s", message, done.Body, again.Body)
		}
	}
	w.wantCalls("^held", 1, 2)
}

func turnInFlight(w *world) {
	w.hold("rhymes", "the answer", "the answer", 0)
	// Without an agent_id the overlord decides first: a finished model call.
	r := w.f.Request(harness.Chat{"message": "a poem with rhymes", "session_id": "s"})
	r.Header["X-SVC-Idempotency-Key"] = "key"
	ended := make(chan error, 1)
	client := harness.Fresh(w)
	go func() {
		reply, err := client.Do(w.Context(), r)
		if err == nil {
			reply.Want(w, http.StatusOK, "data.response", "the answer")
		}
		ended <- err
	}()
	w.asked("rhymes", 1)
	w.strike()
	w.model.Release("go")
	if err := <-ended; (err != nil) != w.dies {
		w.Errorf("the first request ended with %v", err)
	}
	w.s.HTTP.Must(r).Want(w, http.StatusOK, "data.response", "the answer", "data.agent", "poet", "request.idempotency_key", "key")
	w.wantCalls("rhymes", 1, 2)
	if n := w.calls("route", "rhymes"); n != 1 {
		w.Errorf("the overlord decided %d times", n)
	}
	w.s.HTTP.Must(w.f.Read("/v1/sessions/s/messages")).Want(w, http.StatusOK, "data.count", "2")
}

// cutStream begins a streaming turn, reads its first two deltas, strikes, and
// returns what was read and what follows with Last-Event-ID.
func (w *world) cutStream() (before, after []harness.Frame) {
	w.Helper()
	body := harness.Chat{"message": "a stream", "agent_id": "poet", "session_id": "s", "request_id": "r"}
	stream := w.s.HTTP.MustStream(w.f.Streamed(body))
	before = append(stream.UntilType(w, "content"), stream.UntilType(w, "content")...)
	w.strike()
	w.model.Release("go")
	rest, err := stream.Rest()
	if (err != nil) != w.dies {
		w.Errorf("the first stream ended with %v after %v", err, rest)
	}
	last := before[len(before)-1].ID
	resume := w.f.Streamed(harness.Chat{"request_id": "r"})
	resume.Header["Last-Event-ID"] = strconv.Itoa(last)
	after = w.s.HTTP.MustStream(resume).MustRest(w)
	for i, f := range after {
		if f.ID != last+1+i {
			w.Errorf("frame %d follows %d", f.ID, last+i)
		}
	}
	if n := len(after); n < 2 || after[n-1].Event != "done" {
		w.Fatalf("the resumed stream is %v", after)
	}
	whole := w.f.Read("/v1/events/s/r")
	if all := w.s.HTTP.MustStream(whole).MustRest(w); len(all) != len(before)+len(after)+1 { // two marks, no done
		w.Errorf("the whole stream has %d frames, the parts %d and %d", len(all), len(before), len(after))
	}
	return before, after[:len(after)-1]
}

func streamInFlight(w *world) {
	w.hold("^a stream", "one two three four", "one two three four", 3)
	before, after := w.cutStream()
	completed := after[len(after)-1]
	if text := harness.Deltas(before) + harness.Deltas(after); text != "one two three four" || completed.Text("token.content") != text {
		w.Errorf("the deltas add up to %q, completed is %s", text, completed.Data)
	}
	if got := completed.Get("token.stream_discontinuity"); got != nil {
		w.Errorf("stream_discontinuity is %v", got)
	}
	w.wantCalls("^a stream", 1, 2)
}

func streamDiffers(w *world) {
	w.hold("^a stream", "one two three four", "one five six seven", 3)
	_, after := w.cutStream()
	completed := after[len(after)-1]
	text, broken := "one two three four", any(nil)
	if w.dies {
		text, broken = "one five six seven", true
	}
	if completed.Text("token.content") != text || completed.Get("token.stream_discontinuity") != broken {
		w.Errorf("completed is %s", completed.Data)
	}
}

func idempotencyKey(w *world) {
	ask := func(body string) harness.Reply {
		w.Helper()
		r := w.f.Request(body)
		r.Header["X-SVC-Idempotency-Key"] = "key"
		return w.s.HTTP.Must(r)
	}
	const body = `{"message":"a poem","agent_id":"poet"}`
	first := ask(body).Want(w, http.StatusOK)
	w.strike()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if again := ask(body); !bytes.Equal(first.Body, again.Body) {
				w.Errorf("the replay differs:\n%s\n%s", first.Body, again.Body)
			}
		})
	}
	wg.Wait()
	ask(`{"message":"another","agent_id":"poet"}`).Want(w, http.StatusConflict, "error.code", "CONFLICT")
	if n := w.model.Count(); n != 1 {
		w.Errorf("the model was asked %d times", n)
	}
}

func memoryWrite(w *world) {
	w.model.Add(fakellm.Rule{Purpose: "agent", User: "Ada", Reply: fakellm.Reply{Text: "Noted: Ada."}})
	w.f.Say(harness.Chat{"message": "My name is Ada", "agent_id": "poet", "session_id": "s"})
	w.strike()
	w.s.HTTP.Must(w.f.Read("/v1/sessions/s/messages")).Want(w, http.StatusOK, "data.count", "2",
		"data.messages.0.content", "My name is Ada", "data.messages.1.content", "Noted: Ada.")
	w.f.Say(harness.Chat{"message": "Who am I?", "agent_id": "poet", "session_id": "s"})
	all := w.model.Calls()
	if last := all[len(all)-1].Body; !strings.Contains(last, "My name is Ada") || !strings.Contains(last, "Noted: Ada.") {
		w.Errorf("the next turn does not know the last one: %s", last)
	}
}

func cancelled(w *world) {
	w.hold("^held", "too late", "too late", 0)
	id := w.s.HTTP.Must(w.f.Request(harness.Chat{"message": "held", "agent_id": "poet", "use_async": true})).Text("data.request_id")
	w.asked("^held", 1)
	r := w.f.Read("/v1/requests/" + id)
	r.Method = http.MethodDelete
	w.s.HTTP.Must(r).Want(w, http.StatusOK, "data.status", "cancelled")
	w.strike()
	w.model.Release("go")
	w.f.Say(harness.Chat{"message": "something else", "agent_id": "poet"}) // the formation works again
	w.s.HTTP.Must(w.f.Read("/v1/requests/"+id)).Want(w, http.StatusOK, "data.status", "cancelled")
	w.wantCalls("^held", 1, 1)
}

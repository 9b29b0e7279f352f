package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// answer makes every agent call return text.
func answer(text string) fakellm.Rule {
	return fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: text}}
}

func TestChatStream_HasExactlyTheFramesOfTheSpecification(t *testing.T) {
	t.Parallel()
	const text = "Roses are red,\nviolets are \"blue\". Ünïcode ✓"
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{Chunks: 6})
	model.Add(answer(text))
	f := s.Deploy("frames", suite.Pair(t, "frames", model.URL()))
	stream := s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "a poem with rhymes", "session_id": "s1", "request_id": "r1"}))
	if first, err := stream.Next(); err != nil || !first.Comment || first.Data != "keepalive" {
		t.Errorf("the stream begins with %+v (%v), want the comment keepalive", first, err)
	}
	frames := stream.MustRest(t)
	last, tokens := frames[len(frames)-1], frames[:len(frames)-1]
	if last.Event != "done" || last.Data != `{"finished":true}` || last.ID != len(frames) {
		t.Errorf("the stream ends with %+v", last)
	}
	for i, frame := range tokens {
		checkToken(t, i, frame)
	}
	checkOrder(t, tokens)
	if got := harness.Deltas(frames); got != text {
		t.Errorf("the deltas add up to %q, want %q", got, text)
	}
	if n := count(tokens, "content"); n != 6 {
		t.Errorf("%d content frames for 6 pieces of the model", n)
	}
	if end := tokens[len(tokens)-1]; end.Text("token.content") != text {
		t.Errorf("completed says %q, want the whole text", end.Text("token.content"))
	}
}

// checkToken looks at one unnamed frame of request r1 of session s1.
func checkToken(t *testing.T, i int, f harness.Frame) {
	t.Helper()
	fields := map[string][]string{
		"progress":  {"content", "request_id", "session_id", "stage", "timestamp", "type", "user_id"},
		"planning":  {"content", "request_id", "session_id", "timestamp", "type", "user_id"},
		"content":   {"content", "request_id", "session_id", "stage", "timestamp", "type", "user_id"},
		"completed": {"content", "processing_time_ms", "request_id", "session_id", "status", "timestamp", "type", "user_id"},
	}
	kind := f.Text("token.type")
	if f.Event != "" || f.ID != i+1 {
		t.Errorf("frame %d has event %q and id %d", i+1, f.Event, f.ID)
	}
	if diff := cmp.Diff([]string{"token"}, keys(f.Whole())); diff != "" {
		t.Errorf("frame %d holds more than a token: %s", i+1, f.Data)
	}
	if diff := cmp.Diff(fields[kind], keys(f.Get("token"))); diff != "" {
		t.Errorf("fields of a %s token (-want +got):\n%s", kind, diff)
	}
	reply := harness.Reply{Status: http.StatusOK, Body: []byte(f.Data)}
	reply.Want(t, http.StatusOK, "token.request_id", "r1", "token.session_id", "s1", "token.user_id", "ann")
	switch kind {
	case "content":
		reply.Want(t, http.StatusOK, "token.stage", "response_generation")
	case "completed":
		reply.Want(t, http.StatusOK, "token.status", "success")
	}
}

// checkOrder holds the types to progress → planning → content → completed,
// with progress anywhere before the end.
func checkOrder(t *testing.T, tokens []harness.Frame) {
	t.Helper()
	var order []string
	for _, f := range tokens {
		kind := f.Text("token.type")
		if kind == "progress" && len(order) > 0 {
			continue
		}
		if len(order) == 0 || order[len(order)-1] != kind {
			order = append(order, kind)
		}
	}
	if want := []string{"progress", "planning", "content", "completed"}; !slices.Equal(order, want) {
		t.Errorf("the types come as %v, want %v", order, want)
	}
	if stage := tokens[0].Text("token.stage"); stage != "init" {
		t.Errorf("the first stage is %q, want init", stage)
	}
}

func count(frames []harness.Frame, kind string) (n int) {
	for _, f := range frames {
		if f.Text("token.type") == kind {
			n++
		}
	}
	return n
}

func TestChatStream_ASettingTurnsDeltasOff(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(answer("All at once"))
	f := s.Deploy("whole", suite.Pair(t, "whole", model.URL()).With("\noverlord:\n  response:\n    streaming: true\n    stream_tokens: false\n"))
	// overlord.response.streaming makes the stream the default answer.
	frames := s.HTTP.MustStream(f.Request(harness.Chat{"message": "hello", "agent_id": "poet"})).MustRest(t)
	if n := count(frames, "content"); n != 0 {
		t.Errorf("%d content frames", n)
	}
	if text := frames[len(frames)-2].Text("token.content"); text != "All at once" {
		t.Errorf("completed says %q", text)
	}
	// The body's stream: false wins over the setting.
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet", "stream": false}).Want(t, http.StatusOK, "data.response", "All at once")
}

func TestChatStream_TheStreamingModelAnswersStreams(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	files := suite.Pair(t, "quick", model.URL())
	files["formation.afs"] = strings.Replace(files["formation.afs"], "    - text: openai/scripted\n", "    - text: openai/scripted\n    - streaming: openai/quick\n", 1)
	f := s.Deploy("quick", files)
	for stream, want := range map[bool]string{true: "quick", false: "scripted"} {
		before := model.Count()
		r := f.Request(harness.Chat{"message": "hello", "agent_id": "poet", "stream": stream})
		if stream {
			s.HTTP.MustStream(r).MustRest(t)
		} else {
			s.HTTP.Must(r).Want(t, http.StatusOK)
		}
		calls := model.Calls()[before:]
		if len(calls) != 1 || calls[0].Model != want || calls[0].Stream != stream {
			t.Errorf("stream %v: asked %+v", stream, calls)
		}
	}
	if n := len(model.Probes()); n != 2 {
		t.Errorf("%d models were asked at the load", n)
	}
}

func TestChatStream_TellsAFailureAndEnds(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Status: http.StatusBadRequest, Message: "no such thing"}})
	f := s.Deploy("fails", suite.Pair(t, "fails", model.URL()))
	frames := s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "hello", "agent_id": "poet"})).MustRest(t)
	if len(frames) < 2 {
		t.Fatalf("frames: %v", frames)
	}
	fault, last := frames[len(frames)-2], frames[len(frames)-1]
	if fault.Event != "error" || fault.Text("error") == "" || len(fault.Text("error")) > 200 || fault.Text("type") == "" {
		t.Errorf("the frame before the last is %+v", fault)
	}
	if last.Event != "done" || last.Data != `{"finished":true}` {
		t.Errorf("the last frame is %+v", last)
	}
	s.HTTP.Must(f.Request(harness.Chat{"message": "hello", "agent_id": "poet"})).
		Want(t, http.StatusInternalServerError, "object", "error", "type", "error.processing", "success", "false", "data", "{}")
}

func TestAsync_IsAcceptedAtOnceAndPollsToCompleted(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Slowly done.", Gate: "work"}})
	f := s.Deploy("later", suite.Pair(t, "later", model.URL()))
	// The model answers only when the gate opens, so the 202 did not wait for it.
	r := f.Request(harness.Chat{"message": "a poem", "agent_id": "poet", "use_async": true})
	accepted := s.HTTP.Must(r).Want(t, http.StatusAccepted, "object", "request", "type", "request.processing", "success", "true",
		"error", "null", "data.status", "processing", "data.delivery", "polling")
	id := accepted.Text("data.request_id")
	accepted.Want(t, http.StatusAccepted, "request.id", id, "data.poll_url", "/v1/requests/"+id)
	for _, base := range []string{f.Own(), f.Through()} {
		poll := f.Read("/v1/requests/" + id)
		poll.URL = base + accepted.Text("data.poll_url")
		reply := s.HTTP.Must(poll).Want(t, http.StatusOK, "object", "request_status", "type", "request.status.retrieved", "data.request_id", id)
		if got := reply.Text("data.status"); got != "processing" && got != "running" {
			t.Errorf("status %q while the model works", got)
		}
		if got := reply.Get("data.completed_at"); got != nil {
			t.Errorf("completed_at %v while the model works", got)
		}
	}
	model.Release("work")
	done := f.UntilEnded(harness.Context(t), id)
	done.Want(t, http.StatusOK, "data.status", "completed", "data.response", "Slowly done.", "data.result", "Slowly done.", "data.user_id", "ann")
	if done.Text("data.completed_at") == "" {
		t.Errorf("no completed_at in %s", done.Body)
	}
	s.HTTP.Must(f.Read("/v1/requests")).Want(t, http.StatusOK, "object", "request_list", "data.count", "1",
		"data.requests.0.request_id", id, "data.requests.0.status", "completed")
	other := f.Read("/v1/requests/" + id)
	other.Header["X-SVC-User-Id"] = "bob"
	s.HTTP.Must(other).Want(t, http.StatusForbidden, "error.code", "FORBIDDEN")
}

func TestCancel_EndsARequestForGood(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Never heard.", Gate: "never"}})
	f := s.Deploy("cancel", suite.Pair(t, "cancel", model.URL()))
	id := s.HTTP.Must(f.Request(harness.Chat{"message": "a poem", "agent_id": "poet", "use_async": true})).Text("data.request_id")
	if err := model.WaitCount(harness.Context(t), 1); err != nil {
		t.Fatal(err)
	}
	cancel := f.Read("/v1/requests/" + id)
	cancel.Method = http.MethodDelete
	s.HTTP.Must(cancel).Want(t, http.StatusOK, "object", "request_cancellation", "type", "request.cancelled", "data.status", "cancelled")
	f.UntilEnded(harness.Context(t), id).Want(t, http.StatusOK, "data.status", "cancelled")
	if err := model.WaitActive(harness.Context(t), 0); err != nil {
		t.Errorf("the model still works on it: %v", err)
	}
}

func TestSessions_AreListedWithTheirMessages(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(answer("An answer."))
	f := s.Deploy("talks", suite.Pair(t, "talks", model.URL()))
	f.Say(harness.Chat{"message": "first question", "agent_id": "cook", "session_id": "s1"})
	s.HTTP.Must(f.Read("/v1/sessions")).Want(t, http.StatusOK, "object", "session_list", "data.count", "1",
		"data.sessions.0.session_id", "s1", "data.sessions.0.user_id", "ann")
	reply := s.HTTP.Must(f.Read("/v1/sessions/s1/messages")).Want(t, http.StatusOK, "data.count", "2",
		"data.messages.0.content", "first question", "data.messages.0.metadata.role", "user",
		"data.messages.1.content", "An answer.", "data.messages.1.metadata.role", "assistant", "data.messages.1.metadata.agent_id", "cook")
	if strings.Contains(string(reply.Body), "fmc_") {
		t.Error("a key shows in the messages")
	}
}

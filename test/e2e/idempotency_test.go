package e2e

import (
	"bytes"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// keyed is a chat request with an idempotency key.
func keyed(f *harness.Formation, key string, body any) harness.Request {
	r := f.Request(body)
	r.Header["X-SVC-Idempotency-Key"] = key
	return r
}

func TestIdempotency_AReplayIsTheSameAnswerAndAsksTheModelOnce(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("once", suite.Pair(t, "once", model.URL()))
	first := s.HTTP.Must(keyed(f, "key-1", `{"message":"a poem","agent_id":"poet"}`)).
		Want(t, http.StatusOK, "request.idempotency_key", "key-1")
	again := s.HTTP.Must(keyed(f, "key-1", `{ "agent_id": "poet", "message": "a poem" }`))
	if again.Status != http.StatusOK || !bytes.Equal(again.Body, first.Body) {
		t.Errorf("the replay differs:\n%s\n%s", first.Body, again.Body)
	}
	through := keyed(f, "key-1", `{"message":"a poem","agent_id":"poet"}`)
	through.URL = f.Through() + "/v1/chat"
	if reply := s.HTTP.Must(through); !bytes.Equal(reply.Body, first.Body) {
		t.Errorf("the replay through the supervisor differs:\n%s", reply.Body)
	}
	if n := model.Count(); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	s.HTTP.Must(keyed(f, "key-1", `{"message":"another poem","agent_id":"poet"}`)).
		Want(t, http.StatusConflict, "object", "error", "error.code", "CONFLICT")
	other := keyed(f, "key-1", `{"message":"a poem","agent_id":"poet"}`)
	other.Header["X-SVC-User-Id"] = "bob" // keys of two users have nothing to do with each other
	if reply := s.HTTP.Must(other).Want(t, http.StatusOK, "data.user_id", "bob"); bytes.Equal(reply.Body, first.Body) {
		t.Error("another user got the first one's answer")
	}
	if n := model.Count(); n != 2 {
		t.Errorf("the model was asked %d times for two users", n)
	}
}

func TestIdempotency_FiftyAtTheSameMomentAskTheModelOnce(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "Only once.", Gate: "all sent"}})
	f := s.Deploy("fifty", suite.Pair(t, "fifty", model.URL()))
	const callers = 50
	var sent, ended sync.WaitGroup
	sent.Add(callers)
	replies := make([]harness.Reply, callers)
	errs := make([]error, callers)
	fresh := harness.Fresh(t)
	for i := range callers {
		ended.Go(func() {
			ctx := httptrace.WithClientTrace(harness.Context(t), &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { sent.Done() },
			})
			replies[i], errs[i] = fresh.Do(ctx, keyed(f, "same", `{"message":"a poem","agent_id":"poet"}`))
		})
	}
	sent.Wait()
	model.Release("all sent")
	ended.Wait()
	for i := range replies {
		if errs[i] != nil || replies[i].Status != http.StatusOK || !bytes.Equal(replies[i].Body, replies[0].Body) {
			t.Errorf("caller %d: %v, %d %s", i, errs[i], replies[i].Status, replies[i].Body)
		}
	}
	replies[0].Want(t, http.StatusOK, "request.idempotency_key", "same", "data.response", "Only once.")
	if n := model.Count(); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestIdempotency_FailuresAndStreamsRunAgain(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "fails", Times: 1, Reply: fakellm.Reply{Status: http.StatusBadRequest}},
		answer("Fine now."),
	)
	f := s.Deploy("again", suite.Pair(t, "again", model.URL()))
	body := harness.Chat{"message": "fails at first", "agent_id": "poet"}
	s.HTTP.Must(keyed(f, "k", body)).Want(t, http.StatusInternalServerError)
	s.HTTP.Must(keyed(f, "k", body)).Want(t, http.StatusOK, "data.response", "Fine now.")
	before := model.Count()
	seen := map[string]bool{}
	for range 2 {
		r := keyed(f, "k", body)
		r.Header["Accept"] = "text/event-stream"
		frames := s.HTTP.MustStream(r).MustRest(t)
		seen[frames[0].Text("token.request_id")] = true
	}
	if n := model.Count() - before; n != 2 || len(seen) != 2 {
		t.Errorf("two streams asked the model %d times and are %d requests", n, len(seen))
	}
}

func TestIdempotency_AsyncAcceptanceIsReplayed(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("accept", suite.Pair(t, "accept", model.URL()))
	body := harness.Chat{"message": "a poem", "agent_id": "poet", "use_async": true}
	first := s.HTTP.Must(keyed(f, "k", body)).Want(t, http.StatusAccepted, "request.idempotency_key", "k")
	again := s.HTTP.Must(keyed(f, "k", body)).Want(t, http.StatusAccepted)
	if !bytes.Equal(first.Body, again.Body) {
		t.Errorf("the replay differs:\n%s\n%s", first.Body, again.Body)
	}
	f.UntilEnded(harness.Context(t), first.Text("data.request_id")).Want(t, http.StatusOK, "data.status", "completed")
	if n := model.Count(); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

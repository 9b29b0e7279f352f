package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// body decodes a request's JSON body.
func body(t *testing.T, r *http.Request) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		t.Error(err)
	}
	return m
}

func TestChat_ReturnsTheWholeAnswer(t *testing.T) {
	t.Parallel()
	var sent map[string]any
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		sent = body(t, r)
		answer(w, 200, `{"object":"chat_response","success":true,"data":{"response":"4","message":{"role":"assistant"},"session_id":"sess_1","user_id":"ada","request_id":"req_1","status":"success","agent":"math","model":"demo/m","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}}`)
	})
	reply, err := f.Chat(t.Context(), client.ChatRequest{Message: "2+2", AgentID: "math", SessionID: "sess_1", RequestID: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	want := &client.ChatReply{
		RequestID: "req_1", SessionID: "sess_1", UserID: "ada", Response: "4", Status: "success", Agent: "math",
		Model: "demo/m", Usage: client.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3},
		Message: client.ChatMessage{Role: "assistant"},
	}
	if diff := cmp.Diff(want, reply); diff != "" {
		t.Error(diff)
	}
	wantSent := map[string]any{"message": "2+2", "agent_id": "math", "session_id": "sess_1", "request_id": "r1", "stream": false}
	if diff := cmp.Diff(wantSent, sent); diff != "" {
		t.Error(diff)
	}
}

func TestChatStream_HandsOnFramesAndReturnsTheLast(t *testing.T) {
	t.Parallel()
	var sent map[string]any
	var header http.Header
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		sent, header = body(t, r), r.Header
		events(w, ": keepalive",
			"id: 1\ndata: {\"token\":{\"type\":\"progress\",\"stage\":\"init\",\"content\":\"\",\"timestamp\":1}}",
			"id: 2\ndata: {\"token\":{\"type\":\"content\",\"content\":\"Hel\",\"stage\":\"response_generation\"}}",
			"id: 3\ndata: {\"token\":{\"type\":\"content\",\"content\":\"lo\"}}",
			"id: 4\ndata: {\"token\":{\"type\":\"completed\",\"content\":\"Hello\",\"status\":\"success\",\"processing_time_ms\":12.5,\"session_id\":\"sess_1\",\"request_id\":\"req_1\"}}",
			"event: ui\ndata: {\"ui\":[]}",
			"event: done\ndata: {\"finished\":true}",
			"data: {\"token\":{\"type\":\"content\",\"content\":\"after the end\"}}")
	})
	var got []string
	last, err := f.ChatStream(t.Context(), client.ChatRequest{Message: "hi", RequestID: "r", LastEventID: "0"}, func(tok client.Token) error {
		got = append(got, tok.EventID+" "+tok.Type+" "+tok.Content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1 progress ", "2 content Hel", "3 content lo", "4 completed Hello"}, got); diff != "" {
		t.Error(diff)
	}
	if last.Content != "Hello" || last.SessionID != "sess_1" || last.ProcessingTimeMS != 12.5 || last.EventID != "4" {
		t.Errorf("completed %+v", last)
	}
	if sent["stream"] != true || header.Get("Last-Event-ID") != "0" || header.Get("Accept") != "text/event-stream" {
		t.Errorf("sent %v with %v", sent, header)
	}
}

func TestChatStream_EndsForEachReason(t *testing.T) {
	t.Parallel()
	const content = "data: {\"token\":{\"type\":\"content\",\"content\":\"a\"}}"
	const completed = "data: {\"token\":{\"type\":\"completed\",\"content\":\"a\"}}"
	for name, tc := range map[string]struct {
		frames []string
		status int
		err    string // name, "" for success
	}{
		"done without data":    {[]string{completed, "event: done"}, 0, ""},
		"finished, no name":    {[]string{completed, "data: {\"finished\":true}"}, 0, ""},
		"done is missing":      {[]string{content, completed}, 0, ""},
		"cut":                  {[]string{content}, 0, client.NameBrokenStream},
		"done, not completed":  {[]string{content, "event: done"}, 200, client.NameBadReply},
		"failed":               {[]string{content, "event: error\ndata: {\"error\":\"m\",\"type\":\"error.processing\"}", "event: done"}, 500, "error.processing"},
		"failed with a code":   {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.processing\",\"code\":\"BUDGET_EXCEEDED\"}"}, 429, "BUDGET_EXCEEDED"},
		"failed, no such":      {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.not_found\",\"code\":\"SOMETHING_NEW\"}"}, 404, "SOMETHING_NEW"},
		"failed, unknown":      {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.not_found\"}"}, 404, "error.not_found"},
		"failed, invalid":      {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.validation\"}"}, 400, "error.validation"},
		"failed, key":          {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.authentication\"}"}, 401, "error.authentication"},
		"failed, not allowed":  {[]string{"event: error\ndata: {\"error\":\"m\",\"type\":\"error.authorization\"}"}, 403, "error.authorization"},
		"failed without JSON":  {[]string{"event: error\ndata: oops"}, 200, client.NameBadReply},
		"a frame without JSON": {[]string{"data: oops"}, 200, client.NameBadReply},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFormation(t, func(w http.ResponseWriter, _ *http.Request) { events(w, tc.frames...) })
			last, err := f.ChatStream(t.Context(), client.ChatRequest{Message: "hi"}, func(client.Token) error { return nil })
			if tc.err == "" {
				if err != nil || last == nil || last.Content != "a" {
					t.Errorf("token %v, error %v", last, err)
				}
				return
			}
			wantError(t, err, tc.status, tc.err)
		})
	}
}

func TestChatStream_ARefusalIsTheReplysError(t *testing.T) {
	t.Parallel()
	f := newFormation(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 404, `{"object":"error","type":"error.not_found","request":{"id":"req_9"},"success":false,"error":{"code":"AGENT_NOT_FOUND","message":"no agent x"},"data":{}}`)
	})
	_, err := f.ChatStream(t.Context(), client.ChatRequest{Message: "hi", AgentID: "x"}, nil)
	if e := wantError(t, err, 404, "AGENT_NOT_FOUND"); e.RequestID != "req_9" {
		t.Errorf("request id %q", e.RequestID)
	}
}

func TestChatStream_TheSinkEndsIt(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		events(w, "data: {\"token\":{\"type\":\"content\",\"content\":\"a\"}}")
		<-r.Context().Done()
		close(gone)
	})
	closed := errors.New("pipe closed")
	_, err := f.ChatStream(t.Context(), client.ChatRequest{Message: "hi"}, func(client.Token) error { return closed })
	if !errors.Is(err, closed) {
		t.Errorf("ended with %v", err)
	}
	<-gone
}

// silent sends comments for a while and then nothing for ever.
type silent struct{ comments int }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	go func() {
		for range s.comments {
			select {
			case <-time.After(time.Second):
				io.WriteString(pw, ": keepalive\n\n") //nolint:errcheck // the reader may be gone
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
		pw.CloseWithError(r.Context().Err())
	}()
	h := http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}
	return &http.Response{StatusCode: 200, Header: h, Body: pr, Request: r}, nil
}

func TestChatStream_GivesUpAfterSilenceAndCommentsAreNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, err := client.NewFormation(client.FormationConfig{
			URL: "http://formation", HTTP: &http.Client{Transport: &silent{comments: 100}},
		})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = f.ChatStream(t.Context(), client.ChatRequest{Message: "hi"}, nil)
		wantError(t, err, 0, client.NameBrokenStream)
		if got := time.Since(start); got != 160*time.Second {
			t.Errorf("gave up after %v, want 100 s of comments and 60 s of silence", got)
		}
	})
}

func TestChatAsync_IsAcceptedAndWaitedFor(t *testing.T) {
	t.Parallel()
	var sent map[string]any
	looks := 0
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			sent = body(t, r)
			answer(w, 202, `{"data":{"request_id":"req_1","status":"processing","delivery":"polling","poll_url":"/v1/requests/req_1"}}`)
			return
		}
		looks++
		status := `"processing","progress":"thinking"`
		if looks == 3 {
			status = `"completed","progress":null,"result":"4","response":"4","completed_at":"2026-01-02T03:04:05Z"`
		}
		answer(w, 200, `{"data":{"request_id":"req_1","user_id":"ada","created_at":"2026-01-02T03:04:05Z","status":`+status+`}}`)
	})
	accepted, err := f.ChatAsync(t.Context(), client.ChatRequest{Message: "2+2"})
	if err != nil {
		t.Fatal(err)
	}
	if accepted.RequestID != "req_1" || accepted.Delivery != "polling" || sent["use_async"] != true || sent["stream"] != false {
		t.Errorf("accepted %+v after %v", accepted, sent)
	}
	r, err := f.WaitRequest(t.Context(), accepted.RequestID)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != "completed" || r.Response != "4" || looks != 3 || string(r.Result) != `"4"` {
		t.Errorf("after %d looks: %+v", looks, r)
	}
}

func TestWaitRequest_EndsAtEachEndAndWithErrors(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"completed", "failed", "cancelled", "awaiting_clarification"} {
		f := newFormation(t, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, `{"data":{"request_id":"r","status":"`+status+`","error":"why","error_code":"UNKNOWN_OUTCOME"}}`)
		})
		r, err := f.WaitRequest(t.Context(), "r")
		if err != nil || r.Status != status || r.Failure != "why" || r.FailureCode != "UNKNOWN_OUTCOME" {
			t.Errorf("%s: %+v, %v", status, r, err)
		}
	}
	f := newFormation(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 404, `{"error":{"code":"REQUEST_NOT_FOUND","message":"m"}}`)
	})
	_, err := f.WaitRequest(t.Context(), "r")
	wantError(t, err, 404, "REQUEST_NOT_FOUND")
}

func TestFormation_DecodesItsLists(t *testing.T) {
	t.Parallel()
	replies := map[string]string{
		"/v1/health":                   `{"status":"healthy","formation_id":"hello","version":"1.0.0","timestamp":"2026-01-02T03:04:05Z","data":{}}`,
		"/v1/agents":                   `{"data":{"agents":[{"id":"math","name":"M","enabled":true,"tools":[]}],"count":1}}`,
		"/v1/sessions":                 `{"data":{"sessions":[{"session_id":"sess_1","title":null,"last_activity":"2026-01-02T03:04:05Z","active":true}],"count":1}}`,
		"/v1/sessions/sess_1/messages": `{"data":{"messages":[{"id":"m1","content":"hi","metadata":{"role":"user"}}]}}`,
		"DELETE /v1/requests/req_1":    `{"data":{"request_id":"req_1","status":"cancelled","cancellation":"immediate"}}`,
	}
	var queries bytes.Buffer
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		queries.WriteString(r.URL.RawQuery)
		key := r.URL.Path
		if r.Method != http.MethodGet {
			key = r.Method + " " + key
		}
		answer(w, 200, replies[key])
	})
	health, err := f.Health(t.Context())
	if err != nil || health.Status != "healthy" || health.FormationID != "hello" {
		t.Errorf("health %+v, %v", health, err)
	}
	agents, err := f.Agents(t.Context())
	if err != nil || len(agents) != 1 || agents[0].ID != "math" || !agents[0].Enabled {
		t.Errorf("agents %+v, %v", agents, err)
	}
	sessions, err := f.Sessions(t.Context(), 7)
	if err != nil || len(sessions) != 1 || sessions[0].SessionID != "sess_1" || queries.String() != "limit=7" {
		t.Errorf("sessions %+v, %v, asked %s", sessions, err, queries.String())
	}
	messages, err := f.Messages(t.Context(), "sess_1")
	if err != nil || len(messages) != 1 || messages[0].Metadata.Role != "user" {
		t.Errorf("messages %+v, %v", messages, err)
	}
	if done, err := f.CancelRequest(t.Context(), "req_1"); err != nil || done.Cancellation != "immediate" {
		t.Errorf("cancelled %+v, %v", done, err)
	}
}

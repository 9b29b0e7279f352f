package provider

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

func TestGoogle_ReadsWhatTheProtocolMaySend(t *testing.T) {
	t.Parallel()
	usage := `"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":5,"thoughtsTokenCount":3,"cachedContentTokenCount":4,"totalTokenCount":18}`
	for _, c := range []struct {
		name, body   string
		text, finish string
	}{
		{"thoughts are not text", `{"candidates":[{"content":{"parts":[{"text":"hmm","thought":true},{"text":"ok"}]},"finishReason":"STOP"}],` + usage + `}`, "ok", "stop"},
		{"a blocked prompt", `{"promptFeedback":{"blockReason":"SAFETY"},` + usage + `}`, "", "content_filter"},
		{"a blocked answer", `{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"RECITATION"}],` + usage + `}`, "a", "content_filter"},
		{"no content", `{"candidates":[{"finishReason":"MAX_TOKENS"}],` + usage + `}`, "", "length"},
		{"a reason of tomorrow", `{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"BORED"}],` + usage + `}`, "a", "stop"},
		{"only the first candidate", `{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"},{"content":{"parts":[{"text":"b"}]},"finishReason":"STOP"}],` + usage + `}`, "a", "stop"},
	} {
		for _, deltas := range []bool{false, true} {
			h := plainly(http.StatusOK, c.body)
			if deltas {
				h = stream(c.body)
			}
			reply, err := collect(t, adapter(t, NewGoogle, "sk-test-1", h), hello(deltas))
			want := chat.Usage{PromptTokens: 10, CompletionTokens: 8, TotalTokens: 18, CachedTokens: 4}
			if err != nil || reply.Text != c.text || reply.Last.Finish != c.finish || reply.Last.Usage != want {
				t.Errorf("%s, deltas %t: text %q, last %+v, error %v", c.name, deltas, reply.Text, reply.Last, err)
			}
		}
	}
}

func TestGoogle_KnowsWhyItWasRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		reason llm.Reason
		wait   time.Duration
	}{
		{400, `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}`, llm.Rejected, 0},
		{429, `{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}`, llm.Throttled, 34500 * time.Millisecond},
		{429, `{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDay-FreeTier"}]},{"retryDelay":"7s"}]}}`, llm.Exhausted, 7 * time.Second},
		{503, `<html>down</html>`, llm.Overloaded, 0},
	} {
		_, err := collect(t, adapter(t, NewGoogle, "sk-test-1", plainly(c.status, c.body)), hello(false))
		var failed *llm.CallError
		if !errors.As(err, &failed) || failed.Reason != c.reason || failed.Status != c.status || failed.RetryAfter != c.wait {
			t.Errorf("%s: error %#v, want reason %d, wait %s", c.body, err, c.reason, c.wait)
		}
	}
}

func TestGoogle_BringsTheSignatureOfACallBack(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	m, err := NewGoogle(llm.Endpoint{Name: "google", BaseURL: fake.URL(), Key: "k", Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	fake.Add(fakellm.Rule{Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "c1", Name: "f", Args: `{"html":"<a>&"}`}}}})
	req := hello(true)
	reply, err := collect(t, m, req)
	if err != nil || len(reply.Last.Calls) != 1 || reply.Last.Calls[0].Seal == "" || string(reply.Last.Calls[0].Args) != `{"html":"<a>&"}` {
		t.Fatalf("reply %+v, error %v", reply, err)
	}
	req.Messages = append(req.Messages, chat.Message{Role: chat.Assistant, Calls: reply.Last.Calls}, chat.Message{Role: chat.Tool, CallID: "c1", Content: "ok"})
	if _, err := collect(t, m, req); err != nil {
		t.Fatal(err)
	}
	calls := fake.Calls()
	if body := calls[len(calls)-1].Body; !strings.Contains(body, `"thoughtSignature":"`+reply.Last.Calls[0].Seal+`"`) {
		t.Errorf("the signature did not come back: %s", body)
	}
}

func TestGoogle_AsksInWordsWhenAModelTakesNoSchema(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	m := adapter(t, NewGoogle, "sk-test-1", func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(body), "responseJsonSchema") {
			plainly(http.StatusBadRequest, `{"error":{"code":400,"message":"The specified schema produces a constraint that has too many states","status":"INVALID_ARGUMENT"}}`)(w, r)
			return
		}
		plainly(http.StatusOK, "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"```json\\n{}\\n```\"}]},\"finishReason\":\"STOP\"}]}")(w, r)
	})
	req := hello(false)
	req.Schema = []byte(`{"type":"object"}`)
	for i := range 2 {
		if reply, err := collect(t, m, req); err != nil || reply.Text != "{}" {
			t.Fatalf("call %d: %q, error %v", i, reply.Text, err)
		}
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("%d requests for two calls, want 3: the refusal is remembered", n)
	}
}

func TestGoogle_BoundsAnEvent(t *testing.T) {
	t.Parallel()
	junk := strings.Repeat("x", 1<<20)
	m := adapter(t, NewGoogle, "sk-test-1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range maxReply >> 20 {
			if _, err := io.WriteString(w, junk); err != nil {
				return
			}
		}
	})
	_, err := collect(t, m, hello(true))
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Garbled || !strings.Contains(failed.Detail, "8 MiB") {
		t.Errorf("error %v", err)
	}
}

func TestTripBody_EndsAtItsBounds(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", 1<<20) + "\n"
	for name, c := range map[string]struct {
		events bool
		piece  string
		want   error
	}{
		"an event of a stream": {true, line[:1<<20], errEventTooLong},
		"a stream":             {true, line, errReplyTooLong},
		"a plain reply":        {false, line[:1<<20], errReplyTooLong},
	} {
		pieces := make([]io.Reader, 80)
		for i := range pieces {
			pieces[i] = strings.NewReader(c.piece)
		}
		on := &trip{}
		body := io.NopCloser(io.MultiReader(pieces...))
		var b io.Reader = &tripBody{on: on, body: body, left: maxReply}
		if c.events {
			b = newEventBody(on, body)
		}
		if _, err := io.Copy(io.Discard, b); err != nil || !errors.Is(on.err, c.want) {
			t.Errorf("%s: the SDK sees %v, the trip has %v, want %v", name, err, on.err, c.want)
		}
	}
}

// TestGoogle_ReadsWhatProxiesAddToAStream: what the SDK would take for a fault.
func TestGoogle_ReadsWhatProxiesAddToAStream(t *testing.T) {
	t.Parallel()
	one := `{"candidates":[{"content":{"parts":[{"text":"Gr\u00fc"}]}}]}`
	two := `{"candidates":[{"content":{"parts":[{"text":"ße 你好"}]},"finishReason":"STOP"}]}`
	for name, body := range map[string]string{
		"as documented":          "data: " + one + "\r\n\r\ndata: " + two + "\r\n\r\n",
		"comments":               ": hello\n\ndata: " + one + "\n\n: still here\n\n: and here\n\ndata: " + two + "\n\n",
		"a comment in an event":  ": x\ndata: " + one + "\n: y\n\ndata: " + two + "\n\n",
		"names, ids and retries": "event: message\nid: 1\ndata: " + one + "\n\nretry: 10\n\nevent: message\ndata: " + two + "\n\n",
		"a mark of the end":      "data: " + one + "\n\ndata: " + two + "\n\ndata: [DONE]\n\n",
		"lines of one event":     "data: " + strings.Replace(one, ",", ",\ndata: ", 1) + "\n\ndata:" + two + "\n\n",
		"no last line end":       "data: " + one + "\n\ndata: " + two,
		"more empty lines":       "\n\n\ndata: " + one + "\n\n\n\n\ndata: " + two + "\n\n\n",
	} {
		h := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, b := range []byte(body) { // every border of a chunk
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
			}
		}
		reply, err := collect(t, adapter(t, NewGoogle, "sk-test-1", h), hello(true))
		if err != nil || reply.Text != "Grüße 你好" || reply.Last.Finish != "stop" {
			t.Errorf("%s: %q, %+v, error %v", name, reply.Text, reply.Last, err)
		}
	}
	for name, body := range map[string]string{
		"an error that is no event": "data: " + one + "\n\n{\n \"error\": {\"code\": 503, \"message\": \"busy\", \"status\": \"UNAVAILABLE\"}\n}\n",
		"an error as an event":      "data: " + one + "\n\ndata: {\"error\": {\"code\": 503, \"message\": \"busy\", \"status\": \"UNAVAILABLE\"}}\n\n",
	} {
		_, err := collect(t, adapter(t, NewGoogle, "sk-test-1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, body)
		}), hello(true))
		var failed *llm.CallError
		if !errors.As(err, &failed) || failed.Reason != llm.Overloaded || failed.Detail != "busy" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestGoogle_KnowsAWebPageFromAModel(t *testing.T) {
	t.Parallel()
	m := adapter(t, NewGoogle, "sk-test-1", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><html>hello</html>")
	})
	if _, err := collect(t, m, hello(false)); err == nil || !strings.Contains(err.Error(), "check llm.endpoints.vendor") {
		t.Errorf("error %v", err)
	}
}

func TestOllama_TellsWhatToDo(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	fake.Add(fakellm.Rule{Reply: fakellm.Reply{Status: 404, Message: `model "m" not found, try pulling it first`}})
	for _, path := range []string{"", "/", "/v1", "/v1/"} {
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		m, err := NewOllama(llm.Endpoint{Name: "ollama", BaseURL: fake.Root() + path, Transport: tr})
		if err != nil {
			t.Fatal(err)
		}
		_, err = collect(t, m, hello(true))
		if err == nil || !strings.Contains(err.Error(), "ollama pull m (installed: fake:latest, small:1b)") {
			t.Errorf("%q: error %v", path, err)
		}
		e, _ := m.(llm.Embedder)
		if _, err = e.Embed(t.Context(), llm.EmbedRequest{Model: "e", Texts: []string{"a"}}); err == nil || !strings.Contains(err.Error(), "ollama pull e") {
			t.Errorf("%q: error %v", path, err)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	m, err := NewOllama(llm.Endpoint{Name: "ollama", BaseURL: srv.URL, Transport: &http.Transport{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t, m, hello(false)); err == nil || !strings.Contains(err.Error(), "is ollama running at 127.0.0.1:") {
		t.Errorf("error %v", err)
	}
}

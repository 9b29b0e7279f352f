package provider

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

// serve runs a handler as a model server and returns an adapter for it.
func serve(t *testing.T, key llm.Secret, h http.HandlerFunc) *openAI {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	m, err := NewOpenAI(llm.Endpoint{Name: "local", BaseURL: srv.URL + "/v1", Key: key, Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	return m.(*openAI)
}

func stream(data ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, d := range data {
			_, _ = io.WriteString(w, "data: "+d+"\n\n")
		}
	}
}

func collect(t *testing.T, m llm.Model, req llm.Request) (llm.Reply, error) {
	t.Helper()
	return llm.Collect(m.Stream(t.Context(), req), nil)
}

func hello(deltas bool) llm.Request {
	return llm.Request{Model: "m", Messages: []chat.Message{{Role: chat.User, Content: "hello"}}, Deltas: deltas}
}

func TestOpenAI_SendsWhatTheProtocolWants(t *testing.T) {
	t.Parallel()
	var got map[string]any
	var header http.Header
	m := serve(t, "sk-1", func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		if r.URL.Path != "/v1/chat/completions" {
			t.Errorf("path %s", r.URL.Path)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		stream(`{"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}`, "[DONE]")(w, r)
	})
	temperature, limit := 0.5, 100
	_, err := collect(t, m, llm.Request{
		Model: "m", Deltas: true, SchemaName: "route", Schema: json.RawMessage(`{"type":"object","additionalProperties":false}`),
		Settings: llm.Settings{Temperature: &temperature, MaxTokens: &limit},
		Tools:    []chat.ToolSpec{{Name: "f", Description: "does \"it\"", Schema: json.RawMessage(`{"type":"object"}`)}, {Name: "g"}},
		Messages: []chat.Message{
			{Role: chat.System, Content: "be\nbrief"},
			{Role: chat.User, Content: "hi 🙂"},
			{Role: chat.Assistant, Calls: []chat.ToolCall{{ID: "c1", Name: "f", Args: json.RawMessage(`{"a":"b"}`)}, {ID: "c2", Name: "g"}}},
			{Role: chat.Tool, CallID: "c1", Content: "done"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(`{"model":"m","messages":[
		{"role":"system","content":"be\nbrief"},{"role":"user","content":"hi 🙂"},
		{"role":"assistant","content":null,"tool_calls":[
			{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":\"b\"}"}},
			{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"done"}],
		"tools":[{"type":"function","function":{"name":"f","description":"does \"it\"","parameters":{"type":"object"}}},
			{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}],
		"temperature":0.5,"max_tokens":100,"stream":true,"stream_options":{"include_usage":true},
		"response_format":{"type":"json_schema","json_schema":{"name":"route","strict":true,"schema":{"type":"object","additionalProperties":false}}}}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if header.Get("Authorization") != "Bearer sk-1" || header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", header)
	}
	for name := range header {
		if strings.HasPrefix(name, "X-Stainless") {
			t.Errorf("header %s describes this machine", name)
		}
	}
}

// The official client reads the fake without a fault: what the adapter is
// tested against is what OpenAI's own users are served.
func TestFake_SatisfiesTheOfficialClient(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	fake.Add(fakellm.Rule{User: "tools", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "c1", Name: "f", Args: `{"a":1}`}}}})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	client := openai.NewClient(option.WithBaseURL(fake.URL()), option.WithAPIKey("k"), option.WithHTTPClient(&http.Client{Transport: tr}))
	params := func(text string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
	}
	plain, err := client.Chat.Completions.New(t.Context(), params("hello"))
	if err != nil || plain.Choices[0].Message.Content != "Fake answer to: hello" || plain.Usage.TotalTokens == 0 {
		t.Errorf("plain: %+v, error %v", plain, err)
	}
	if text, err := typedText(client, params("hello"), true); err != nil || text != "Fake answer to: hello" {
		t.Errorf("stream: %q, error %v", text, err)
	}
	s := client.Chat.Completions.NewStreaming(t.Context(), params("tools"))
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		acc.AddChunk(s.Current())
	}
	if err := errors.Join(s.Err(), s.Close()); err != nil || len(acc.Choices) != 1 || len(acc.Choices[0].Message.ToolCalls) != 1 ||
		acc.Choices[0].Message.ToolCalls[0].Function.Arguments != `{"a":1}` {
		t.Errorf("tool calls: %+v, error %v", acc.Choices, err)
	}
	vectors, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "e", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}}, Dimensions: openai.Int(8),
	})
	if err != nil || len(vectors.Data) != 2 || len(vectors.Data[1].Embedding) != 8 {
		t.Errorf("embeddings: %+v, error %v", vectors, err)
	}
}

func TestOpenAI_ReadsTheDialectsOfOtherServers(t *testing.T) {
	t.Parallel()
	call := func(id, args string) chat.ToolCall {
		return chat.ToolCall{ID: id, Name: "f", Args: json.RawMessage(args)}
	}
	for _, c := range []struct {
		name  string
		data  []string
		text  string
		done  string // finish reason
		calls []chat.ToolCall
	}{
		{"no [DONE] but a finish reason", []string{`{"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}`}, "ok", "stop", nil},
		{"no finish reason but [DONE]", []string{`{"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]"}, "ok", "stop", nil},
		{"content as parts", []string{`{"choices":[{"delta":{"content":[{"type":"text","text":"o"},{"type":"text","text":"k"}]}}]}`, "[DONE]"}, "ok", "stop", nil},
		{"a refusal", []string{`{"choices":[{"delta":{"refusal":"no, "}}]}`, `{"choices":[{"delta":{"refusal":"sorry"},"finish_reason":"stop"}]}`, "[DONE]"}, "no, sorry", "content_filter", nil},
		{"thoughts are not text", []string{`{"choices":[{"delta":{"reasoning_content":"hmm","content":null}}]}`, `{"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]"}, "ok", "stop", nil},
		{"a rune cut between deltas", []string{`{"choices":[{"delta":{"content":"\ud83d"}}]}`, `{"choices":[{"delta":{"content":"\ude42"}}]}`, "[DONE]"}, "🙂", "stop", nil},
		{"half a rune at the end", []string{`{"choices":[{"delta":{"content":"a\ud83d"}}]}`, "[DONE]"}, "a\ufffd", "stop", nil},
		{"empty data", []string{"", `{"choices":[{"delta":{"content":"ok"}}]}`, " ", "[DONE]"}, "ok", "stop", nil},
		{"a null error", []string{`{"error":null,"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]"}, "ok", "stop", nil},
		{"only the first choice", []string{`{"choices":[{"delta":{"content":"ok"}},{"delta":{"content":"no"}}]}`, "[DONE]"}, "ok", "stop", nil},
		{"calls without an index", []string{
			`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"f","arguments":"{\"x\""}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":":1}"}}]},"finish_reason":"stop"}]}`, "[DONE]",
		}, "", "tool_calls", []chat.ToolCall{call("a", "{}"), call("b", `{"x":1}`)}},
		{"arguments as an object", []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":{"x":1}}}]}}]}`, "[DONE]"}, "", "tool_calls", []chat.ToolCall{call("a", `{"x":1}`)}},
		{"a name in every piece", []string{
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"}"}}]},"finish_reason":"function_call"}]}`,
		}, "", "tool_calls", []chat.ToolCall{call("a", "{}")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reply, err := collect(t, serve(t, "", stream(c.data...)), hello(true))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.calls, reply.Last.Calls); reply.Text != c.text || reply.Last.Finish != c.done || diff != "" {
				t.Errorf("text %q, finish %q, calls (-want +got):\n%s", reply.Text, reply.Last.Finish, diff)
			}
		})
	}
}

func TestOpenAI_NamesACallThatHasNoID(t *testing.T) {
	t.Parallel()
	m := serve(t, "", stream(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":1,"function":{"name":"f"}}]}}]}`, "[DONE]"))
	reply, err := collect(t, m, hello(true))
	if err != nil || len(reply.Last.Calls) != 2 {
		t.Fatalf("calls %v, error %v", reply.Last.Calls, err)
	}
	a, b := reply.Last.Calls[0].ID, reply.Last.Calls[1].ID
	if !strings.HasPrefix(a, "call_") || !strings.HasPrefix(b, "call_") || a == b {
		t.Errorf("ids %q and %q", a, b)
	}
}

func TestOpenAI_ReadsAPlainReplyWhereAStreamWasAskedFor(t *testing.T) {
	t.Parallel()
	m := serve(t, "", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"model":"real-name","choices":[{"message":{"content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}`)
	})
	reply, err := collect(t, m, hello(true))
	want := chat.Usage{PromptTokens: 3, CompletionTokens: 4, TotalTokens: 7, CachedTokens: 2}
	if err != nil || reply.Text != "ok" || reply.Last.Model != "real-name" || reply.Last.Usage != want {
		t.Errorf("reply %+v, error %v", reply, err)
	}
}

func TestOpenAI_LeavesOutWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, field, refusal string
	}{
		{"temperature", `"temperature"`, `{"error":{"message":"Unsupported value: 'temperature' does not support 0.5 with this model.","param":"temperature","code":"unsupported_value"}}`},
		{"token limit", `"max_tokens"`, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","code":"unsupported_parameter"}}`},
		{"stream options", `"stream_options"`, `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`},
		{"schema", `"json_schema"`, `{"error":{"message":"This response_format type is unavailable now"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			m := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if strings.Contains(string(body), c.field) {
					w.WriteHeader(http.StatusBadRequest)
					_, _ = io.WriteString(w, c.refusal)
					return
				}
				stream(`{"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]")(w, r)
			})
			req := hello(true)
			temperature, limit := 0.5, 100
			req.Settings = llm.Settings{Temperature: &temperature, MaxTokens: &limit}
			req.Schema = json.RawMessage(`{"type":"object"}`)
			for i := range 2 {
				if reply, err := collect(t, m, req); err != nil || reply.Text != "ok" {
					t.Fatalf("call %d: %q, error %v", i, reply.Text, err)
				}
			}
			if n := calls.Load(); n != 3 {
				t.Errorf("%d requests for two calls, want 3: the refusal is remembered", n)
			}
		})
	}
}

func TestOpenAI_GivesUpOnAServerThatRefusesEverything(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	m := serve(t, "", func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"message":"unknown: temperature max_tokens max_completion_tokens stream_options response_format"}`)
	})
	req := hello(true)
	temperature, limit := 0.5, 100
	req.Settings = llm.Settings{Temperature: &temperature, MaxTokens: &limit}
	_, err := collect(t, m, req)
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Refused || calls.Load() > 10 {
		t.Errorf("error %v after %d calls", err, calls.Load())
	}
}

func TestOpenAI_TakesNoKeyToAnotherHost(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(other.Close)
	m := serve(t, "sk-1", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	_, err := collect(t, m, hello(false))
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Missing {
		t.Errorf("error %v", err)
	}
}

func TestOpenAI_KnowsAWebPageFromAModel(t *testing.T) {
	t.Parallel()
	m := serve(t, "", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><html>hello</html>")
	})
	_, err := collect(t, m, hello(false))
	if err == nil || !strings.Contains(err.Error(), "check llm.endpoints.local") {
		t.Errorf("error %v", err)
	}
}

func TestOpenAI_ShowsAShortErrorWithoutTheKey(t *testing.T) {
	t.Parallel()
	m := serve(t, "sk-secret", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"your key\nsk-secret `+strings.Repeat("ü", 100_000)+`"}`)
	})
	_, err := collect(t, m, hello(false))
	if err == nil {
		t.Fatal("no error")
	}
	if text := err.Error(); strings.Contains(text, "sk-secret") || strings.Contains(text, "\n") || len(text) > 400 {
		t.Errorf("error %q", text)
	}
}

// TestVendors_HideSecretsInWhatAProviderSays: a secret that stands where the text
// is cut is hidden, too.
func TestVendors_HideSecretsInWhatAProviderSays(t *testing.T) {
	t.Parallel()
	const secret = "another-secret-of-the-formation"
	said := strings.Repeat("x", maxDetail-10) + " " + secret
	for name, c := range map[string]struct {
		open llm.Provider
		body string
	}{
		"openai":    {NewOpenAI, `{"error":{"message":"` + said + `"}}`},
		"anthropic": {NewAnthropic, `{"type":"error","error":{"type":"invalid_request_error","message":"` + said + `"}}`},
		"google":    {NewGoogle, `{"error":{"code":400,"message":"` + said + `","status":"INVALID_ARGUMENT"}}`},
		"ollama":    {NewOllama, `{"error":"` + said + `"}`},
	} {
		for _, where := range []struct {
			name    string
			handler http.HandlerFunc
		}{{"refused", plainly(http.StatusBadRequest, c.body)}, {"in the stream", stream(c.body)}} {
			open := func(ep llm.Endpoint) (llm.Model, error) {
				ep.Hide = func(text string) string { return strings.ReplaceAll(text, secret, "[redacted]") }
				return c.open(ep)
			}
			_, err := collect(t, adapter(t, open, "", where.handler), hello(true))
			if err == nil || strings.Contains(err.Error(), secret[:4]) || !strings.Contains(err.Error(), "xxx [red") {
				t.Errorf("%s, %s: %v", name, where.name, err)
			}
		}
	}
}

func TestOpenAI_BoundsToolCalls(t *testing.T) {
	t.Parallel()
	many := `{"choices":[{"delta":{"tool_calls":[` + strings.TrimSuffix(strings.Repeat(`{"function":{"name":"f"}},`, 100_000), ",") + `]}}]}`
	_, err := collect(t, serve(t, "", stream(many, "[DONE]")), hello(true))
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Garbled {
		t.Errorf("error %v", err)
	}
}

func TestOpenAI_ReportsARefusedConnection(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	srv.Close()
	m, err := NewOpenAI(llm.Endpoint{Name: "local", BaseURL: url, Transport: &http.Transport{}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = collect(t, m, hello(false))
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Broken || failed.Detail != "connection refused" {
		t.Errorf("error %v", err)
	}
}

func TestNewOpenAI_ChecksTheEndpoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ep   llm.Endpoint
		want string // "" is no error
	}{
		{"no key for OpenAI", llm.Endpoint{Name: "openai"}, "llm.api_keys.openai"},
		{"no key for another", llm.Endpoint{Name: "x", BaseURL: "http://127.0.0.1:9000/v1"}, ""},
		{"not a URL", llm.Endpoint{Name: "x", BaseURL: "127.0.0.1:9000"}, "llm.endpoints.x"},
		{"another scheme", llm.Endpoint{Name: "x", BaseURL: "ftp://host/v1"}, "llm.endpoints.x"},
		{"a user in the URL", llm.Endpoint{Name: "x", BaseURL: "http://u:p@host/v1"}, "llm.endpoints.x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := NewOpenAI(c.ep)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "u:p") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestNewOpenAI_IgnoresTheEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-of-somebody-else")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("OPENAI_ORG_ID", "org")
	m := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("OpenAI-Organization") != "" {
			t.Errorf("headers %v", r.Header)
		}
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"ok"}}]}`)
	})
	if _, err := collect(t, m, hello(false)); err != nil {
		t.Error(err)
	}
}

// pipes is a listener whose connections are made in memory, so that a bubble's
// time passes only while nobody has anything to do.
type pipes struct {
	dialed atomic.Int64
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	p.dialed.Add(1)
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.closed); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func TestOpenAI_WaitsAMomentForTheEndOfAStream(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pause time.Duration // of the server before the end
		want  int64         // connections
	}{"short": {drainTime - 1, 1}, "long": {drainTime + 1, 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				line := &pipes{conns: make(chan net.Conn, 8), closed: make(chan struct{})}
				srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					stream(`{"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]")(w, r)
					_ = http.NewResponseController(w).Flush()
					<-time.After(tc.pause)
				})}
				served := make(chan error, 1)
				go func() { served <- srv.Serve(line) }()
				tr := &http.Transport{DialContext: line.dial}
				m, err := NewOpenAI(llm.Endpoint{Name: "local", BaseURL: "http://local/v1", Transport: tr})
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if reply, err := collect(t, m, hello(true)); err != nil || reply.Text != "ok" {
						t.Errorf("reply %+v, error %v", reply, err)
					}
				}
				if n := line.dialed.Load(); n != tc.want {
					t.Errorf("3 calls in a row used %d connections, want %d", n, tc.want)
				}
				<-time.After(time.Minute) // the server has ended its replies
				tr.CloseIdleConnections()
				srv.Close()
				if err := <-served; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			})
		})
	}
}

func TestOpenAI_DoesNotWaitForAStreamToCloseForever(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	m := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
		stream(`{"choices":[{"delta":{"content":"ok"}}]}`, "[DONE]")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	reply, err := llm.Collect(m.Stream(ctx, hello(true)), nil)
	if err != nil || reply.Text != "ok" || ctx.Err() != nil {
		t.Errorf("reply %+v, errors %v and %v", reply, err, ctx.Err())
	}
	<-left
}

func TestRetryAfter_ReadsAllForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		header, value string
		want          time.Duration
	}{
		{"Retry-After", "3", 3 * time.Second},
		{"Retry-After", "0.5", 500 * time.Millisecond},
		{"Retry-After", "Fri, 02 Jan 2026 03:04:15 GMT", 10 * time.Second},
		{"Retry-After", "Fri, 02 Jan 2026 03:00:00 GMT", 0},
		{"Retry-After-Ms", "20", 20 * time.Millisecond},
		{"Retry-After", "-1", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "1e300", 24 * time.Hour},
		{"Retry-After", "soon", 0},
		{"X-Other", "3", 0},
	} {
		h := http.Header{}
		h.Set(c.header, c.value)
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("%s: %s gives %s, want %s", c.header, c.value, got, c.want)
		}
	}
}

func FuzzReply_SurvivesAnyServer(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"index\":0,\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\ndata: [DONE]\n\n")
	f.Add("data: {\"error\":{\"message\":\"x\"}}\n\n")
	f.Add("data: {\"usage\":{\"prompt_tokens\":1e99}}\n\n")
	f.Fuzz(func(t *testing.T, body string) {
		o := &openAI{wire: wire{peer: peer{name: "local"}}}
		dones := 0
		r := newReply("m", func(c llm.Chunk, err error) bool {
			if err != nil || !json.Valid(mustQuote(c.Text)) {
				t.Fatalf("chunk %+v, error %v", c, err)
			}
			if c.Done {
				dones++
			}
			return true
		})
		err := o.readStream(strings.NewReader(body), r, func() {})
		if (err == nil) != (dones == 1) {
			t.Fatalf("error %v and %d chunks that are done", err, dones)
		}
	})
}

func mustQuote(text string) []byte { return appendString(nil, text) }

package provider

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// adapter makes an adapter against a handler.
func adapter(t *testing.T, open llm.Provider, key llm.Secret, h http.HandlerFunc) llm.Model {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	m, err := open(llm.Endpoint{Name: "vendor", BaseURL: srv.URL, Key: key, Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// plainly answers with body, as JSON.
func plainly(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestAnthropic_ReadsWhatTheProtocolMaySend(t *testing.T) {
	t.Parallel()
	start := `{"type":"message_start","message":{"id":"m","model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":20,"cache_read_input_tokens":300,"output_tokens":1}}}`
	end := func(reason string) string {
		return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `"},"usage":{"output_tokens":9}}`
	}
	stop := `{"type":"message_stop"}`
	text := func(s string) string {
		return `{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"` + s + `"}}`
	}
	for _, c := range []struct {
		name         string
		data         []string
		text, finish string
		args         string // of the one call, "" is none
	}{
		{"thoughts are not text", []string{
			start, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hmm"}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x"}}`, text("ok"), end("end_turn"), stop,
		}, "ok", "stop", ""},
		{"an event of tomorrow", []string{start, `{"type":"weather_report","delta":7}`, text("ok"), end("end_turn"), stop}, "ok", "stop", ""},
		{"a rune cut between deltas", []string{start, text(`\ud83d`), text(`\ude42`), end("end_turn"), stop}, "🙂", "stop", ""},
		{"nothing more to say", []string{start, end("end_turn"), stop}, "", "stop", ""},
		{"a refusal", []string{start, text("no"), end("refusal"), stop}, "no", "content_filter", ""},
		{"a full window", []string{start, text("a"), end("model_context_window_exceeded"), stop}, "a", "length", ""},
		{"a call without arguments", []string{
			start, `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":""}}`, end("tool_use"), stop,
		}, "", "tool_calls", "{}"},
		{"a delta of a block that was not opened", []string{
			start, `{"type":"content_block_delta","index":9,"delta":{"type":"input_json_delta","partial_json":"{}"}}`, text("ok"), end("end_turn"), stop,
		}, "ok", "stop", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reply, err := collect(t, adapter(t, NewAnthropic, "sk-test-1", stream(c.data...)), hello(true))
			if err != nil {
				t.Fatal(err)
			}
			args := ""
			if len(reply.Last.Calls) == 1 {
				args = string(reply.Last.Calls[0].Args)
			}
			want := chat.Usage{PromptTokens: 325, CompletionTokens: 9, TotalTokens: 334, CachedTokens: 300}
			if reply.Text != c.text || reply.Last.Finish != c.finish || args != c.args || reply.Last.Model != "claude-x" || reply.Last.Usage != want {
				t.Errorf("text %q, last %+v", reply.Text, reply.Last)
			}
		})
	}
}

func TestAnthropic_KnowsWhyItWasRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		reason llm.Reason
	}{
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}`, llm.Exhausted},
		{402, `{"type":"error","error":{"type":"billing_error","message":"pay"}}`, llm.Exhausted},
		{413, `{"type":"error","error":{"type":"request_too_large","message":"big"}}`, llm.Refused},
		{529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, llm.Overloaded},
		{200, `{"error":{"type":"permission_error","message":"no"}}`, llm.Rejected},
	} {
		_, err := collect(t, adapter(t, NewAnthropic, "sk-test-1", plainly(c.status, c.body)), hello(false))
		var failed *llm.CallError
		if !errors.As(err, &failed) || failed.Reason != c.reason || failed.Detail == "" {
			t.Errorf("%s: error %#v, want reason %d", c.body, err, c.reason)
		}
	}
}

func TestAnthropic_LeavesOutWhatTheModelRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, field, message string }{
		{"temperature", `"temperature"`, "`temperature` is deprecated for this model."},
		{"schema", `"output_config"`, "output_config.format: Extra inputs are not permitted"},
		{"a keyword of the schema", `"output_config"`, "output_config.format.schema: For 'integer' type, property 'minimum' is not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			m := adapter(t, NewAnthropic, "sk-test-1", func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if strings.Contains(string(body), c.field) {
					message, _ := json.Marshal(c.message)
					plainly(http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":`+string(message)+`}}`)(w, r)
					return
				}
				block := `{"type":"text","text":"{\"a\":1}"}`
				if strings.Contains(string(body), `"tool_choice"`) {
					block = `{"type":"tool_use","id":"x","name":"answer","input":{"a":1}}`
				}
				plainly(http.StatusOK, `{"content":[`+block+`],"stop_reason":"tool_use"}`)(w, r)
			})
			req := hello(false)
			temperature := 0.5
			req.Settings.Temperature = &temperature
			req.Schema = json.RawMessage(`{"type":"object","additionalProperties":false}`)
			for i := range 2 {
				reply, err := collect(t, m, req)
				if err != nil || reply.Text != `{"a":1}` || len(reply.Last.Calls) != 0 {
					t.Fatalf("call %d: %+v, error %v", i, reply, err)
				}
			}
			if n := calls.Load(); n != 3 {
				t.Errorf("%d requests for two calls, want 3: the refusal is remembered", n)
			}
		})
	}
}

func TestAnthropic_TakesJSONOutOfACodeBlock(t *testing.T) {
	t.Parallel()
	for _, deltas := range []bool{false, true} {
		h := plainly(http.StatusOK, "{\"content\":[{\"type\":\"text\",\"text\":\"```json\\n{\\\"a\\\":1}\\n```\"}],\"stop_reason\":\"end_turn\"}")
		if deltas {
			h = stream("{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"```json\\n{\\\"a\\\"\"}}",
				"{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\":1}\\n```\"}}",
				`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`, `{"type":"message_stop"}`)
		}
		req := hello(deltas)
		req.JSON = true
		if reply, err := collect(t, adapter(t, NewAnthropic, "sk-test-1", h), req); err != nil || reply.Text != `{"a":1}` {
			t.Errorf("deltas %t: %q, error %v", deltas, reply.Text, err)
		}
	}
}

func TestUnfenced_LeavesOtherTextAlone(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"```json\n{}\n```": "{}", " ```\n{}```\n": "{}", "{}": "{}", "```": "```", "``````": "``````", "see ```\n{}\n```": "see ```\n{}\n```", "": "",
	} {
		if got := string(unfenced([]byte(in))); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func TestAnthropic_MarksOnlyLongPromptsForTheCache(t *testing.T) {
	t.Parallel()
	a := &anthropic{}
	tools := []chat.ToolSpec{{Name: "f"}}
	long := strings.Repeat("x", minCached)
	for _, c := range []struct {
		name     string
		messages []chat.Message
		tools    []chat.ToolSpec
		want     int
	}{
		{"short", []chat.Message{{Role: chat.System, Content: "s"}, {Role: chat.User, Content: "u"}}, tools, 0},
		{"one question to a long prompt", []chat.Message{{Role: chat.System, Content: long}, {Role: chat.User, Content: "u"}}, nil, 1},
		{"an agent with tools", []chat.Message{{Role: chat.System, Content: long}, {Role: chat.User, Content: "u"}}, tools, 2},
		{"a long conversation", []chat.Message{{Role: chat.User, Content: long}, {Role: chat.Assistant, Content: "a"}, {Role: chat.User, Content: "u"}}, nil, 1},
		{"one long question", []chat.Message{{Role: chat.User, Content: long}}, nil, 0},
		{"long tools", []chat.Message{{Role: chat.User, Content: "u"}}, []chat.ToolSpec{{Name: "f", Description: long}}, 2},
	} {
		params, _, err := a.params(llm.Request{Messages: c.messages, Tools: c.tools}, messageQuirks{})
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(body), `"cache_control"`); n != c.want {
			t.Errorf("%s: %d marks, want %d", c.name, n, c.want)
		}
	}
}

func TestAnthropic_SendsTheSameBytesEachTime(t *testing.T) {
	t.Parallel()
	req := goldenRequests()["conversation"]
	var first []byte
	for range 20 {
		params, _, err := (&anthropic{}).params(req, messageQuirks{})
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = body
		} else if string(first) != string(body) {
			t.Fatal("the provider's cache would not know the second request")
		}
	}
}

func TestVendors_IgnoreTheEnvironment(t *testing.T) {
	for _, name := range []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT"} {
		t.Setenv(name, "of-somebody-else")
	}
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
	for name, open := range map[string]llm.Provider{"anthropic": NewAnthropic, "google": NewGoogle} {
		reached := false
		m := adapter(t, open, "", func(w http.ResponseWriter, r *http.Request) {
			reached = true
			for header, values := range r.Header {
				if strings.Contains(strings.Join(values, " "), "somebody") || strings.EqualFold(header, "X-Goog-Api-Key") || strings.EqualFold(header, "X-Api-Key") {
					t.Errorf("%s: header %s: %s", name, header, values)
				}
			}
			plainly(http.StatusOK, `{}`)(w, r)
		})
		if _, err := collect(t, m, hello(false)); err == nil || !reached {
			t.Errorf("%s: reached %t, error %v", name, reached, err)
		}
	}
}

func TestVendors_CheckTheEndpoint(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]llm.Provider{"anthropic": NewAnthropic, "google": NewGoogle} {
		if _, err := open(llm.Endpoint{Name: name}); err == nil || !strings.Contains(err.Error(), "llm.api_keys."+name) {
			t.Errorf("no key: %v", err)
		}
		if _, err := open(llm.Endpoint{Name: name, Key: "k"}); err != nil {
			t.Errorf("a key: %v", err)
		}
		if _, err := open(llm.Endpoint{Name: name, BaseURL: "http://u:p@host"}); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("a user in the URL: %v", err)
		}
	}
	if _, err := NewOllama(llm.Endpoint{Name: "ollama"}); err != nil {
		t.Errorf("ollama needs neither: %v", err)
	}
}

func TestVendors_TakeNoKeyToAnotherHost(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(other.Close)
	for name, open := range map[string]llm.Provider{"anthropic": NewAnthropic, "google": NewGoogle, "ollama": NewOllama} {
		m := adapter(t, open, "sk-1", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		})
		_, err := collect(t, m, hello(false))
		var failed *llm.CallError
		if !errors.As(err, &failed) || failed.Reason != llm.Missing {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzMessageReply_SurvivesAnyServer(f *testing.F) {
	f.Add("data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":{}}}\n\ndata: {\"type\":\"message_stop\"}\n\n")
	f.Add("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n")
	f.Fuzz(func(t *testing.T, body string) {
		w := &wire{peer: peer{name: "vendor"}}
		dones := 0
		r := newMessageReply("m", func(c llm.Chunk, err error) bool {
			if err != nil || !json.Valid(mustQuote(c.Text)) {
				t.Fatalf("chunk %+v, error %v", c, err)
			}
			if c.Done {
				dones++
			}
			return true
		})
		err := w.readStream(strings.NewReader(body), r, func() {})
		if (err == nil) != (dones == 1) {
			t.Fatalf("error %v and %d chunks that are done", err, dones)
		}
	})
}

package provider

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenRequests exercise every place of a protocol that a request can fill.
func goldenRequests() map[string]llm.Request {
	temperature, limit := 1.5, 100
	long := strings.Repeat("Be careful. ", 400)
	return map[string]llm.Request{
		"conversation": {
			Model: "gemini-3-claude-gpt", Deltas: true, Settings: llm.Settings{Temperature: &temperature, MaxTokens: &limit},
			Tools: []chat.ToolSpec{
				{Name: "weather", Description: "tells \"it\"", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`)},
				{Name: "noop"},
			},
			Messages: []chat.Message{
				{Role: chat.System, Content: long},
				{Role: chat.User, Content: "compare 🙂", Parts: []chat.Part{
					{Kind: chat.Image, MediaType: "image/png", Name: "a.png", Data: []byte("png")},
					{Kind: chat.Document, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF")},
				}},
				{Role: chat.Assistant, Content: "I look.\n", Calls: []chat.ToolCall{
					{ID: "functions.weather:0", Name: "weather", Args: json.RawMessage(`{"city":"Zürich"}`), Seal: "c2VhbGVk"},
					{ID: "c2", Name: "weather", Args: json.RawMessage(`{"city":`)},
					{ID: "c3", Name: "noop"},
				}},
				{Role: chat.Tool, CallID: "functions.weather:0", Content: "rain"},
				{Role: chat.Tool, CallID: "c2", Content: "not valid JSON"},
				{Role: chat.Tool, CallID: "c3"},
				{Role: chat.Assistant, Calls: []chat.ToolCall{{ID: "c4", Name: "noop"}}},
				{Role: chat.Tool, CallID: "c4", Content: "done"},
				{Role: chat.User, Content: "and now?"},
			},
		},
		"schema": {
			Model: "m", SchemaName: "route", Schema: json.RawMessage(`{"type":"object","properties":{"agent_id":{"type":"string","enum":["a","b"]}},"required":["agent_id"],"additionalProperties":false}`),
			Messages: []chat.Message{{Role: chat.System, Content: "Route."}, {Role: chat.User, Content: "hello"}},
		},
		"open schema": {
			Model: "m", SchemaName: "notes", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`),
			Messages: []chat.Message{{Role: chat.User, Content: "hello"}},
		},
		"any JSON": {Model: "m", JSON: true, Messages: []chat.Message{{Role: chat.User, Content: "hello"}}},
		"JSON beside tools": {
			Model: "m", JSON: true, Messages: []chat.Message{{Role: chat.User, Content: "hello"}}, Tools: []chat.ToolSpec{{Name: "noop"}},
		},
	}
}

// goldens are the protocols with the vendor's own type of a request, nil where
// the SDK makes the body of its types itself.
func goldens() map[string]struct {
	open llm.Provider
	typ  func() any
} {
	return map[string]struct {
		open llm.Provider
		typ  func() any
	}{
		"openai":    {NewOpenAI, func() any { return new(openai.ChatCompletionNewParams) }},
		"anthropic": {NewAnthropic, func() any { return new(sdk.MessageNewParams) }},
		"google":    {NewGoogle, nil},
	}
}

// The bodies in testdata/wire were compared by hand with the vendors'
// references; what the vendor's own type does not know would be lost on the way
// through it, and shows.
func TestWire_SendsTheDocumentedShapes(t *testing.T) {
	t.Parallel()
	for protocol, g := range goldens() {
		for name, req := range goldenRequests() {
			t.Run(protocol+"/"+name, func(t *testing.T) {
				t.Parallel()
				body := sent(t, g.open, func(m llm.Model) error {
					_, err := llm.Collect(m.Stream(t.Context(), req), nil)
					return err
				})
				compareGolden(t, protocol+"-"+strings.ReplaceAll(name, " ", "-"), body)
				if g.typ != nil {
					throughVendorType(t, body, g.typ())
				}
			})
		}
	}
}

func TestWire_SendsTheDocumentedShapesOfEmbeddings(t *testing.T) {
	t.Parallel()
	for protocol, g := range goldens() {
		if protocol == "anthropic" {
			continue // it has none
		}
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			body := sent(t, g.open, func(m llm.Model) error {
				e, _ := m.(llm.Embedder)
				_, err := e.Embed(t.Context(), llm.EmbedRequest{Model: "e", Task: llm.TaskQuery, Texts: []string{"a \"b\"", "🙂"}})
				return err
			})
			compareGolden(t, protocol+"-embed", body)
			if protocol == "openai" {
				throughVendorType(t, body, new(openai.EmbeddingNewParams))
			}
		})
	}
}

// sent returns the body of the one call that ask makes. The fake refuses what
// the vendor would.
func sent(t *testing.T, open llm.Provider, ask func(llm.Model) error) []byte {
	t.Helper()
	fake := fakellm.Start(t, fakellm.Options{})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	m, err := open(llm.Endpoint{Name: "vendor", BaseURL: fake.URL(), Key: "k", Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(m); err != nil {
		t.Fatal(err)
	}
	calls := fake.Calls()
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	return []byte(calls[0].Body)
}

func compareGolden(t *testing.T, name string, body []byte) {
	t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, body, "", "  "); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	pretty.WriteByte('\n')
	path := filepath.Join("testdata", "wire", name+".json")
	if *update {
		if err := os.WriteFile(path, pretty.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// throughVendorType decodes body into a type of the SDK and encodes it again.
func throughVendorType(t *testing.T, body []byte, typ any) {
	t.Helper()
	if err := json.Unmarshal(body, typ); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(typ)
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := json.Unmarshal(body, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &got); err != nil {
		t.Fatal(err)
	}
	delete(want, "stream") // the SDKs set it apart from their types
	messages, _ := want["messages"].([]any)
	for _, m := range messages { // null and absent are the same to OpenAI
		if m, ok := m.(map[string]any); ok && m["content"] == nil {
			delete(m, "content")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the vendor's type holds another body (-sent +typed):\n%s", diff)
	}
}

package provider_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/llm/provider"
	"github.com/agentformation/service/test/fakellm"
)

// The SDK of Google links a library that keeps a goroutine from its start.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// transport is closed with the test, so that goleak sees what the adapter leaves.
func transport(t *testing.T) *http.Transport {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// against makes an adapter whose endpoint is the fake's root with path.
func against(open llm.Provider, path string) func(*testing.T, *fakellm.Server) llm.Model {
	return func(t *testing.T, fake *fakellm.Server) llm.Model {
		t.Helper()
		m, err := open(llm.Endpoint{Name: "vendor", BaseURL: fake.Root() + path, Key: llmtest.Key, Transport: transport(t)})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

var everyKind = []chat.PartKind{chat.Image, chat.Audio, chat.Video, chat.Document}

func TestOpenAI_KeepsThePromisesOfModels(t *testing.T) {
	t.Parallel()
	llmtest.Run(t, llmtest.Suite{
		New: against(provider.NewOpenAI, "/v1"), Media: everyKind,
		TextArgs: true, TextArgsStreamed: true, Embeds: true, CountsEmbedded: true,
	})
}

func TestAnthropic_KeepsThePromisesOfModels(t *testing.T) {
	t.Parallel()
	llmtest.Run(t, llmtest.Suite{
		New: against(provider.NewAnthropic, ""), Media: []chat.PartKind{chat.Image, chat.Document}, TextArgsStreamed: true,
	})
}

func TestGoogle_KeepsThePromisesOfModels(t *testing.T) {
	t.Parallel()
	llmtest.Run(t, llmtest.Suite{New: against(provider.NewGoogle, ""), Media: everyKind, Embeds: true})
}

func TestOllama_KeepsThePromisesOfModels(t *testing.T) {
	t.Parallel()
	llmtest.Run(t, llmtest.Suite{
		New: against(provider.NewOllama, ""), Media: everyKind,
		TextArgs: true, TextArgsStreamed: true, Embeds: true, CountsEmbedded: true,
	})
}

// TestVendors_KeepTheTextWholeWhateverBreaks runs the promise of a restarted
// stream over the wire: a restart shows exactly when text was heard before the
// break, and the final text is whole.
func TestVendors_KeepTheTextWholeWhateverBreaks(t *testing.T) {
	t.Parallel()
	const poem = "Grüße aus Köln — 你好, 🙂."
	for name, c := range map[string]struct {
		fault   fakellm.Reply
		restart bool
	}{
		"before a word":          {fakellm.Reply{Reset: true}, false},
		"a burst":                {fakellm.Reply{Status: 500}, false},
		"after the headers":      {fakellm.Reply{Text: poem, Cut: true}, false},
		"after two deltas":       {fakellm.Reply{Text: poem, Chunks: 5, CutAfter: 3}, true},
		"inside a later rune":    {fakellm.Reply{Text: "plain words first " + poem, Chunks: 9, CutRune: true}, true},
		"an error in the middle": {fakellm.Reply{Text: poem, Chunks: 5, FailAfter: 3}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, vendor := range []string{"openai", "anthropic", "google", "ollama"} {
				fake := fakellm.Start(t, fakellm.Options{})
				fake.Add(fakellm.Rule{Times: 1, Reply: c.fault}, fakellm.Rule{Reply: fakellm.Reply{Text: poem}})
				r, err := llm.NewRouter(llm.Config{Providers: provider.All(), Endpoints: map[string]string{vendor: fake.URL()}, Transport: transport(t)})
				if err != nil {
					t.Fatal(err)
				}
				req := llm.Request{Deltas: true, Settings: llm.Settings{MaxRetries: 2}, Messages: []chat.Message{{Role: chat.User, Content: "hello"}}}
				reply, err := llm.Collect(r.Stream(t.Context(), vendor+"/m", req), nil)
				if err != nil || reply.Text != poem || reply.Restarted != c.restart {
					t.Errorf("%s: text %q, restarted %t, error %v", vendor, reply.Text, reply.Restarted, err)
				}
			}
		})
	}
}

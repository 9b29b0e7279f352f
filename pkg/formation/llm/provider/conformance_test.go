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

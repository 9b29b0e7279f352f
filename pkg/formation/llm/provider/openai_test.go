package provider_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/llm/provider"
	"github.com/agentformation/service/test/fakellm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// transport is closed with the test, so that goleak sees what the adapter leaves.
func transport(t *testing.T) *http.Transport {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestOpenAI_KeepsThePromisesOfModels(t *testing.T) {
	t.Parallel()
	llmtest.Run(t, func(t *testing.T, fake *fakellm.Server) llm.Model {
		m, err := provider.NewOpenAI(llm.Endpoint{Name: "openai", BaseURL: fake.URL(), Key: llmtest.Key, Transport: transport(t)})
		if err != nil {
			t.Fatal(err)
		}
		return m
	})
}

// Package provider holds the wire protocols behind llm.Model, one file group
// per protocol: openai*.go for OpenAI and every server that speaks its chat
// completions (ollama.go for one of them), anthropic*.go, google*.go, and
// demo*.go for the offline model. The vendors' official SDKs make the requests
// and carry them; retries, budgets and timeouts are the Router's. Vendor types
// do not leave the package. Only the assembly of a formation imports it.
package provider

import "github.com/agentformation/service/pkg/formation/llm"

// All returns the providers that a formation may name without configuration.
func All() map[string]llm.Provider {
	return map[string]llm.Provider{
		"openai":    NewOpenAI,
		"anthropic": NewAnthropic,
		"google":    NewGoogle,
		"ollama":    NewOllama,
		"demo":      NewDemo,
	}
}

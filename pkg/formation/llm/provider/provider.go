// Package provider holds the wire protocols behind llm.Model, one file group
// per protocol: openai*.go for OpenAI and every server that speaks its chat
// completions, demo*.go for the offline model. Vendor types do not leave the
// package. Only the assembly of a formation imports it.
package provider

import "github.com/agentformation/service/pkg/formation/llm"

// All returns the providers that a formation may name without configuration.
func All() map[string]llm.Provider {
	return map[string]llm.Provider{
		"openai": NewOpenAI,
		"ollama": NewOllama,
		"demo":   NewDemo,
	}
}

package manifest

import (
	"maps"
	"slices"
	"strings"
)

// later lists, by block, the keys that are read and checked but that nothing
// acts upon yet; a file that has one is told so. Who makes a key work takes it
// out of here. The entries of llm.models are capabilities, those of files kinds
// of files that are found by their place.
func later() map[string][]string {
	return map[string][]string{
		"": {
			"runtime", "svc_runtime", "scheduler", "a2a", "rce",
			"skills", "middleware", "rbac", "proactive", "commands", "tuning", "coding", "artifacts",
			"executor", "document_processing", "triggers", "knowledge",
		},
		"logging":           {"conversation", "redaction"},
		"logging.system":    {"destination"},
		"input_limits":      {"max_memory_entry_size"},
		"llm.documents":     {"extraction", "cache_ttl_seconds"},
		"mcp":               {"enhance_user_prompts", "watch"},
		"mcp.auth":          {"accept_inline"},
		"async":             {"webhook_url", "webhook_retries", "webhook_timeout", "webhook_secret"},
		"overlord":          {"clarification", "workflow"},
		"overlord.llm":      {"max_extraction_tokens"},
		"overlord.response": {"retry_async"},
		"memory": {
			"working", "persistent", "events", "decay", "projections", "graph", "captains_log", "lessons",
			"compaction", "index", "lint", "ingestion", "distillery",
		},
		"memory.buffer": {"multiplier", "vector_search", "embedding_model"},
		"agent": {
			"a2a_enabled", "a2a", "knowledge", "skills",
		},
		"agent.llm.settings": {"caching"},
		"user_credentials":   {"require_https", "credential_ttl_minutes", "max_attempts"},
		"files":              {"skills", "sops", "triggers", "transformers", "groups"},
	}
}

// laterText names all of them, for the rule.
func laterText() string {
	blocks := later()
	var all []string
	for _, block := range slices.Sorted(maps.Keys(blocks)) {
		for _, key := range blocks[block] {
			all = append(all, join(block, key))
		}
	}
	return strings.Join(all, ", ")
}

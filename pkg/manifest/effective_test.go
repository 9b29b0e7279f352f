package manifest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/manifest"
)

func parse(t *testing.T, text string) *manifest.Formation {
	t.Helper()
	f, _, err := manifest.Parse("formation.afs", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// find returns what stands at a dotted path of a tree.
func find(tree any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		block, _ := tree.(map[string]any)
		tree = block[key]
	}
	return tree
}

func TestEffective_FillsInDefaultsAndKeepsWhatIsWritten(t *testing.T) {
	t.Parallel()
	f := parse(t, head+`
overlord:
  persona: "Be kind, ${{ env.NAME }}."
  clarification: {max_questions: {direct: 1}}
  workflow: {timeouts: {task_timeout: 5m}}
llm:
  api_keys: {openai: "${{ secrets.OPENAI }}"}
  settings: {temperature: 0}
  models: [{text: openai/gpt-5}]
mcp: {watch: false, max_tool_calls: 5}
own_key: {any: thing}
agents: [{id: a, description: b}]
`)
	tree := f.Effective()
	for path, want := range map[string]any{
		"overlord.soul": "Be kind, ${{ env.NAME }}.", "overlord.persona": nil,
		"overlord.clarification.max_rounds.direct": int64(1), "overlord.clarification.max_rounds.planning": float64(7),
		"overlord.clarification.max_questions": nil, "overlord.clarification.style": "conversational",
		"overlord.workflow.timeouts.task_timeout": "5m", "overlord.workflow.timeouts.phase_timeout": float64(600),
		"overlord.response.retry_async.deadline": nil, "overlord.response.retry_async.max_attempts": float64(2),
		"llm.api_keys.openai": "${{ secrets.OPENAI }}", "llm.settings.temperature": int64(0), "llm.settings.max_tokens": 4096,
		"llm.settings.timeout_seconds": float64(30), "llm.settings.caching.p": 0.98,
		"mcp.watch": false, "mcp.max_tool_calls": int64(5), "mcp.connection_ttl": float64(300),
		"async.result_ttl": float64(86400), "server.port": float64(8271), "user_credentials.mode": "redirect",
		"own_key.any": "thing", "scheduler": nil, "rce": nil, "proactive": nil, "coding": nil, "middleware": nil,
	} {
		if got := find(tree, path); got != want {
			t.Errorf("%s is %v (%T), want %v (%T)", path, got, got, want, want)
		}
	}
	if _, err := json.Marshal(tree); err != nil {
		t.Error(err)
	}
	tree["own_key"].(map[string]any)["any"] = "changed"
	if find(f.Effective(), "own_key.any") != "thing" {
		t.Error("a caller changes the formation")
	}
}

func TestEffectiveAgents_FillInDefaults(t *testing.T) {
	t.Parallel()
	f := parse(t, head+`
agents:
  - {id: a, description: b}
  - {id: c, description: d, delegation_strategy: never, metadata: {icon: x}, rate_limiting: {requests_per_minute: 5}}
`)
	want := []map[string]any{
		{"id": "a", "description": "b", "active": true, "a2a_enabled": true, "enable_direct_delegation": true, "delegation_strategy": "automatic"},
		{
			"id": "c", "description": "d", "active": true, "a2a_enabled": true, "enable_direct_delegation": true, "delegation_strategy": "never",
			"metadata": map[string]any{"icon": "x"},
			"rate_limiting": map[string]any{
				"requests_per_minute": int64(5), "requests_per_hour": float64(0), "requests_per_day": float64(0), "burst_limit": float64(0),
			},
		},
	}
	if diff := cmp.Diff(want, f.EffectiveAgents()); diff != "" {
		t.Error(diff)
	}
}

func TestMaskSecrets_HidesWhatIsWrittenOut(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-hunter2"
	mask := func(string) string { return "#" }
	for name, c := range map[string]struct{ in, want any }{
		"key":         {map[string]any{"api_key": secret, "model": "x"}, map[string]any{"api_key": "#", "model": "x"}},
		"placeholder": {map[string]any{"api_key": "${{ secrets.X }}"}, map[string]any{"api_key": "${{ secrets.X }}"}},
		"bearer":      {map[string]any{"Authorization": "Bearer ${{ secrets.X }}"}, map[string]any{"Authorization": "Bearer ${{ secrets.X }}"}},
		"below": {
			map[string]any{"auth": map[string]any{"type": "env", "PLAIN": secret, "list": []any{secret}, "n": 5}},
			map[string]any{"auth": map[string]any{"type": "env", "PLAIN": "#", "list": []any{"#"}, "n": 5}},
		},
		"numbers stay": {map[string]any{"max_tokens": 5, "stream_tokens": true}, map[string]any{"max_tokens": 5, "stream_tokens": true}},
		"no secrets": {
			map[string]any{"keywords": []any{"a"}, "author": "Jane", "user_credentials": map[string]any{"mode": "redirect", "redirect_message": "Go"}},
			map[string]any{"keywords": []any{"a"}, "author": "Jane", "user_credentials": map[string]any{"mode": "redirect", "redirect_message": "Go"}},
		},
		"links": {
			map[string]any{"links": map[string]any{"credential_portal": map[string]any{"url": "https://x.example/a?token=" + secret, "label": "Go"}}},
			map[string]any{"links": map[string]any{"credential_portal": map[string]any{"url": "https://x.example/a?token=#", "label": "Go"}}},
		},
		"address":         {map[string]any{"url": "https://me:" + secret + "@x.example/a"}, map[string]any{"url": "https://#@x.example/a"}},
		"half an address": {map[string]any{"url": "https://me:${{ secrets.X }}@x.example"}, map[string]any{"url": "https://me:${{ secrets.X }}@x.example"}},
		"query": {
			map[string]any{"url": "https://x.example/a?q=1&api_key=" + secret + "&sig=abc&key=${{ secrets.X }}"},
			map[string]any{"url": "https://x.example/a?q=1&api_key=#&sig=#&key=${{ secrets.X }}"},
		},
		"args": {
			map[string]any{"args": []any{"run", "--token", secret, "--api-key=" + secret, "TOKEN=" + secret, "Authorization: Bearer x", "--key", "${{ secrets.X }}", "--path", "/a"}},
			map[string]any{"args": []any{"run", "--token", "#", "--api-key=#", "TOKEN=#", "Authorization: #", "--key", "${{ secrets.X }}", "--path", "/a"}},
		},
		"command": {
			map[string]any{"init": "make && login --password " + secret + " API_TOKEN=" + secret + "\nrun"},
			map[string]any{"init": "make && login --password # API_TOKEN=#"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := manifest.MaskSecrets(c.in, mask)
			if name == "command" { // white space between words is no secret
				got = map[string]any{"init": strings.Split(got.(map[string]any)["init"].(string), "\n")[0]}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if text, _ := json.Marshal(got); strings.Contains(string(text), secret) {
				t.Errorf("%s", text)
			}
		})
	}
}

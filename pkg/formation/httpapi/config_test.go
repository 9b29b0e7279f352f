package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/formation/httpapi"
	"github.com/agentformation/service/pkg/manifest"
)

// toolServers are two of the formation, and one of an agent.
type toolServers struct{}

func (toolServers) Servers() []httpapi.ToolServer {
	return []httpapi.ToolServer{
		{ID: "issues", Name: "Issue tracker", Type: "http", Status: "connected", Enabled: true, Tools: 2, Description: "Reads issues", Capabilities: []any{"search", map[string]any{"api_key": "written-out"}}},
		{ID: "files", Name: "files", Type: "command", Status: "error", Error: "exit status 1", Enabled: true, Description: "Reads files"},
		{ID: "files", Agent: "coder", Name: "files", Type: "command", Status: "idle", Enabled: true, Tools: 1, Description: "Reads code"},
		{ID: "compiler", Agent: "coder", Name: "compiler", Type: "command", Status: "idle", Enabled: true, Description: "Compiles"},
	}
}

func (toolServers) Catalog() []httpapi.ToolInfo {
	return []httpapi.ToolInfo{
		{Name: "search", Description: "Finds issues", Server: "issues", InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)},
		{Name: "list", Server: "issues"},
		{Name: "read", Description: "Reads a file", Server: "files", Agent: "coder", InputSchema: json.RawMessage(`{"type":"object"}`)},
	}
}

func (toolServers) ToolsOf(agent string) []string {
	if agent == "writer" {
		return []string{"issues__search", "issues__list"}
	}
	return nil
}

// written is a formation whose author wrote secrets into it.
const written = `schema: "1.0.0"
id: hello-team
description: For tests
version: 2.1.0
url: https://someone:hunter2-hunter2@example.com/
init: deploy --token hunter2-hunter2
server: {api_keys: {admin_key: hunter2-hunter2, client_key: "${{ secrets.CLIENT_KEY }}"}}
llm:
  api_keys: {openai: hunter2-hunter2, anthropic: "${{ secrets.ANTHROPIC }}"}
  models: [{text: openai/gpt-5, api_key: hunter2-hunter2}]
async: {webhook_url: "https://example.com/hook?token=hunter2-hunter2", webhook_secret: hunter2-hunter2}
overlord: {soul: "You know hunter2-hunter2.", response: {format: text}}
user_credentials: {encryption: {key: hunter2-hunter2}}
memory: {persistent: {connection_string: "postgres://u:hunter2-hunter2@db/x"}}
extensions: {vendor: {password: hunter2-hunter2, plain: stays}}
mcp:
  max_tool_calls: 7
  servers:
    - {id: own, description: d, type: command, command: run, args: [--api-key, hunter2-hunter2], env: {TOKEN: hunter2-hunter2}}
agents:
  - id: writer
    description: "Writes, knows hunter2-hunter2"
    system_message: "Say hunter2-hunter2"
    llm_models: [{text: openai/gpt-5, api_key: hunter2-hunter2}]
    metadata: {api_token: hunter2-hunter2, icon: pen}
    mcp_servers: [own, {id: mine, description: d, type: http, endpoint: "https://example.com", auth: {type: bearer, token: hunter2-hunter2}}]
`

// adminReads are the routes that show the configuration.
var adminReads = []string{
	"/v1/config", "/v1/formation", "/v1/overlord", "/v1/overlord/soul", "/v1/agents", "/v1/agents/writer", "/v1/llm/settings", "/v1/async",
	"/v1/mcp", "/v1/mcp/servers", "/v1/mcp/servers/issues", "/v1/mcp/tools",
}

func TestConfig_ShowsNoSecretThatIsWrittenOut(t *testing.T) {
	t.Parallel()
	f, _, err := manifest.Parse("formation.afs", []byte(written))
	if err != nil {
		t.Fatal(err)
	}
	d := openDoor(t, doorOptions{formation: f, redact: func(s string) string { return strings.ReplaceAll(s, "hunter2-hunter2", "[redacted]") }})
	all := ""
	for _, path := range adminReads {
		res := d.send(t, http.MethodGet, path, "", "X-SVC-Admin-Key", adminKey)
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v %s", path, res.StatusCode, err, body)
		}
		all += string(body)
		if strings.Contains(string(body), "hunter2") {
			t.Errorf("%s shows a secret: %s", path, body)
		}
	}
	for _, kept := range []string{"${{ secrets.CLIENT_KEY }}", "${{ secrets.ANTHROPIC }}", "stays", `"icon":"pen"`, `"max_tool_calls":7`} {
		if !strings.Contains(all, kept) {
			t.Errorf("%s is missing", kept)
		}
	}
}

func TestConfig_IsReadWithTheAdminKeyAlone(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for _, path := range adminReads {
		for _, key := range []string{"X-SVC-Client-Key", "X-SVC-Admin-Key"} {
			res := d.send(t, http.MethodGet, path, "", key, clientKey)
			if res.StatusCode != http.StatusUnauthorized || !strings.Contains(res.Header.Get("WWW-Authenticate"), `realm="admin"`) {
				t.Errorf("%s with the client key as %s: %d", path, key, res.StatusCode)
			}
		}
	}
}

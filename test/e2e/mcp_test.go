package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// withKey sends a client key with every request.
type withKey struct {
	key  string
	base *http.Transport
}

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if k.key != "" {
		r.Header.Set("X-SVC-Client-Key", k.key)
	}
	return k.base.RoundTrip(r)
}

// tools opens a session of the official client with a formation's /mcp.
func tools(t *testing.T, address, key string) *mcpsdk.ClientSession {
	t.Helper()
	base := &http.Transport{}
	session, err := mcpsdk.NewClient(&mcpsdk.Implementation{Name: "e2e", Version: "1"}, nil).Connect(t.Context(), &mcpsdk.StreamableClientTransport{
		Endpoint: address, HTTPClient: &http.Client{Transport: withKey{key, base}}, MaxRetries: -1,
	}, nil)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		base.CloseIdleConnections()
	})
	return session
}

// says is what a call of the tool chat answers.
func says(t *testing.T, session *mcpsdk.ClientSession) string {
	t.Helper()
	res, err := session.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: "chat", Arguments: map[string]any{"message": "a poem", "agent_id": "poet"}})
	if err != nil {
		t.Fatal(err)
	}
	var reply struct {
		Data struct{ Response string }
	}
	if err := json.Unmarshal([]byte(res.Content[0].(*mcpsdk.TextContent).Text), &reply); err != nil || res.IsError {
		t.Fatal(err, res.Content[0])
	}
	return reply.Data.Response
}

func TestMCP_AnswersThroughTheSupervisorAndOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	const draftKey = "client-key-of-the-draft-0123456789"
	s := suite.Start(t, harness.Options{})
	live, drafted := fakellm.Start(t, fakellm.Options{}), fakellm.Start(t, fakellm.Options{})
	live.Add(answer("the live one"))
	drafted.Add(answer("the draft"))
	f := s.Deploy("tools", suite.Pair(t, "tools", live.URL()))
	dir := suite.Pair(t, "tools", drafted.URL()).With("server:\n  api_keys:\n    client_key: " + draftKey + "\n").Write(t)
	s.Call(http.MethodPost, "/rpc/dev/run", map[string]any{"path": dir}).Want(t, http.StatusOK, "status", "running")

	sessions := make(map[string]*mcpsdk.ClientSession)
	for address, want := range map[string]struct{ key, says string }{
		f.Own() + "/mcp":           {f.ClientKey, "the live one"},
		f.Through() + "/mcp":       {f.ClientKey, "the live one"},
		s.URL + "/mcp/tools":       {f.ClientKey, "the live one"},
		s.URL + "/draft/tools/mcp": {draftKey, "the draft"},
	} {
		sessions[address] = tools(t, address, want.key)
		if got := says(t, sessions[address]); got != want.says {
			t.Errorf("%s says %q", address, got)
		}
		open := tools(t, address, "")
		if list, err := open.ListTools(t.Context(), nil); err != nil || len(list.Tools) < 15 {
			t.Errorf("%s without a key: %v", address, err)
		}
		if _, err := open.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: "list_sessions"}); err == nil {
			t.Errorf("%s calls without a key", address)
		}
	}
	refused := s.HTTP.Must(harness.Request{
		Method: http.MethodPost, URL: f.Through() + "/mcp", Header: map[string]string{"Content-Type": "application/json"},
		Body: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"chat"}}`),
	})
	if refused.Status != http.StatusUnauthorized || refused.Text("error.code") != "UNAUTHORIZED" || !strings.HasPrefix(refused.Header.Get("WWW-Authenticate"), "ApiKey") {
		t.Errorf("a call without a key: %d %s", refused.Status, refused.Body)
	}

	old := f.PID()
	f.Kill()
	harness.Until(t, "another process serves", func() bool { now := f.PID(); return now != 0 && now != old })
	if got := says(t, sessions[f.Through()+"/mcp"]); got != "the live one" {
		t.Errorf("after the process was replaced the session says %q", got)
	}
}

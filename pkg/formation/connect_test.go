package formation_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/test/fakellm"
)

// tracker is a tool server that asks every caller for a token of their own.
type tracker struct {
	mu    sync.Mutex
	calls []string // the tokens of the calls, in order
}

func (s *tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer trk_")
	if !ok {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var in struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Version string `json:"protocolVersion"`
		} `json:"params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := "{}"
	switch in.Method {
	case "initialize":
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"tracker","version":"1"}}`, in.Params.Version)
	case "tools/list":
		result = `{"tools":[{"name":"whoami","description":"Tells who the user is.","inputSchema":{"type":"object"}}]}`
	case "tools/call":
		s.mu.Lock()
		s.calls = append(s.calls, token)
		s.mu.Unlock()
		result = `{"content":[{"type":"text","text":"somebody"}]}`
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, result)
}

func (s *tracker) used() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// talk is a reply to a chat as a client sees it.
type talk struct {
	Data struct {
		Status   string `json:"status"`
		Response string `json:"response"`
		Message  struct {
			UI []struct {
				Type    string `json:"type"`
				URL     string `json:"url"`
				Options []struct {
					Value string `json:"value"`
					Label string `json:"label"`
				} `json:"options"`
			} `json:"ui"`
		} `json:"message"`
	} `json:"data"`
}

func TestCredentials_FromTheLinkToTheCallWithTheChosenAccount(t *testing.T) {
	t.Parallel()
	w, server := newWorld(t), &tracker{}
	remote := httptest.NewServer(server)
	t.Cleanup(remote.Close)
	text := fmt.Sprintf(worldManifest, w.fake.URL()) + fmt.Sprintf(`mcp:
  servers:
    - id: tracker
      description: Knows the issues
      type: http
      endpoint: %s
      auth: {type: bearer, token: "trk_${{ user.credentials.Tracker }}"}
user_credentials: {redirect_message: "Add your account first."}
links: {tracker: {url: "https://example.com/accounts"}}
`, remote.URL)
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), []byte(text), 0o600))
	for _, r := range []fakellm.Rule{
		{User: "who am i", Times: 1, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "tracker__connect", Args: "{}"}}}},
		{User: "who am i", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: "tracker__whoami", Args: "{}"}}}},
		{Last: "tool", Reply: fakellm.Reply{Text: "You are somebody."}},
	} {
		w.fake.Add(r)
	}
	f := w.load(w.config("one"))
	w.check(f.Serve(t.Context()))
	c := w.client(true)
	say := func(message string) (out talk) {
		t.Helper()
		r := w.must(c, ask{
			body:   fmt.Sprintf(`{"message":%q,"session_id":"sess_1"}`, message),
			header: map[string]string{"X-SVC-User-Id": "alice"},
		})
		if err := json.Unmarshal(r.body, &out); err != nil || r.status != http.StatusOK {
			t.Fatalf("%d %s", r.status, r.body)
		}
		if strings.Contains(string(r.body), "trk_") {
			t.Errorf("the reply shows a credential: %s", r.body)
		}
		return out
	}
	give := func(name, token string) {
		t.Helper()
		r := w.must(c, ask{
			method: http.MethodPost, path: "/v1/credentials", header: map[string]string{"X-SVC-User-Id": "alice"},
			body: fmt.Sprintf(`{"service":"tracker","name":%q,"credential":{"token":%q}}`, name, token),
		})
		if r.status != http.StatusCreated {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}

	lost := say("who am i?")
	if ui := lost.Data.Message.UI; lost.Data.Response != "Add your account first." || len(ui) != 1 || ui[0].Type != "action_link" || ui[0].URL != "https://example.com/accounts" {
		t.Fatalf("without a credential: %+v", lost)
	}
	give("work", "of-work")
	if got := say("who am i?"); got.Data.Response != "You are somebody." || !slices.Equal(server.used(), []string{"of-work"}) {
		t.Fatalf("with one: %+v, calls %v", got, server.used())
	}
	give("home", "of-home")
	which := say("who am i?")
	if ui := which.Data.Message.UI; len(ui) != 1 || ui[0].Type != "options" || len(ui[0].Options) != 2 || ui[0].Options[1].Label != "home" {
		t.Fatalf("with two: %+v", which)
	}
	if got := say("home"); got.Data.Response != "You are somebody." {
		t.Fatalf("after the choice: %+v", got)
	}
	say("who am i?") // the choice holds for the session
	if diff := strings.Join(server.used(), " "); diff != "of-work of-home of-home" {
		t.Errorf("the server was called with %s", diff)
	}
}

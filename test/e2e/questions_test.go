package e2e

import (
	"net/http"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// TestQuestions_AClickAnswersThemAfterACrash: an agent may hand over only when
// the user agrees. The process dies while the question waits; a click in the
// widget answers it in the next one, and both requests end.
func TestQuestions_AClickAnswersThemAfterACrash(t *testing.T) {
	t.Parallel()
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "(?i)soup", Times: 1, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "c1", Name: "delegate_to_agent", Args: `{"agent_id":"cook","reason":"It is food."}`}}}},
		fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Leek soup."}},
	)
	files := suite.Pair(t, "questions", model.URL())
	files["agents/poet.afs"] += "delegation_strategy: ask_user\n"
	dir, state := files.Write(t), t.TempDir()
	a := suite.Alone(t, dir, state)
	client := harness.Fresh(t)
	request := func(method, path string, body any) harness.Request {
		return harness.Request{
			Method: method, URL: a.URL + path, Body: body,
			Header: map[string]string{"X-SVC-Client-Key": a.ClientKey, "X-SVC-User-Id": "ann"},
		}
	}
	asked := client.Must(request(http.MethodPost, "/v1/chat", harness.Chat{
		"message": "How do I make soup?", "agent_id": "poet", "session_id": "s", "request_id": "first",
	}))
	asked.Want(t, http.StatusOK, "data.status", "awaiting_clarification", "data.message.metadata.requires_user_response", "true",
		"data.message.ui.0.type", "options", "data.message.ui.0.options.0.value", "yes", "data.message.ui.0.multi", "false")
	a.Kill()
	a = suite.Alone(t, dir, state)
	if n := model.Count(); n != 1 {
		t.Fatalf("the model was asked %d times: a request that waits is not resumed", n)
	}
	client.Must(request(http.MethodGet, "/v1/requests/first", nil)).Want(t, http.StatusOK,
		"data.status", "awaiting_clarification", "data.ui.0.id", asked.Text("data.message.ui.0.id"))
	client.Must(request(http.MethodPost, "/v1/chat", harness.Chat{
		"message": "", "session_id": "s", "request_id": "second", "ui_response": map[string]any{"id": asked.Text("data.message.ui.0.id"), "value": "yes"},
	})).Want(t, http.StatusOK, "data.status", "completed", "data.response", "Leek soup.", "data.agent", "cook", "data.message.metadata.request_id", "first")
	for _, id := range []string{"first", "second"} {
		client.Must(request(http.MethodGet, "/v1/requests/"+id, nil)).Want(t, http.StatusOK, "data.status", "completed", "data.response", "Leek soup.")
	}
}

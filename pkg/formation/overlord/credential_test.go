package overlord_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// needy is a tool that needs the user to do something, until ready says not.
type needy struct {
	answer chat.Answer
	ready  func() bool
}

type needError struct{ answer chat.Answer }

func (needError) Error() string         { return "not yet" }
func (e needError) Answer() chat.Answer { return e.answer }

func (n *needy) Spec() chat.ToolSpec { return chat.ToolSpec{Name: "issues", ReadOnly: true} }

func (n *needy) Call(context.Context, chat.Invocation) (chat.ToolResult, error) {
	if n.ready() {
		return chat.ToolResult{Content: "none"}, nil
	}
	return chat.ToolResult{}, needError{n.answer}
}

func (n *needy) tools(context.Context, chat.Invocation) ([]agent.Tool, error) {
	return []agent.Tool{n}, nil
}

func asks(id string) llmtest.Step {
	return llmtest.Step{Purpose: "agent", Calls: []chat.ToolCall{{ID: id, Name: "issues", Args: json.RawMessage("{}")}}}
}

func TestHandle_TheWayToAMissingCredentialIsToldInItsOwnWords(t *testing.T) {
	t.Parallel()
	tool := &needy{ready: func() bool { return false }, answer: chat.Answer{
		Content: "Go there.", Widgets: []chat.Widget{{Type: chat.WidgetActionLink, Label: "Connect", URL: "https://example.com/"}},
	}}
	script := llmtest.NewScript(t, asks("1")) // and no synthesis
	o := overlord.New(overlord.Config{
		Formation: worded(manifest.FormatMarkdown), Models: script.Router(), Tools: tool.tools, Now: time.Now, Log: zerolog.Nop(),
	})
	answer, _, err := handleBy(t, o, overlord.Input{Message: "any issues?"})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Content != "Go there." || len(answer.Widgets) != 1 || answer.Widgets[0].URL != "https://example.com/" {
		t.Errorf("%+v", answer)
	}
}

func TestHandle_TheChosenAccountIsRememberedAndTheRequestGoesOn(t *testing.T) {
	t.Parallel()
	chosen := ""
	tool := &needy{ready: func() bool { return chosen != "" }, answer: chat.Answer{Content: "Which?", Question: &chat.Question{
		Kind: chat.QuestionCredential, Prompt: "Which?", State: json.RawMessage(`{}`),
		Options: []chat.Option{{Value: "cred_1", Label: "Work"}, {Value: "cred_2", Label: "Home"}},
	}}}
	script := llmtest.NewScript(t, asks("1"), asks("2"), llmtest.Step{Purpose: "agent", Text: "There are none."})
	gone := false
	o := overlord.New(overlord.Config{
		Formation: alone(manifest.FormatMarkdown), Models: script.Router(), Tools: tool.tools, Now: time.Now, Log: zerolog.Nop(),
		Choose: func(_ context.Context, user, session string, _ *chat.Question, value string) (bool, error) {
			if user != "ann" || session != "s1" {
				return false, errors.New("for somebody else")
			}
			chosen = value
			return !gone, nil
		},
	})
	in := overlord.Input{Message: "any issues?", UserID: "ann", SessionID: "s1", RequestID: "r1"}
	asked, _, err := handleBy(t, o, in)
	if err != nil || asked.Question == nil || asked.Question.Message != "any issues?" || len(asked.Widgets) != 1 {
		t.Fatalf("%+v, %v", asked, err)
	}
	in.Pending, in.Message, in.RequestID = asked.Question, "home", "r2"
	answer, _, err := handleBy(t, o, in)
	if err != nil || answer.Content != "There are none." || chosen != "cred_2" {
		t.Errorf("%+v, %v, chosen %q", answer, err, chosen)
	}
	messages := script.Asked()[1].Messages
	if got := messages[len(messages)-1].Content; got != "any issues?" {
		t.Errorf("the agent is asked %q", got)
	}
	gone = true
	if answer, _, err = handleBy(t, o, in); err != nil || answer.Question != nil || answer.Content == "" {
		t.Errorf("an account that is gone: %+v, %v", answer, err)
	}
}

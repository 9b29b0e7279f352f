package provider

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

const demoPrompt = `You are part of a team of assistants. Be helpful, accurate and honest; say so when you do not know.

You are Guide. Greets people and explains how this service works

You welcome people to the sample formation.
How memory works: a buffer holds the last messages of a session, and survives a restart.
Never talk about the weather.`

func newDemo(tb testing.TB) *demo {
	tb.Helper()
	m, err := NewDemo(llm.Endpoint{Name: "demo"})
	if err != nil {
		tb.Fatal(err)
	}
	return m.(*demo)
}

// demoAsk is a conversation in which the user said all of said, the last one now.
func demoAsk(said ...string) llm.Request {
	messages := []chat.Message{{Role: chat.System, Content: demoPrompt}}
	for i, text := range said {
		messages = append(messages, chat.Message{Role: chat.User, Content: text})
		if i < len(said)-1 {
			messages = append(messages, chat.Message{Role: chat.Assistant, Content: "I see."})
		}
	}
	return llm.Request{Model: "hello", Messages: messages}
}

func TestDemo_AnswersWhatItCan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		said []string
		want string // a part of the answer
	}{
		{"greeting", []string{"Hello!"}, "Hello! I answer for Guide;"},
		{"who it is", []string{"Who are you?"}, "no AI and no network"},
		{"help", []string{"what can you do?"}, "12 * 7"},
		{"thanks", []string{"thank you"}, "welcome"},
		{"a name is noted", []string{"Hi, my name is Ada Lovelace."}, "Nice to meet you, Ada Lovelace! I will remember that your name is Ada Lovelace."},
		{"a name is known", []string{"My name is Ada.", "What's my name?"}, "You told me that your name is Ada."},
		{"the last word counts", []string{"My name is Ada.", "Sorry, my name is Bea", "what is my name"}, "your name is Bea"},
		{"two facts at once", []string{"my name is Ada and my favourite colour is green", "What is my favourite colour?"}, "your favourite colour is green"},
		{"home", []string{"I live in Köln, near the river", "Where do I live?"}, "you live in Köln."},
		{"a pet", []string{"My dog's name is Rex", "What is my dog's name?"}, "your dog's name is Rex"},
		{"nothing is guessed", []string{"What is my name?"}, "You have not told me that yet"},
		{"a question is no statement", []string{"Is my name Bob?", "What is my name?"}, "You have not told me that yet"},
		{"everything", []string{"My name is Ada", "I like tea", "What do you know about me?"}, "- your name is Ada\n- you like tea"},
		{"everything of nothing", []string{"What do you know about me?"}, "Nothing yet"},
		{"a sum", []string{"What is 12 * (3 + 4)?"}, "12 * (3 + 4) = 84"},
		{"a sum in words", []string{"What is 12 times 12?"}, "12 * 12 = 144"},
		{"percent", []string{"how much is 15% of 80"}, "= 12"},
		{"a fraction", []string{"10 / 4"}, "10 / 4 = 2.5"},
		{"a rounded one", []string{"2 / 3"}, "= about 0.666667"},
		{"exact decimals", []string{"0.1 + 0.2"}, "0.1 + 0.2 = 0.3"},
		{"a power", []string{"2^10"}, "2^10 = 1024"},
		{"no division by zero", []string{"What is 1 / 0?"}, "divide by zero"},
		{"a date is no sum", []string{"See you on 2026-11-21"}, "Goodbye"},
		{"from the instructions", []string{"How does memory survive a restart?"}, "a buffer holds the last messages of a session"},
		{"but no commands", []string{"Talk about the weather"}, "cannot really answer"},
		{"anything else", []string{"Write me a poem"}, "Your message reached Guide"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reply, err := collect(t, newDemo(t), demoAsk(c.said...))
			if err != nil || !strings.Contains(reply.Text, c.want) {
				t.Errorf("answer %q, error %v, want %q in it", reply.Text, err, c.want)
			}
			if !strings.Contains(reply.Text, "offline demo model") {
				t.Errorf("the answer does not say what made it: %q", reply.Text)
			}
			if u := reply.Last.Usage; reply.Last.Finish != "stop" || u.TotalTokens == 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
				t.Errorf("last chunk %+v", reply.Last)
			}
		})
	}
}

func TestDemo_SaysTheSameInPieces(t *testing.T) {
	t.Parallel()
	m := newDemo(t)
	for _, said := range []string{"Hello!", "12 * 7", "ünïcödé 🙂 words"} {
		whole, err := collect(t, m, demoAsk(said))
		if err != nil {
			t.Fatal(err)
		}
		req := demoAsk(said)
		req.Deltas = true
		pieces := 0
		streamed, err := llm.Collect(m.Stream(t.Context(), req), func(text string) error {
			if pieces++; !utf8.ValidString(text) {
				t.Errorf("piece %q", text)
			}
			return nil
		})
		if err != nil || streamed.Text != whole.Text || pieces < 2 {
			t.Errorf("%d pieces make %q, want %q; error %v", pieces, streamed.Text, whole.Text, err)
		}
	}
}

const routingPrompt = `You route messages to the one agent of a team that should answer. Agents:

- agent_id: guide
  name: Guide
  description: Greets people and explains how this service works
  keywords: hello, help, agent, session, memory, deploy, stream

- agent_id: calculator
  name: Calculator
  description: Calculates with numbers, such as sums and percentages
  field: arithmetic
  keywords: calculate, plus, times, average, root

Answer with a JSON object: {"agent_id": "<one of the ids>", "reason": "<a few words>"}.`

func TestDemo_RoutesByWords(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"agent_id":{"type":"string","enum":["guide","calculator"]},"reason":{"type":"string"}}}`)
	for _, c := range []struct{ message, want string }{
		{"Message:\nWhat is 12 times 12?", "calculator"},
		{"Message:\nWhat is 15% of 80?", "calculator"},
		{"Message:\n7*8", "calculator"},
		{"Message:\nCan you work out an average for me?", "calculator"},
		{"Message:\nHow do sessions remember?", "guide"},
		{"Message:\nhow do I deploy a formation?", "guide"},
		{"Message:\nask the calculator, please", "calculator"},
		{"Message:\nxyzzy", "guide"},
		{"The previous message of this conversation was answered by agent \"calculator\". Keep it for a follow-up.\n\nMessage:\nand then?", "calculator"},
		{"The previous message of this conversation was answered by agent \"calculator\".\n\nMessage:\nhelp me deploy", "guide"},
		{"The previous message of this conversation was answered by agent \"calculator\".\n\nMessage:\nwhat is the name?", "calculator"},
		{"Message:\nwhat is the name?", "guide"},
		{"calculate something", "calculator"},
	} {
		req := llm.Request{
			Schema: schema, SchemaName: "route", Purpose: "routing",
			Messages: []chat.Message{{Role: chat.System, Content: routingPrompt}, {Role: chat.User, Content: c.message}},
		}
		for range 5 { // the same every time
			reply, err := collect(t, newDemo(t), req)
			var got struct {
				AgentID string `json:"agent_id"`
				Reason  string `json:"reason"`
			}
			if err == nil {
				err = json.Unmarshal([]byte(reply.Text), &got)
			}
			if err != nil || got.AgentID != c.want || !strings.Contains(got.Reason, "offline demo model") {
				t.Errorf("%q goes to %+v, error %v; want %s", c.message, got, err, c.want)
			}
		}
	}
}

func TestDemo_CallsTheToolThatIsNamed(t *testing.T) {
	t.Parallel()
	tools := []chat.ToolSpec{
		{Name: "get_weather", Schema: json.RawMessage(`{"properties":{"city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["celsius","fahrenheit"]}},"required":["city","days","unit"]}`)},
		{Name: "echo", Schema: json.RawMessage(`{"properties":{"text":{"type":"string"}}}`)},
		{Name: "ping"},
		{Name: "desk__count_words", Schema: json.RawMessage(`{"properties":{"text":{"type":"string"}},"required":["text"]}`)},
	}
	for _, c := range []struct{ message, name, args string }{
		{`get weather for "Köln", 3 days in Fahrenheit`, "get_weather", `{"city":"Köln","days":3,"unit":"fahrenheit"}`},
		{"echo: hello there!", "echo", `{"text":"hello there"}`},
		{"please ping", "ping", `{}`},
		{"Count the words of: one two", "desk__count_words", `{"text":"one two"}`},
	} {
		req := demoAsk(c.message)
		req.Tools = tools
		reply, err := collect(t, newDemo(t), req)
		if err != nil || len(reply.Last.Calls) != 1 || reply.Last.Finish != "tool_calls" {
			t.Errorf("%s: %+v, error %v", c.message, reply, err)
			continue
		}
		call := reply.Last.Calls[0]
		if diff := cmp.Diff(c.args, string(call.Args)); call.Name != c.name || diff != "" {
			t.Errorf("%s: called %s (-want +got):\n%s", c.message, call.Name, diff)
		}
		req.Messages = append(req.Messages, chat.Message{Role: chat.Assistant, Calls: reply.Last.Calls}, chat.Message{Role: chat.Tool, CallID: call.ID, Content: "the result"})
		if reply, err = collect(t, newDemo(t), req); err != nil || !strings.Contains(reply.Text, "the result") || len(reply.Last.Calls) != 0 {
			t.Errorf("after the tool: %+v, error %v", reply, err)
		}
	}
	req := demoAsk("hello")
	req.Tools = tools
	if reply, err := collect(t, newDemo(t), req); err != nil || len(reply.Last.Calls) != 0 {
		t.Errorf("no tool was named, yet: %+v, error %v", reply, err)
	}
}

func TestDemo_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := llm.Collect(newDemo(t).Stream(ctx, demoAsk("hello")), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func FuzzDemo_AlwaysAnswers(f *testing.F) {
	f.Add("What is ((1+2)*3", "my name is", `{"properties":{"a":{"type":"number"}},"required":["a"]}`)
	f.Add("9^64^64 * 9999999999 / 0.000001", "my is my is", `{"enum":["a","b"]}`)
	f.Add("echo \"x", "I like I like", `[]`)
	f.Fuzz(func(t *testing.T, message, before, schema string) {
		m := newDemo(t)
		req := demoAsk(before, message)
		req.Tools = []chat.ToolSpec{{Name: "echo", Schema: json.RawMessage(schema)}}
		reply, err := llm.Collect(m.Stream(t.Context(), req), nil)
		if err != nil || reply.Text == "" && len(reply.Last.Calls) == 0 {
			t.Fatalf("reply %+v, error %v", reply, err)
		}
		for _, c := range reply.Last.Calls {
			if !json.Valid(c.Args) {
				t.Fatalf("arguments %s", c.Args)
			}
		}
		req.Tools, req.Schema = nil, json.RawMessage(schema)
		if schema == "" {
			return
		}
		if reply, err = llm.Collect(m.Stream(t.Context(), req), nil); err != nil || !json.Valid([]byte(reply.Text)) {
			t.Fatalf("reply to a schema %q, error %v", reply.Text, err)
		}
	})
}

package provider

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// demoLabel is in every answer: nobody shall take this for a language model.
const demoLabel = "offline demo model"

// maxDemoMessage bounds what the demo reads of one message, in bytes.
const maxDemoMessage = 16 << 10

// demo is a small deterministic model without a network: it fills routing
// decisions by word overlap, calls tools that a message names, remembers what
// the user said about himself, and does sums. It understands nothing and says so.
type demo struct {
	facts   factPatterns
	numbers *regexp.Regexp
	quoted  *regexp.Regexp
}

// NewDemo makes the offline model behind "demo/<anything>". It is an
// llm.Provider; it needs no endpoint and no key.
func NewDemo(llm.Endpoint) (llm.Model, error) {
	return &demo{
		facts:   newFactPatterns(),
		numbers: regexp.MustCompile(`-?\d+(?:\.\d+)?`),
		quoted:  regexp.MustCompile(`"([^"]+)"|“([^”]+)”|'([^']+)'`),
	}, nil
}

// demoReply is what the demo answers: text or tool calls.
type demoReply struct {
	text  string
	calls []chat.ToolCall
}

// Stream answers at once; with Deltas a few words at a time.
func (d *demo) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		reply := d.answer(req)
		for _, piece := range pieces(reply.text, req.Deltas) {
			if ctx.Err() != nil {
				yield(llm.Chunk{}, &llm.CallError{Reason: llm.Broken, Cause: context.Cause(ctx)})
				return
			}
			if !yield(llm.Chunk{Text: piece}, nil) {
				return
			}
		}
		done := llm.Chunk{Done: true, Finish: "stop", Model: req.Model, Calls: reply.calls, Usage: demoUsage(req, reply)}
		if len(reply.calls) > 0 {
			done.Finish = "tool_calls"
		}
		yield(done, nil)
	}
}

// answer tries the skills from the most to the least specific.
func (d *demo) answer(req llm.Request) demoReply {
	conv := readConversation(req.Messages)
	if len(req.Schema) > 0 {
		return demoReply{text: fillSchema(req.Schema, req.Messages)}
	}
	if conv.toolResult != "" {
		return demoReply{text: fmt.Sprintf("Here is what the tool answered:\n\n%s\n\n(I am the %s, so I pass it on as it is.)", conv.toolResult, demoLabel)}
	}
	if calls := d.callTools(req.Tools, conv.message); len(calls) > 0 && !req.NoCalls {
		return demoReply{calls: calls}
	}
	for _, skill := range []func(conversation) string{d.recall, calculate, smallTalk, fromInstructions} {
		if text := skill(conv); text != "" {
			return demoReply{text: text}
		}
	}
	return demoReply{text: fallback(conv)}
}

// conversation is what the demo looks at.
type conversation struct {
	message    string   // the last user message
	earlier    []string // user messages before it, oldest first
	system     string   // all system messages
	toolResult string   // what tools answered since the last user message
}

func readConversation(messages []chat.Message) conversation {
	var c conversation
	var system, results []string
	for _, m := range messages {
		text := m.Content
		if len(text) > maxDemoMessage {
			text = strings.ToValidUTF8(text[:maxDemoMessage], "")
		}
		switch m.Role {
		case chat.System:
			system = append(system, text)
		case chat.User:
			if c.message != "" {
				c.earlier = append(c.earlier, c.message)
			}
			c.message, results = text, nil
		case chat.Tool:
			results = append(results, text)
		case chat.Assistant: // its own words tell nothing new
		}
	}
	c.system, c.toolResult = strings.Join(system, "\n\n"), strings.Join(results, "\n\n")
	return c
}

// smallTalk answers what people try first.
func smallTalk(c conversation) string {
	asked := " " + strings.Join(strings.FieldsFunc(strings.ToLower(c.message), notWord), " ") + " "
	has := func(phrases ...string) bool {
		for _, p := range phrases {
			if strings.Contains(asked, " "+p+" ") {
				return true
			}
		}
		return false
	}
	who := c.persona()
	switch {
	case has("who are you", "what are you", "are you an ai", "are you real", "your name"):
		return fmt.Sprintf("%s behind the scenes I am the %s: a few fixed rules, no AI and no network. %s", who.introduction(), demoLabel, abilities)
	case has("help", "what can you do", "how does this work"):
		return fmt.Sprintf("I am the %s. %s", demoLabel, abilities)
	case has("thanks", "thank you"):
		return fmt.Sprintf("You are welcome! (From the %s, but gladly.)", demoLabel)
	case has("bye", "goodbye", "see you"):
		return fmt.Sprintf("Goodbye! The %s will be here when you come back.", demoLabel)
	case strings.Count(asked, " ") <= 6 && has("hello", "hi", "hey", "good morning", "good evening", "greetings"):
		return fmt.Sprintf("Hello! %s you are talking to the %s. %s", who.introduction(), demoLabel, abilities)
	}
	return ""
}

const abilities = "Without any key I can remember what you tell me (try \"my name is Ada\", then \"what is my name?\"), " +
	"do small sums (\"12 * 7\"), and show how a question finds the right agent. For real answers give the formation a real model."

// fallback is honest about knowing nothing.
func fallback(c conversation) string {
	who := c.persona()
	text := fmt.Sprintf("Your message arrived safely, but I am only the %s and cannot really answer it.", demoLabel)
	if who.name != "" {
		text = fmt.Sprintf("Your message reached %s, but for now the %s stands in and cannot really answer it.", who.name, demoLabel)
	}
	if who.about != "" {
		text += fmt.Sprintf(" What this agent is for: %s", who.about)
	}
	return text + "\n\n" + abilities
}

// persona is who the system prompt says the agent is.
type persona struct{ name, about string }

func (p persona) introduction() string {
	if p.name == "" {
		return "Nice to meet you;"
	}
	return fmt.Sprintf("I answer for %s;", p.name)
}

// persona reads the paragraph that begins "You are NAME." and describes the agent.
func (c conversation) persona() persona {
	for paragraph := range strings.SplitSeq(c.system, "\n\n") {
		rest, ok := strings.CutPrefix(strings.TrimSpace(paragraph), "You are ")
		if !ok || strings.HasPrefix(rest, "part of") {
			continue
		}
		name, about, _ := strings.Cut(rest, ". ")
		name = strings.TrimSuffix(strings.TrimSpace(name), ".")
		if utf8.RuneCountInString(name) <= 60 && !strings.Contains(name, "\n") {
			return persona{name: name, about: strings.TrimSpace(about)}
		}
	}
	return persona{}
}

// pieces cuts text after every third word.
func pieces(text string, deltas bool) []string {
	if text == "" {
		return nil
	}
	if !deltas {
		return []string{text}
	}
	var out []string
	from, spaces := 0, 0
	for i := range len(text) {
		if text[i] != ' ' {
			continue
		}
		if spaces++; spaces%3 == 0 {
			out = append(out, text[from:i+1])
			from = i + 1
		}
	}
	if from < len(text) {
		out = append(out, text[from:])
	}
	return out
}

// demoUsage counts four bytes as a token.
func demoUsage(req llm.Request, reply demoReply) chat.Usage {
	var u chat.Usage
	for _, m := range req.Messages {
		u.PromptTokens += len(m.Content)/4 + 1
	}
	u.CompletionTokens = len(reply.text)/4 + 1
	for _, c := range reply.calls {
		u.CompletionTokens += (len(c.Name) + len(c.Args)) / 4
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

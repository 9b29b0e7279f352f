package overlord

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/overlord/clarify"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// replied is an answer to a question.
type replied struct {
	Question chat.Question
	Option   *chat.Option // the choice; nil when the user's own words answer
	Text     string       // what was said, "" for a click
}

// asker goes on with what a question interrupted, now that it is answered. in
// is the answer's own turn; its Files are those of the request that waited,
// unless it brought others.
type asker func(ctx context.Context, in Input, r replied, sink chat.Sink) (chat.Answer, error)

const (
	// stepReply is the journal entry of what a model made of an unclear reply.
	stepReply = "reply"
	// A model that takes longer to understand a reply is not worth waiting for.
	replyTimeout = 10 * time.Second
	// The part of a message and of a question that this model reads.
	maxReplyChars = 2000
)

const (
	textDropped = "All right, I won't go on with that."
	textStale   = "That choice is no longer open. Tell me what I can do for you."
)

// resume takes up what an earlier turn of the session, or an earlier life of
// this one, left to go on with. It reports false when the message is to be
// handled like any other.
func (o *Overlord) resume(ctx context.Context, in *Input, sink chat.Sink) (answer chat.Answer, done bool, err error) {
	if answer, done, err = drafted(*in); done || err != nil {
		return answer, done, err
	}
	blank := strings.TrimSpace(in.Message) == "" && len(in.Files) == 0
	q := in.Pending
	if q == nil {
		// Only a click comes without words, and there is nothing to choose from.
		return chat.Answer{Content: textStale}, blank, nil
	}
	reply, err := o.understand(ctx, *in)
	if err != nil {
		return chat.Answer{}, false, err
	}
	ask := o.askers[q.Kind]
	switch {
	case reply.Verdict == clarify.Cancel:
		return chat.Answer{Content: textDropped, Settles: chat.SettlesDropped}, true, nil
	case reply.Verdict == clarify.Blank && blank:
		return chat.Answer{Question: q, Settles: chat.SettlesAnswered}, true, nil
	case ask == nil || reply.Verdict == clarify.New || reply.Verdict == clarify.Blank:
		in.settles = chat.SettlesDropped
		return chat.Answer{}, false, nil
	}
	in.settles = chat.SettlesAnswered
	r := replied{Question: *q, Text: in.Message}
	if reply.Verdict == clarify.Choice {
		r.Option = &q.Options[reply.Option]
		if blank {
			in.chosen = r.Option.Label
		}
	}
	if len(in.Files) == 0 && in.Waiting != nil {
		if in.Files, err = in.Waiting(ctx); err != nil {
			return chat.Answer{}, false, fmt.Errorf("read the files of the request that waits: %w", err)
		}
	}
	answer, err = ask(ctx, *in, r, sink)
	return answer, true, err
}

// understand tells what the message means to the pending question: by its
// words, and where they leave it open, by a model.
func (o *Overlord) understand(ctx context.Context, in Input) (clarify.Reply, error) {
	guess := clarify.Read(*in.Pending, in.Message, in.Click)
	if guess.Sure {
		return guess, nil
	}
	if payload, ok := in.Journal.Done(stepReply); ok {
		var r clarify.Reply
		if err := json.Unmarshal(payload, &r); err != nil {
			return clarify.Reply{}, fmt.Errorf("decode journalled reply: %w", err)
		}
		return r, nil
	}
	r, err := o.classify(ctx, in)
	if cause := context.Cause(ctx); cause != nil {
		return clarify.Reply{}, cause
	}
	if err != nil {
		telemetry.Log(ctx, o.cfg.Log).Warn().Err(err).Msg("understanding a reply by model did not work; its words decide")
		return guess, nil
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return clarify.Reply{}, fmt.Errorf("encode reply: %w", err)
	}
	return r, in.Journal.Save(ctx, stepReply, payload)
}

const replyPrompt = `A user was asked a question and has written something. Tell what it is:
- "choice": it chooses one of the numbered options; give its number in "option"
- "text": it answers the question in the user's own words
- "cancel": the user wants to drop the matter
- "new": it has nothing to do with the question and asks for something else
Answer with a JSON object: {"verdict": "choice|text|cancel|new", "option": <number, 0 for none>}.`

const replySchema = `{"type":"object","additionalProperties":false,"required":["verdict","option"],"properties":{
"verdict":{"type":"string","enum":["choice","text","cancel","new"]},"option":{"type":"integer"}}}`

// classify asks the overlord's model what a reply is.
func (o *Overlord) classify(ctx context.Context, in Input) (clarify.Reply, error) {
	use := o.cfg.Formation.OverlordUse()
	if use.ID == "" {
		return clarify.Reply{}, errNoModel
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	zero := 0.0
	settings := agent.CallSettings(use.Settings)
	settings.Temperature = &zero
	q := in.Pending
	var b strings.Builder
	b.WriteString("Question:\n" + head(q.Prompt) + "\n")
	for i, option := range q.Options {
		b.WriteString(strconv.Itoa(i+1) + ". " + option.Label + "\n")
	}
	b.WriteString("\nWhat the user wrote:\n" + head(in.Message))
	reply, err := llm.Collect(o.cfg.Models.Stream(ctx, use.ID, llm.Request{
		Messages: []chat.Message{{Role: chat.System, Content: replyPrompt}, {Role: chat.User, Content: b.String()}},
		Settings: settings, Schema: json.RawMessage(replySchema), SchemaName: "reply", Purpose: "clarification",
		Account: llm.Account{User: in.UserID, Request: in.RequestID},
	}), nil)
	if err != nil {
		return clarify.Reply{}, fmt.Errorf("ask the model: %w", err)
	}
	return readReply(q, reply.Text)
}

func readReply(q *chat.Question, text string) (clarify.Reply, error) {
	begin, end := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
	if begin < 0 || end < begin {
		return clarify.Reply{}, fmt.Errorf("the answer holds no JSON object: %.100q", text)
	}
	var said struct {
		Verdict clarify.Verdict `json:"verdict"`
		Option  int             `json:"option"`
	}
	if err := json.Unmarshal([]byte(text[begin:end+1]), &said); err != nil {
		return clarify.Reply{}, fmt.Errorf("read the answer: %w", err)
	}
	switch {
	case said.Verdict == clarify.Choice && said.Option >= 1 && said.Option <= len(q.Options):
		return clarify.Reply{Verdict: clarify.Choice, Option: said.Option - 1, Sure: true}, nil
	case said.Verdict == clarify.Text, said.Verdict == clarify.Cancel, said.Verdict == clarify.New:
		return clarify.Reply{Verdict: said.Verdict, Sure: true}, nil
	}
	return clarify.Reply{}, fmt.Errorf("the answer fits no verdict: %.100q", text)
}

// head returns the beginning of a long text.
func head(s string) string {
	if len(s) <= maxReplyChars {
		return s
	}
	return strings.ToValidUTF8(s[:maxReplyChars], "") + "…"
}

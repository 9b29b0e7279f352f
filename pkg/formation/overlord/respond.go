package overlord

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"strconv"
	"strings"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// stepDraft is the journal entry of an answer that is still to be worded: a
// turn that is cut there does not do the work again.
const stepDraft = "draft"

// respond makes the reply of an answer: its wording where the manifest names a
// model for that, its question, its widgets, its format.
func (o *Overlord) respond(ctx context.Context, in Input, answer chat.Answer, sink chat.Sink) (chat.Answer, error) {
	if answer.Settles == "" {
		answer.Settles = in.settles
	}
	if in.chosen != "" {
		answer.Heard = in.chosen
	}
	if len(answer.Agents) == 0 && answer.AgentID != "" {
		answer.Agents = []string{answer.AgentID}
	}
	word := o.words(answer)
	if err := sink(chat.Event{
		Type: chat.Progress, Stage: chat.StageResponsePreparation, Content: "Preparing the response", Soon: !word,
	}); err != nil {
		return chat.Answer{}, err
	}
	if word {
		var err error
		if answer, err = o.synthesize(ctx, in, answer, sink); err != nil {
			return chat.Answer{}, err
		}
	}
	o.ask(in, &answer)
	answer.Widgets = o.widgets(ctx, answer)
	return o.format(answer)
}

// words tells whether the answer is worded by a model of its own: the manifest
// names one, and an agent has said something that is no question.
func (o *Overlord) words(answer chat.Answer) bool {
	return o.synthesizes() && answer.Question == nil && !answer.Fixed && answer.AgentID != "" && answer.Content != ""
}

// synthesizes tells whether the manifest has answers worded by a model of its
// own. What agents write is a draft then, which nobody is shown.
func (o *Overlord) synthesizes() bool { return o.cfg.Formation.Overlord.LLM.Synthesis.ID != "" }

// drafted returns the answer that an earlier life of the turn has worked out.
func drafted(in Input) (answer chat.Answer, ok bool, err error) {
	payload, ok := in.Journal.Done(stepDraft)
	if !ok {
		return chat.Answer{}, false, nil
	}
	if err := json.Unmarshal(payload, &answer); err != nil {
		return chat.Answer{}, false, fmt.Errorf("decode journalled draft: %w", err)
	}
	return answer, true, nil
}

// synthesize words an answer anew in the formation's voice. The draft is
// journalled first; it is also the answer when the model can't be asked.
func (o *Overlord) synthesize(ctx context.Context, in Input, draft chat.Answer, sink chat.Sink) (chat.Answer, error) {
	if _, done := in.Journal.Done(stepDraft); !done {
		payload, err := json.Marshal(draft)
		if err != nil {
			return chat.Answer{}, fmt.Errorf("encode draft: %w", err)
		}
		if err := in.Journal.Save(ctx, stepDraft, payload); err != nil {
			return chat.Answer{}, fmt.Errorf("journal draft: %w", err)
		}
	}
	say := func(e chat.Event) error {
		if !in.Deltas || (e.Content == "" && !e.Restart) {
			return nil
		}
		e.Type, e.Stage = chat.Content, chat.StageResponseGeneration
		return sink(e)
	}
	answer, err := o.reword(ctx, in, draft, say)
	if cause := context.Cause(ctx); cause != nil {
		return chat.Answer{}, cause
	}
	if err == nil {
		return answer, nil
	}
	telemetry.Log(ctx, o.cfg.Log).Warn().Err(err).Msg("wording the answer by model did not work; the draft is the answer")
	if err := say(chat.Event{Restart: true}); err != nil {
		return chat.Answer{}, err
	}
	return draft, say(chat.Event{Content: draft.Content})
}

func (o *Overlord) reword(ctx context.Context, in Input, draft chat.Answer, say func(chat.Event) error) (chat.Answer, error) {
	use := o.cfg.Formation.SynthesisUse()
	said, err := o.speak(ctx, in, use, speech{"synthesis", "the synthesis model", []chat.Message{
		{Role: chat.System, Content: o.voice()},
		{Role: chat.User, Content: "The user's message:\n" + in.Message + "\n\nThe draft:\n" + draft.Content},
	}}, say)
	if err != nil {
		return chat.Answer{}, err
	}
	draft.Content, draft.Model, draft.Usage = said.Content, said.Model, draft.Usage.Add(said.Usage)
	return draft, nil
}

// voice is the system prompt of the synthesis model.
func (o *Overlord) voice() string {
	parts := []string{
		o.cfg.Formation.Soul,
		"An assistant of your team has drafted an answer to a user's message. Write the answer that the user gets, in your own voice and in " +
			"the language of the message. Keep every fact, number, name, link and piece of code of the draft as it is. Add nothing that it " +
			"does not say, and do not mention the draft.",
		agent.FormatLine(o.cfg.Formation.Overlord.Response.Format),
	}
	return strings.TrimSpace(strings.Join(parts, "\n\n"))
}

// ask makes a question ready to be put: its request, its options and, where
// they can be shown, the widget that shows them.
func (o *Overlord) ask(in Input, answer *chat.Answer) {
	if answer.Question == nil {
		return
	}
	q := *answer.Question
	answer.Question = &q
	q.Options = options(q.Options)
	if waits := in.Pending; waits != nil && answer.Settles == chat.SettlesAnswered {
		if q.RequestID == "" {
			q.RequestID, q.Message = waits.RequestID, waits.Message
		}
	}
	if q.RequestID == "" {
		q.RequestID, q.Message = in.RequestID, in.Message
	}
	if answer.Content == "" {
		answer.Content = o.question(&q)
	}
	q.ID = ""
	if !o.cfg.Formation.Overlord.Response.Widgets || len(q.Options) == 0 {
		return
	}
	if w, ok := fit(optionsWidget(&q)); ok {
		q.ID = w.ID
		answer.Widgets = append([]chat.Widget{w}, answer.Widgets...)
	}
}

// question is the text of a question for those who see no widgets.
func (o *Overlord) question(q *chat.Question) string {
	listed := len(q.Options) > 0 && !isYesNo(q.Options)
	if o.cfg.Formation.Overlord.Response.Format == manifest.FormatHTML {
		return questionHTML(q, listed)
	}
	if !listed {
		return q.Prompt
	}
	lines := []string{q.Prompt, ""}
	for i, option := range q.Options {
		lines = append(lines, strconv.Itoa(i+1)+". "+option.Label)
	}
	return strings.Join(lines, "\n")
}

func questionHTML(q *chat.Question, listed bool) string {
	text := "<p>" + html.EscapeString(q.Prompt) + "</p>"
	if !listed {
		return text
	}
	text += "<ol>"
	for _, option := range q.Options {
		text += "<li>" + html.EscapeString(option.Label) + "</li>"
	}
	return text + "</ol>"
}

// isYesNo tells that a prompt is understood without its options.
func isYesNo(options []chat.Option) bool {
	return len(options) == 2 && options[0].Value == "yes" && options[1].Value == "no"
}

// format gives the answer the shape that the manifest asks for. Markdown and
// text are the model's own words; json is a fixed wrapper (runtime.md 5.4). html
// is put into pages by programs that trust it, so what runs there is taken out.
func (o *Overlord) format(answer chat.Answer) (chat.Answer, error) {
	switch o.cfg.Formation.Overlord.Response.Format {
	case manifest.FormatHTML:
		answer.Content = harmless(answer.Content)
	case manifest.FormatJSON:
		wrapped, err := json.Marshal(struct {
			Content string `json:"content"`
			Type    string `json:"type"`
			Format  string `json:"format"`
		}{answer.Content, "response", "json"})
		if err != nil {
			return chat.Answer{}, fmt.Errorf("format answer: %w", err)
		}
		answer.Content = string(wrapped)
	}
	return answer, nil
}

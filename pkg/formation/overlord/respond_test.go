package overlord_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// alone is a formation of one agent, so that no routing is needed.
func alone(format string) *manifest.Formation {
	f := team()
	f.Agents = f.Agents[1:2]
	f.Soul = "You are Bert, a calm host."
	f.Overlord.Response = manifest.Response{Format: format, Widgets: true}
	return f
}

func worded(format string) *manifest.Formation {
	f := alone(format)
	f.Overlord.LLM.Synthesis = manifest.Model{Capability: manifest.CapabilityText, ID: "test/voice"}
	return f
}

// watch handles a message and returns what was shown, in short.
func watch(t *testing.T, f *manifest.Formation, script *llmtest.Script, in overlord.Input) (chat.Answer, []string, error) {
	t.Helper()
	o := overlord.New(overlord.Config{Formation: f, Models: script.Router(), Now: time.Now, Log: zerolog.Nop()})
	return handleBy(t, o, in)
}

func handleBy(t *testing.T, o *overlord.Overlord, in overlord.Input) (chat.Answer, []string, error) {
	t.Helper()
	if in.Journal == nil {
		in.Journal = journal{}
	}
	var shown []string
	answer, err := o.Handle(t.Context(), in, func(e chat.Event) error {
		switch {
		case e.Restart:
			shown = append(shown, "restart")
		case e.Type == chat.Content:
			shown = append(shown, "content "+e.Content)
		case e.Stage != "":
			shown = append(shown, e.Stage)
		default:
			shown = append(shown, string(e.Type))
		}
		return nil
	})
	return answer, shown, err
}

func TestHandle_ShowsThatTheResponseIsPrepared(t *testing.T) {
	t.Parallel()
	answer, shown, err := watch(t, alone(manifest.FormatMarkdown), llmtest.NewScript(t, llmtest.Step{Text: "Soup."}), overlord.Input{Message: "dinner?"})
	if err != nil || answer.Content != "Soup." {
		t.Fatal(answer, err)
	}
	if diff := cmp.Diff([]string{"planning", "agent_processing", "response_preparation"}, shown); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]string{"cook"}, answer.Agents); diff != "" {
		t.Fatal(diff)
	}
}

func TestHandle_TheSynthesisModelWordsTheAnswer(t *testing.T) {
	t.Parallel()
	j := journal{}
	script := llmtest.NewScript(t,
		llmtest.Step{Model: "m", Purpose: "agent", Deltas: []string{"So", "up."}, Usage: chat.Usage{TotalTokens: 3}},
		llmtest.Step{Model: "voice", Purpose: "synthesis", Last: "The draft:\nSoup.", Deltas: []string{"How about ", "soup?"}, Usage: chat.Usage{TotalTokens: 4}},
	)
	answer, shown, err := watch(t, worded(manifest.FormatMarkdown), script, overlord.Input{Message: "dinner?", Deltas: true, Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Content != "How about soup?" || answer.AgentID != "cook" || answer.Usage.TotalTokens != 7 {
		t.Fatalf("answer = %+v", answer)
	}
	want := []string{"planning", "agent_processing", "response_preparation", "content How about ", "content soup?"}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Fatal("the draft must not be shown (-want +got):\n", diff)
	}
	var draft chat.Answer
	if err := json.Unmarshal(j["draft"], &draft); err != nil || draft.Content != "Soup." {
		t.Fatalf("the draft is journalled before it is worded: %s %v", j["draft"], err)
	}
}

func TestHandle_AResumedTurnWordsItsDraftAndWorksNoMore(t *testing.T) {
	t.Parallel()
	j := journal{"draft": []byte(`{"Content":"Soup.","AgentID":"cook","Heard":"said aloud","Usage":{"total_tokens":3}}`)}
	script := llmtest.NewScript(t, llmtest.Step{Purpose: "synthesis", Text: "Soup it is.", Usage: chat.Usage{TotalTokens: 4}})
	answer, _, err := watch(t, worded(manifest.FormatText), script, overlord.Input{Message: "dinner?", Journal: j})
	if err != nil || answer.Content != "Soup it is." || answer.Usage.TotalTokens != 7 || answer.Heard != "said aloud" {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
}

func TestHandle_TheDraftIsTheAnswerWhenSynthesisFails(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]llmtest.Step{
		"error":   {Purpose: "synthesis", Err: errors.New("down")},
		"no text": {Purpose: "synthesis", Text: " \n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Purpose: "agent", Text: "Soup."}, failing)
			answer, shown, err := watch(t, worded(manifest.FormatMarkdown), script, overlord.Input{Message: "dinner?", Deltas: true})
			if err != nil || answer.Content != "Soup." || answer.Model != "m" {
				t.Fatalf("answer = %+v, %v", answer, err)
			}
			if diff := cmp.Diff([]string{"restart", "content Soup."}, shown[len(shown)-2:]); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestHandle_TheSynthesisModelKnowsSoulAndFormat(t *testing.T) {
	t.Parallel()
	f := worded(manifest.FormatHTML)
	script := llmtest.NewScript(t, llmtest.Step{Purpose: "agent", Text: "Soup."}, llmtest.Step{Purpose: "synthesis", Text: "<p>Soup</p>"})
	if _, _, err := watch(t, f, script, overlord.Input{Message: "dinner?"}); err != nil {
		t.Fatal(err)
	}
	calls := script.Asked()
	system := calls[len(calls)-1].Messages[0].Content
	if !strings.HasPrefix(system, f.Soul) || !strings.HasSuffix(system, "Format answers as an HTML fragment without scripts.") {
		t.Fatalf("system prompt = %s", system)
	}
}

func TestHandle_FormatsTheAnswer(t *testing.T) {
	t.Parallel()
	const said = "**Soup** <b onclick=x()>now</b><script>alert(1)</script>"
	for format, want := range map[string]string{
		manifest.FormatMarkdown: said,
		manifest.FormatText:     said,
		manifest.FormatHTML:     "**Soup** <b>now</b>",
		manifest.FormatJSON:     `{"content":"**Soup** \u003cb onclick=x()\u003enow\u003c/b\u003e\u003cscript\u003ealert(1)\u003c/script\u003e","type":"response","format":"json"}`,
	} {
		answer, _, err := watch(t, alone(format), llmtest.NewScript(t, llmtest.Step{Text: said}), overlord.Input{Message: "dinner?"})
		if err != nil || answer.Content != want {
			t.Errorf("%s: %s, want %s (%v)", format, answer.Content, want, err)
		}
	}
}

func TestHarmless_LeavesTextAndStructureOnly(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a < b & c > d":           "a &lt; b &amp; c &gt; d",
		"<p>one<p>two":            "<p>one<p>two</p></p>",
		"<ul><li>x</ul>y</li>":    "<ul><li>x</li></ul>y",
		"```html\n<p>hi</p>\n```": "<p>hi</p>",
		`<a href="https://example.com/?a=1&b=2" target=_blank onclick=x()>go</a>`: `<a href="https://example.com/?a=1&amp;b=2" rel="noopener noreferrer nofollow">go</a>`,
		`<a href="JaVaScRiPt:alert(1)">x</a>`:                                     `<a rel="noopener noreferrer nofollow">x</a>`,
		`<a href="&#106;avascript:alert(1)">x</a>`:                                `<a rel="noopener noreferrer nofollow">x</a>`,
		`<img src=x onerror=alert(1)>`:                                            "",
		`<svg><script>alert(1)</script><p>x</svg>y`:                               "y",
		`<style>p{}</style><iframe src=x></iframe>ok`:                             "ok",
		`<script>never closed`:                                                    "",
		`<td colspan="2" style="x" title='a"b'>c`:                                 `<td colspan="2" title="a&#34;b">c</td>`,
		`<form><input name=a><button>b</button></form>z`:                          "z",
		`x<br/>y<hr>`: "x<br>y<hr>",
		`<!-- c --><!doctype html><custom>t</custom>`: "t",
	} {
		if got := overlord.Harmless(in); got != want {
			t.Errorf("%q:\n got %q\nwant %q", in, got, want)
		}
	}
}

func FuzzHarmless_NothingRunsAndAgainIsTheSame(f *testing.F) {
	f.Add(`<a href="javascript:x">a</a><script>b</script><p onclick=c>`)
	f.Add("```html\n<p>\n```")
	f.Fuzz(func(t *testing.T, in string) {
		out := overlord.Harmless(in)
		for _, bad := range []string{"<script", "<iframe", "<img", "<svg", "<style", "<form"} {
			if strings.Contains(out, bad) {
				t.Fatalf("%q leaves %q", in, out)
			}
		}
		if again := overlord.Harmless(out); !strings.HasPrefix(out, "```") && again != out {
			t.Fatalf("%q: %q, then %q", in, out, again)
		}
	})
}

// asking makes an overlord whose agents' questions of the kind "pick" are
// answered as the asker says.
func asking(t *testing.T, f *manifest.Formation, script *llmtest.Script, ask func(context.Context, overlord.Input, overlord.Replied, chat.Sink) (chat.Answer, error)) *overlord.Overlord {
	t.Helper()
	o := overlord.New(overlord.Config{Formation: f, Models: script.Router(), Now: time.Now, Log: zerolog.Nop()})
	o.Ask("pick", ask)
	return o
}

var pick = chat.Question{
	ID: "ui_ABCDEFGHIJKLMNOPQRSTU", Kind: "pick", Prompt: "Which?", RequestID: "req_1", Message: "dinner?",
	Options: []chat.Option{{Value: "a", Label: "Soup"}, {Value: "b", Label: "Pasta"}},
	State:   json.RawMessage(`{"n":1}`),
}

func TestHandle_AReplyGoesToWhoAsked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in     overlord.Input
		option string
		heard  string
	}{
		"words":      {in: overlord.Input{Message: "the second"}, option: "b"},
		"click":      {in: overlord.Input{Click: &chat.UIReply{ID: pick.ID, Value: "a"}}, option: "a", heard: "Soup"},
		"both":       {in: overlord.Input{Message: "that one", Click: &chat.UIReply{ID: pick.ID, Index: new(1)}}, option: "b"},
		"classified": {in: overlord.Input{Message: "something with noodles"}, option: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var steps []llmtest.Step
			if name == "classified" {
				steps = append(steps, llmtest.Step{Purpose: "clarification", Last: "noodles", Text: `{"verdict":"choice","option":2}`})
			}
			var got overlord.Replied
			o := asking(t, alone("markdown"), llmtest.NewScript(t, steps...), func(_ context.Context, in overlord.Input, r overlord.Replied, _ chat.Sink) (chat.Answer, error) {
				if got = r; len(in.Files) != 1 || in.Files[0].Name != "plan.txt" {
					t.Errorf("files = %v: those of the request that waited are wanted", in.Files)
				}
				return chat.Answer{Content: "done", AgentID: "cook"}, nil
			})
			c.in.Pending = &pick
			c.in.Waiting = func(context.Context) ([]chat.File, error) {
				return []chat.File{{Part: chat.Part{Name: "plan.txt", Kind: chat.Document}}}, nil
			}
			answer, _, err := handleBy(t, o, c.in)
			if err != nil || answer.Content != "done" || answer.Settles != chat.SettlesAnswered || answer.Heard != c.heard {
				t.Fatalf("answer = %+v, %v", answer, err)
			}
			if got.Option == nil || got.Option.Value != c.option || string(got.Question.State) != `{"n":1}` {
				t.Fatalf("reply = %+v", got)
			}
		})
	}
}

func TestHandle_AnotherRequestOrARefusalDropsTheQuestion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		message string
		steps   []llmtest.Step
		want    string
	}{
		"refusal": {message: "never mind", want: "All right, I won't go on with that."},
		"by model": {message: "what is the weather?", want: "Sunny.", steps: []llmtest.Step{
			{Purpose: "clarification", Text: `{"verdict":"new","option":0}`}, {Purpose: "agent", Text: "Sunny."},
		}},
		"by words, the model being down": {message: "what is the weather?", want: "Sunny.", steps: []llmtest.Step{
			{Purpose: "clarification", Err: errors.New("down")}, {Purpose: "agent", Text: "Sunny."},
		}},
		"by words, the model being odd": {message: "what is the weather?", want: "Sunny.", steps: []llmtest.Step{
			{Purpose: "clarification", Text: `{"verdict":"choice","option":7}`}, {Purpose: "agent", Text: "Sunny."},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := asking(t, alone("markdown"), llmtest.NewScript(t, c.steps...), func(context.Context, overlord.Input, overlord.Replied, chat.Sink) (chat.Answer, error) {
				t.Error("nothing was answered")
				return chat.Answer{}, nil
			})
			answer, _, err := handleBy(t, o, overlord.Input{Message: c.message, Pending: &pick})
			if err != nil || answer.Content != c.want || answer.Settles != chat.SettlesDropped {
				t.Fatalf("answer = %+v, %v", answer, err)
			}
		})
	}
}

func TestHandle_AnUnclearReplyIsUnderstoodOnce(t *testing.T) {
	t.Parallel()
	j := journal{"reply": []byte(`{"Verdict":"choice","Option":1,"Sure":true}`)}
	o := asking(t, alone("markdown"), llmtest.NewScript(t), func(_ context.Context, _ overlord.Input, r overlord.Replied, _ chat.Sink) (chat.Answer, error) {
		return chat.Answer{Content: r.Option.Value}, nil
	})
	answer, _, err := handleBy(t, o, overlord.Input{Message: "something with noodles", Pending: &pick, Journal: j})
	if err != nil || answer.Content != "b" {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
}

func TestHandle_AStaleClickIsToldSo(t *testing.T) {
	t.Parallel()
	stale := &chat.UIReply{ID: "ui_zzzzzzzzzzzzzzzzzzzzz", Value: "a"}
	answer, _, err := watch(t, alone("markdown"), llmtest.NewScript(t), overlord.Input{Click: stale})
	if err != nil || !strings.Contains(answer.Content, "no longer open") || answer.Settles != "" {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
	// With a question pending it is asked again.
	o := asking(t, alone("markdown"), llmtest.NewScript(t), nil)
	answer, _, err = handleBy(t, o, overlord.Input{Click: stale, Pending: &pick, RequestID: "req_2"})
	if err != nil || answer.Question == nil || answer.Settles != chat.SettlesAnswered || answer.Content != "Which?\n\n1. Soup\n2. Pasta" {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
	if q := answer.Question; q.RequestID != "req_1" || q.ID == pick.ID || len(answer.Widgets) != 1 || answer.Widgets[0].ID != q.ID {
		t.Fatalf("question = %+v, widgets = %+v", q, answer.Widgets)
	}
}

func TestHandle_AnHTMLQuestionListsItsOptions(t *testing.T) {
	t.Parallel()
	stale := &chat.UIReply{ID: "ui_zzzzzzzzzzzzzzzzzzzzz", Value: "a"}
	q := pick
	q.Prompt = "a < b?"
	answer, _, err := handleBy(t, asking(t, alone(manifest.FormatHTML), llmtest.NewScript(t), nil), overlord.Input{Click: stale, Pending: &q})
	if err != nil || answer.Content != "<p>a &lt; b?</p><ol><li>Soup</li><li>Pasta</li></ol>" {
		t.Fatalf("answer = %+v, %v", answer, err)
	}
}

func TestHandle_TheNextQuestionBelongsToTheRequestThatWaits(t *testing.T) {
	t.Parallel()
	ask := func(context.Context, overlord.Input, overlord.Replied, chat.Sink) (chat.Answer, error) {
		return chat.Answer{AgentID: "cook", Question: &chat.Question{Kind: "pick", Prompt: "Sure?", Options: []chat.Option{{Value: "yes"}, {Value: "no"}, {Label: "nothing"}}}}, nil
	}
	for _, widgets := range []bool{true, false} {
		f := alone("markdown")
		f.Overlord.Response.Widgets = widgets
		answer, _, err := handleBy(t, asking(t, f, llmtest.NewScript(t), ask), overlord.Input{Message: "1", Pending: &pick, RequestID: "req_2"})
		if err != nil {
			t.Fatal(err)
		}
		q := answer.Question
		if q.RequestID != "req_1" || q.Message != "dinner?" || answer.Content != "Sure?" || len(q.Options) != 2 || q.Options[0].Label != "yes" {
			t.Fatalf("question = %+v, content %q", q, answer.Content)
		}
		if (len(answer.Widgets) == 1) != widgets || (q.ID != "") != widgets {
			t.Fatalf("widgets %v: %+v, id %q", widgets, answer.Widgets, q.ID)
		}
	}
}

package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/manifest"
)

// listener hears the same in every recording.
type listener struct {
	asked []llm.TranscribeRequest
	model string
	err   error
}

func (l *listener) Transcribe(_ context.Context, modelID string, req llm.TranscribeRequest) (llm.Transcript, error) {
	l.model = modelID
	l.asked = append(l.asked, req)
	return llm.Transcript{Text: "spoken words", Usage: chat.Usage{TotalTokens: 5}}, l.err
}

// withModels adds models by capability to those of newAgent.
func withModels(pairs ...string) func(*agent.Config) {
	return func(c *agent.Config) {
		for i := 0; i+1 < len(pairs); i += 2 {
			m := manifest.Model{Capability: pairs[i], ID: pairs[i+1]}
			if pairs[i] == manifest.CapabilityAudio {
				m.Media = &manifest.Media{Audio: manifest.AudioSettings{Language: "de"}}
			}
			c.Formation.LLM.Models = append(c.Formation.LLM.Models, m)
		}
	}
}

func file(kind chat.PartKind, typ, name, data, text string) chat.File {
	f := chat.File{Part: chat.Part{Kind: kind, MediaType: typ, Name: name}, Text: text}
	if data != "" {
		f.Data = []byte(data)
	}
	return f
}

func runFiles(t *testing.T, a *agent.Agent, j *journal, message string, files ...chat.File) (chat.Answer, error) {
	t.Helper()
	return a.Run(t.Context(), agent.Task{Message: message, Files: files, Journal: j, User: "ann", Request: "r1"}, func(chat.Event) error { return nil })
}

func user(t *testing.T, script *llmtest.Script, ask int) chat.Message {
	t.Helper()
	msgs := script.Asked()[ask].Messages
	return msgs[len(msgs)-1]
}

// scales lets an agent be shown the first of its files only.
type scales struct{ err error }

func (s scales) Measure(_ context.Context, agentID string, files []chat.File) ([]chat.File, error) {
	if agentID != "writer" {
		return nil, errors.New("measured for " + agentID)
	}
	return files[:1], s.err
}

func TestRun_FilesAreHeldAgainstTheLimitsOfTheAgent(t *testing.T) {
	t.Parallel()
	photos := []chat.File{file(chat.Image, "image/png", "one.png", "1", ""), file(chat.Image, "image/png", "two.png", "2", "")}
	script := llmtest.NewScript(t, llmtest.Step{Text: "I see."})
	a := newAgent(script, func(c *agent.Config) { c.Files = scales{} })
	if _, err := runFiles(t, a, &journal{}, "look", photos...); err != nil {
		t.Fatal(err)
	}
	if parts := user(t, script, 0).Parts; len(parts) != 1 || parts[0].Name != "one.png" {
		t.Errorf("the model is shown %+v", parts)
	}
	tooLarge := fault.New(fault.Unprocessable, "", "too large")
	a = newAgent(llmtest.NewScript(t), func(c *agent.Config) { c.Files = scales{tooLarge} })
	if _, err := runFiles(t, a, &journal{}, "look", photos...); !errors.Is(err, tooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestRun_FilesReachTheModelTheWayTheManifestSays(t *testing.T) {
	t.Parallel()
	photo := file(chat.Image, "image/png", "photo.png", "pixels", "")
	report := file(chat.Document, "application/pdf", "report.pdf", "%PDF", "its text")
	notes := file(chat.Document, "text/plain", "notes.txt", "", "some notes")
	const toldReport = "=== File \"report.pdf\" (application/pdf) ===\nits text\n=== End of file \"report.pdf\" ===\n\n"
	const toldNotes = "=== File \"notes.txt\" (text/plain) ===\nsome notes\n=== End of file \"notes.txt\" ===\n\n"
	tests := []struct {
		name    string
		models  []string
		files   []chat.File
		message string
		content string
		parts   []string
	}{
		{"no model of their own", nil, []chat.File{photo, report, notes}, "What is it?", toldReport + toldNotes + "What is it?", []string{"photo.png"}},
		{
			"the text model sees and reads",
			[]string{"vision", "test/m", "documents", "test/m"},
			[]chat.File{photo, report, notes},
			"What is it?",
			toldNotes + "What is it?",
			[]string{"photo.png", "report.pdf"},
		},
		{"no message", nil, []chat.File{photo}, "", "", []string{"photo.png"}},
		{"no message, a document", nil, []chat.File{notes}, "", strings.TrimRight(toldNotes, "\n"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			script := llmtest.NewScript(t, llmtest.Step{Model: "m", Text: "seen"})
			if _, err := runFiles(t, newAgent(script, withModels(tt.models...)), &journal{}, tt.message, tt.files...); err != nil {
				t.Fatal(err)
			}
			msg := user(t, script, 0)
			var names []string
			for _, p := range msg.Parts {
				names = append(names, p.Name)
			}
			if diff := cmp.Diff(tt.content, msg.Content); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.parts, names); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRun_AnotherModelIsAskedFirstAndOnlyOnce(t *testing.T) {
	t.Parallel()
	ears := &listener{}
	files := []chat.File{
		file(chat.Image, "image/png", "photo.png", "pixels", ""), file(chat.Audio, "audio/wav", "memo.wav", "sound", ""),
		file(chat.Video, "video/mp4", "clip.mp4", "film", ""), file(chat.Document, "application/pdf", "scan.pdf", "%PDF", ""),
	}
	models := withModels("vision", "test/eyes", "audio", "test/ears", "video", "test/eyes", "documents", "test/eyes")
	look := llmtest.Step{Model: "eyes", Purpose: "media", Last: "message, which somebody else will answer: What is it?", Text: "a cat", Usage: chat.Usage{TotalTokens: 10}}
	script := llmtest.NewScript(t, look, look, look, llmtest.Step{Model: "m", Text: "seen", Usage: chat.Usage{TotalTokens: 1}})
	j := &journal{}
	answer, err := runFiles(t, newAgent(script, func(c *agent.Config) { models(c); c.Speech = ears }), j, "What is it?", files...)
	if err != nil {
		t.Fatal(err)
	}
	want := `=== File "photo.png" (image/png, described by another model) ===
a cat
=== End of file "photo.png" ===

=== File "memo.wav" (audio/wav, transcribed by another model) ===
spoken words
=== End of file "memo.wav" ===

=== File "clip.mp4" (video/mp4, described by another model) ===
a cat
=== End of file "clip.mp4" ===

=== File "scan.pdf" (application/pdf, read by another model) ===
a cat
=== End of file "scan.pdf" ===

What is it?`
	msg := user(t, script, 3)
	if diff := cmp.Diff(want, msg.Content); diff != "" || len(msg.Parts) > 0 {
		t.Errorf("%d parts, content (-want +got):\n%s", len(msg.Parts), diff)
	}
	if answer.Usage.TotalTokens != 36 {
		t.Errorf("usage = %+v", answer.Usage)
	}
	who := llm.Account{Agent: "writer", User: "ann", Request: "r1"}
	if got := script.Asked()[0]; got.Account != who || len(got.Messages[1].Parts) != 1 {
		t.Errorf("the eyes were asked %+v", got)
	}
	if got := ears.asked[0]; ears.model != "test/ears" || got.Language != "de" || string(got.Audio.Data) != "sound" || got.Account != who {
		t.Errorf("the ears were asked %+v of %s", got, ears.model)
	}
	if len(j.saved) != 4 {
		t.Errorf("journal = %v", j.saved)
	}

	again := llmtest.NewScript(t, llmtest.Step{Model: "m", Text: "seen"})
	earlier := &journal{earlier: map[string]string{}}
	for _, step := range j.saved {
		earlier.earlier[step] = `{"text":"from the journal","usage":{"total_tokens":2}}`
	}
	answer, err = runFiles(t, newAgent(again, models), earlier, "What is it?", files...)
	if err != nil || answer.Usage.TotalTokens != 8 || strings.Count(user(t, again, 0).Content, "from the journal") != 4 {
		t.Errorf("the resumed run: %+v, %v: %s", answer, err, user(t, again, 0).Content)
	}
}

func TestRun_AModelThatFailsToLook(t *testing.T) {
	t.Parallel()
	refused := llmtest.Step{Model: "eyes", Err: &llm.CallError{Reason: llm.Refused, Detail: "too blurred"}}
	scan := file(chat.Document, "application/pdf", "a.pdf", "%PDF", "its text")
	models := withModels("documents", "test/eyes", "vision", "test/eyes")

	script := llmtest.NewScript(t, refused, llmtest.Step{Model: "m", Last: "its text", Text: "read"})
	if _, err := runFiles(t, newAgent(script, models), &journal{}, "", scan); err != nil {
		t.Errorf("a document whose text is there: %v", err)
	}
	script = llmtest.NewScript(t, refused)
	_, err := runFiles(t, newAgent(script, models), &journal{}, "", file(chat.Image, "image/png", "a.png", "x", ""))
	if err == nil || !strings.Contains(err.Error(), "too blurred") {
		t.Errorf("an image: %v", err)
	}
	audio := withModels("audio", "test/ears")
	_, err = runFiles(t, newAgent(llmtest.NewScript(t), func(c *agent.Config) { audio(c); c.Speech = &listener{err: errors.New("too quiet")} }),
		&journal{}, "", file(chat.Audio, "audio/wav", "a.wav", "x", ""))
	if err == nil || !strings.Contains(err.Error(), "too quiet") {
		t.Errorf("a recording: %v", err)
	}
}

func TestRun_LongDocumentsShareTheRoom(t *testing.T) {
	t.Parallel()
	const room = 200_000
	long := func(name string, size int) chat.File {
		return file(chat.Document, "text/plain", name, "", strings.Repeat("x", size))
	}
	cut := long("cut.txt", 10)
	cut.Cut = true
	script := llmtest.NewScript(t, llmtest.Step{Text: "read"})
	if _, err := runFiles(t, newAgent(script, nil), &journal{}, "go", long("a.txt", 500_000), long("b.txt", 20_000), long("c.txt", 300_000), cut); err != nil {
		t.Fatal(err)
	}
	content := user(t, script, 0).Content
	if !script.Asked()[0].Fresh {
		t.Error("an answer about another document may be given again")
	}
	if n := strings.Count(content, "x"); n > room+100 || n < room-1000 {
		t.Errorf("%d bytes of text went to the model", n)
	}
	for name, want := range map[string]bool{"a.txt": true, "b.txt": false, "c.txt": true, "cut.txt": true} {
		if got := strings.Contains(content, `[the rest of "`+name+`" is left out`); got != want {
			t.Errorf("%s is said to be cut: %v", name, got)
		}
	}
}

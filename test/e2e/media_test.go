package e2e

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/media/document/documenttest"
	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// withModels is the pair formation with more models, as lines of the list.
func withModels(t *testing.T, id, modelURL string, models ...string) harness.Files {
	t.Helper()
	files := suite.Pair(t, id, modelURL)
	const text = "    - text: openai/scripted\n"
	more := text
	for _, m := range models {
		more += "    - " + m + "\n"
	}
	files["formation.afs"] = strings.Replace(files["formation.afs"], text, more, 1)
	return files
}

// attached is a file of a chat body.
func attached(name, contentType string, data []byte) map[string]any {
	return map[string]any{
		"filename": name, "content_type": contentType, "size": len(data), "content": base64.StdEncoding.EncodeToString(data),
	}
}

// photo is a picture that has to be made smaller.
func photo(t *testing.T) []byte {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, 3000, 1500))
	for i := range img.Pix {
		img.Pix[i] = color.Gray{uint8(i * 7 % 251)}.Y
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const wave = "RIFF\x00\x00\x00\x00WAVEfmt some sound"

// lastCall is the last call for a purpose, and how many there were.
func lastCall(t *testing.T, model *fakellm.Server, purpose string) (last fakellm.Call, n int) {
	t.Helper()
	for _, c := range model.Calls() {
		if c.Purpose == purpose {
			last, n = c, n+1
		}
	}
	return last, n
}

// kinds are the parts of a call without their sizes.
func kinds(c fakellm.Call) []string {
	var out []string
	for _, p := range c.Parts {
		out = append(out, p[:strings.LastIndexByte(p, ' ')])
	}
	return out
}

// shownImage is the size of the picture in a call.
func shownImage(t *testing.T, c fakellm.Call) image.Point {
	t.Helper()
	_, rest, _ := strings.Cut(c.Body, "data:image/png;base64,")
	text, _, _ := strings.Cut(rest, `"`)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return image.Pt(cfg.Width, cfg.Height)
}

func TestMedia_FilesReachTheModelAndTheSessionKeepsTheirNames(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(answer("seen"))
	f := s.Deploy("media", withModels(t, "media", model.URL()))
	request := f.Request(harness.Chat{
		"message": "What do they say?", "agent_id": "poet", "session_id": "s1", "files": []any{
			attached("photo.png", "image/png", photo(t)),
			attached("report.pdf", "application/pdf", documenttest.PDF("BT /F1 12 Tf 50 700 Td (the year was good) Tj ET")),
			attached("letter.docx", "application/octet-stream", documenttest.DOCX(documenttest.Paragraphs("dear reader"))),
			attached("page.html", "text/html", []byte("<!doctype html><script>x()</script><p>from the web")),
			attached("table.csv", "text/csv", []byte("a;b\n1;2")),
		},
	})
	request.URL = f.Through() + "/v1/chat"
	s.HTTP.Must(request).Want(t, http.StatusOK, "data.status", "completed")
	call, _ := lastCall(t, model, "agent")
	if diff := cmp.Diff([]string{"image image/png"}, kinds(call)); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if size := shownImage(t, call); size != image.Pt(1024, 512) {
		t.Errorf("the picture was shown with %v pixels", size)
	}
	at := 0
	for _, want := range []string{
		`=== File "report.pdf" (application/pdf)`, "[page 1]", "the year was good", `"letter.docx"`, "dear reader", `"page.html"`, "from the web",
		`"table.csv" (text/csv)`, "a;b", "What do they say?",
	} {
		i := strings.Index(call.User[at:], want)
		if i < 0 {
			t.Fatalf("the message has no %q after byte %d:\n%s", want, at, call.User)
		}
		at += i
	}
	if strings.Contains(call.User, "x()") {
		t.Error("a script is part of a page's text")
	}

	f.Say(harness.Chat{"message": "And now?", "agent_id": "poet", "session_id": "s1"})
	again, n := lastCall(t, model, "agent")
	const note = "[files: photo.png (image), report.pdf (document), letter.docx (document), page.html (document), table.csv (document)]"
	if n != 2 || len(again.Parts) != 0 || !strings.Contains(again.Body, note) || strings.Contains(again.Body, "dear reader") {
		t.Errorf("call %d has parts %q and the history\n%s", n, again.Parts, again.Body)
	}
}

func TestMedia_AHostileFileIsRefusedByNameAndNothingElseHappens(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("hostile", withModels(t, "hostile", model.URL()))
	before := f.PID()
	for name, data := range map[string][]byte{
		"memory.pdf":  []byte("%PDF-1.4\nxref\n4000000000 1\n0000000000 00000 n \ntrailer<</Size 5/Root 1 0 R>>\nstartxref\n9\n%%EOF\n"),
		"forever.pdf": []byte("%PDF-1.4\nxref\n0 1\n0000000000 00000 f \ntrailer<</Size 5/Prev 9/Root 1 0 R>>\nstartxref\n9\n%%EOF\n"),
		"deep.docx":   documenttest.Zip("word/document.xml", strings.Repeat("<a>", 100_000)),
		"bomb.docx":   documenttest.Zip("word/document.xml", "<a>"+strings.Repeat(" ", 80<<20)+"</a>"),
		"bomb.png":    append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\xff\xff\x00\x00\xff\xff\x08\x02\x00\x00\x00\x39\x67\x4e\x07"), "rest"...),
	} {
		reply := s.HTTP.Must(f.Request(harness.Chat{
			"message": "read", "files": []any{attached("fine.txt", "text/plain", []byte("fine")), attached(name, "", data)},
		}))
		reply.Want(t, http.StatusUnprocessableEntity, "error.data.validation_errors.0.field", "files.1.content")
		if msg := reply.Text("error.data.validation_errors.0.msg"); !strings.HasPrefix(msg, "files[1] ("+name+"): ") {
			t.Errorf("%s: %s", name, msg)
		}
	}
	if model.Count() != 0 {
		t.Errorf("the model was asked %d times", model.Count())
	}
	f.Get().Want(t, http.StatusOK, "data.pid", strconv.Itoa(before), "data.restart_count", "0")
	f.Say(harness.Chat{"message": "still there?"})
}

func TestMedia_FilesAreThereAfterAKill(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Purpose: "agent", Times: 2, Reply: fakellm.Reply{Gate: "never"}}, answer("seen"))
	f := s.Deploy("kept", withModels(t, "kept", model.URL(), "audio: openai/ears"))
	// Both are accepted, and hang with their model, when the process dies.
	chat := f.Request(harness.Chat{
		"message": "look", "agent_id": "poet", "request_id": "shown", "mode": "async", "files": []any{
			attached("photo.png", "image/png", photo(t)), attached("a.docx", "", documenttest.DOCX(documenttest.Paragraphs("dear reader"))),
		},
	})
	s.HTTP.Must(chat).Want(t, http.StatusAccepted)
	spoken := f.Request(map[string]any{
		"agent_id": "cook", "request_id": "spoken", "session_id": "s", "stream": true, "files": []any{attached("a.wav", "audio/wav", []byte(wave))},
	})
	spoken.URL = f.Own() + "/v1/audiochat"
	s.HTTP.MustStream(spoken)
	if err := model.WaitCount(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	first := agentCalls(model)
	f.Kill()
	f.UntilEnded(t.Context(), "shown").Want(t, http.StatusOK, "data.status", "completed", "data.response", "seen")
	f.UntilEnded(t.Context(), "spoken").Want(t, http.StatusOK, "data.status", "completed", "data.response", "seen")
	again := agentCalls(model)[2:]
	for _, calls := range [][]string{first, again} {
		slices.Sort(calls)
	}
	if diff := cmp.Diff(first, again); diff != "" || len(first) != 2 {
		t.Errorf("the models of %d turns were asked otherwise after the kill (-before +after):\n%s", len(first), diff)
	}
	if _, n := lastCall(t, model, "transcription"); n != 1 {
		t.Errorf("the recording was heard %d times", n)
	}
	said := s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.count", "2")
	if text := said.Text("data.messages.0.text"); text != "This is what "+strconv.Itoa(len(wave))+" bytes say." {
		t.Errorf("the session has %q", text)
	}
}

// agentCalls describes what agents' models were asked and shown.
func agentCalls(model *fakellm.Server) []string {
	var out []string
	for _, c := range model.Calls() {
		if c.Purpose == "agent" {
			out = append(out, c.User+" "+strings.Join(c.Parts, ","))
		}
	}
	return out
}

func TestMedia_ModelsForAKindLookAndListenFirst(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{Model: "^eyes$", Reply: fakellm.Reply{Text: "a grey wall"}},
		fakellm.Rule{Model: "^ears$", Reply: fakellm.Reply{Text: "what is on the wall"}},
		fakellm.Rule{Model: "^scripted$", Purpose: "agent", Reply: fakellm.Reply{Text: "nothing"}},
	)
	f := s.Deploy("senses", withModels(t, "senses", model.URL(), "vision: openai/eyes", "audio: openai/ears", "documents: openai/scripted"))
	f.Say(harness.Chat{
		"message": "", "agent_id": "poet", "files": []any{
			attached("photo.png", "image/png", photo(t)), attached("memo.wav", "audio/wav", []byte(wave)),
			attached("scan.pdf", "application/pdf", documenttest.PDF("0 0 10 10 re f")),
		},
	})
	calls := model.Calls()
	last := calls[len(calls)-1]
	if last.Model != "scripted" || !slices.Equal(kinds(last), []string{"document application/pdf"}) {
		t.Errorf("the agent's model %s was shown %q", last.Model, last.Parts)
	}
	for _, want := range []string{"a grey wall", "what is on the wall", "described by another model", "transcribed by another model"} {
		if !strings.Contains(last.User, want) {
			t.Errorf("the message has no %q:\n%s", want, last.User)
		}
	}
	for _, c := range calls {
		if c.Model == "eyes" && !slices.Equal(kinds(c), []string{"image image/png"}) {
			t.Errorf("the eyes were shown %q", c.Parts)
		}
	}

	spoken := f.Request(map[string]any{"files": []any{attached("a.webm", "audio/webm", []byte("\x1a\x45\xdf\xa3"))}})
	spoken.URL = f.Own() + "/v1/audiochat"
	s.HTTP.Must(spoken).Want(t, http.StatusBadRequest, "error.code", "VALIDATION_ERROR", "error.data.field", "files")
	spoken.Body = map[string]any{"agent_name": "cook", "files": []any{attached("a.wav", "audio/wav", []byte(wave))}}
	s.HTTP.Must(spoken).Want(t, http.StatusOK, "data.response", "nothing", "data.agent", "cook")
	if call, _ := lastCall(t, model, "agent"); call.User != "what is on the wall" {
		t.Errorf("the spoken message reached the model as %q", call.User)
	}
}

func TestMedia_AnAgentsOwnLimitsCountForWhatItIsShown(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	files := withModels(t, "own", model.URL())
	files["agents/poet.afs"] += "\nllm_models:\n" +
		"  - vision: openai/scripted\n    settings: {preprocessing: {max_width: 256, max_height: 256}}\n" +
		"  - documents: openai/scripted\n    settings: {max_size_mb: 1}\n"
	f := s.Deploy("own", files)
	ask := func(agent, message string, file map[string]any) harness.Reply {
		body := harness.Chat{"message": message, "files": []any{file}}
		if agent != "" {
			body["agent_id"] = agent
		}
		return s.HTTP.Must(f.Request(body))
	}
	const poem, pasta = "a poem about this, with a rhyme in each verse", "a recipe with pasta from the oven"
	picture := attached("photo.png", "image/png", photo(t))
	long := attached("long.txt", "text/plain", bytes.Repeat([]byte("many words "), 150_000))
	for _, tt := range []struct {
		agent, message string
		size           image.Point
		status         int
	}{
		{"poet", poem, image.Pt(256, 128), http.StatusUnprocessableEntity},
		{"", poem, image.Pt(256, 128), http.StatusInternalServerError}, // who answers is decided later
		{"cook", pasta, image.Pt(1024, 512), http.StatusOK},
		{"", pasta, image.Pt(1024, 512), http.StatusOK},
	} {
		ask(tt.agent, tt.message, picture).Want(t, http.StatusOK)
		call, _ := lastCall(t, model, "agent")
		if size := shownImage(t, call); size != tt.size {
			t.Errorf("%q, %s: the picture was shown with %v pixels", tt.agent, tt.message, size)
		}
		reply := ask(tt.agent, tt.message, long).Want(t, tt.status)
		if text := string(reply.Body); tt.status != http.StatusOK && !strings.Contains(text, "1.6 MiB are more than 1 (documents max_size_mb)") {
			t.Errorf("%q, %s: the error says %s", tt.agent, tt.message, text)
		}
	}
}

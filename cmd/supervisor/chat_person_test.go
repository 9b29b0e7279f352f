package main

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// askEvents is a question with two choices.
const askEvents = `data: {"token":{"type":"progress","stage":"agent_processing","content":"Agent shop is working"}}

data: {"token":{"type":"content","content":"Which one?"}}

data: {"token":{"type":"progress","stage":"tool_call","tool_name":"s__t","content":"Calling s__t"}}

data: {"token":{"type":"completed","content":"Which one?","session_id":"sess_1","requires_user_response":true}}

event: ui
data: {"ui":[{"type":"options","id":"ui_1","prompt":"Which one?","options":[{"value":"2","label":"Tea"},{"value":"milk","label":"Milk"}],"multi":false}]}

event: done

`

// posts answers every message with events and returns the bodies.
func posts(t *testing.T, f *fake, events string) <-chan map[string]any {
	t.Helper()
	bodies := make(chan map[string]any, 10)
	f.on("POST /api/hello/v1/chat", reply{do: func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		bodies <- body
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, events) //nolint:errcheck // the client sees it
	}})
	return bodies
}

// A number, a value and a label choose; other words are a message.
func TestChat_AnswersAQuestionByNumberOrName(t *testing.T) {
	t.Parallel()
	for typed, index := range map[string]float64{"1": 0, "milk": 1, "TEA": 0, "2": 0, "Milk": 1, "3": -1, "0": -1, "coffee": -1} {
		f := newFake(t)
		bodies := posts(t, f, askEvents)
		s := newSession(t, f)
		s.in = "buy\n " + typed + "\n"
		if code := s.run(t.Context(), "chat", "hello", "--key", "fmc_1"); code != 0 {
			t.Fatalf("%q: exit code %d: %s", typed, code, s.er.String())
		}
		if first := <-bodies; first["message"] != "buy" || first["ui_response"] != nil {
			t.Errorf("%q: began with %v", typed, first)
		}
		second := <-bodies
		choice, chose := second["ui_response"].(map[string]any)
		switch {
		case index < 0 && (chose || second["message"] != " "+typed):
			t.Errorf("%q: sent %v", typed, second)
		case index >= 0 && (!chose || second["message"] != "" || choice["id"] != "ui_1" || choice["index"] != index):
			t.Errorf("%q: sent %v", typed, second)
		}
		if second["session_id"] != "sess_1" {
			t.Errorf("%q: session %v", typed, second["session_id"])
		}
	}
}

// An answer that is no question has nothing to choose from, whatever is shown.
func TestChat_ChoosesOnlyWhatIsAsked(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	bodies := posts(t, f, strings.Replace(askEvents, `,"requires_user_response":true`, "", 1))
	s := newSession(t, f)
	s.in = "buy\n1\n"
	if code := s.run(t.Context(), "chat", "hello", "--key", "fmc_1"); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	<-bodies
	if second := <-bodies; second["message"] != "1" || second["ui_response"] != nil {
		t.Errorf("sent %v", second)
	}
}

// At a terminal the stages are dim lines of their own, also amid an answer.
func TestChat_ShowsAPersonWhatGoesOn(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	posts(t, f, askEvents)
	s := newSession(t, f)
	s.errTTY, s.outTTY = true, true
	if code := s.run(t.Context(), "chat", "hello", "buy", "--key", "fmc_1"); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	if got, want := s.out.String(), "Which one?\n1. Tea\n2. Milk\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	want := "\x1b[2m· Agent shop is working\x1b[0m\n\n\x1b[2m· Calling s__t\x1b[0m\nanswer it with --session sess_1 and a number or a name\n"
	if got := s.er.String(); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func TestChat_SendsFilesWithTheFirstMessage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a b.txt")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	bodies := posts(t, f, doneEvents)
	s := newSession(t, f)
	s.in = "one\ntwo\n"
	if code := s.run(t.Context(), "chat", "hello", "--key", "fmc_1", "--file", path); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	files, _ := (<-bodies)["files"].([]any)
	if len(files) != 1 {
		t.Fatalf("sent %v", files)
	}
	file, _ := files[0].(map[string]any)
	if file["filename"] != "a b.txt" || file["content"] != base64.StdEncoding.EncodeToString([]byte("content")) {
		t.Errorf("sent %v", file)
	}
	if second := <-bodies; second["files"] != nil {
		t.Errorf("sent again %v", second["files"])
	}
}

func TestReadFiles_RefusesWhatNoFormationTakes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(maxSent/2 + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := readFiles([]string{path, path}); err == nil || !strings.Contains(err.Error(), "more than 59.0 MiB together") {
		t.Errorf("error %v", err)
	}
}

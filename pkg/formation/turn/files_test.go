package turn_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/turn"
)

func someFiles() []chat.File {
	return []chat.File{
		{Part: chat.Part{Kind: chat.Image, MediaType: "image/png", Name: "a.png", Data: []byte{0, 1, 255}}},
		{Part: chat.Part{Kind: chat.Document, MediaType: "text/plain", Name: "b.txt"}, Text: "words", Cut: true},
		{Part: chat.Part{Kind: chat.Audio, MediaType: "audio/wav", Name: "c.wav", Data: []byte("sound")}, Spoken: true},
	}
}

// seeing passes the files of a turn on, hears "spoken" and answers.
func seeing(got chan<- []chat.File) handler {
	return func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		got <- in.Files
		answer, err := say("done")(ctx, in, sink)
		answer.Heard = "spoken"
		return answer, err
	}
}

func filesLeft(t *testing.T, db *store.DB, id string) int {
	t.Helper()
	files, err := request.Files(t.Context(), db, id)
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestFiles_ReachTheTurnAndLeaveANoteInItsSession(t *testing.T) {
	t.Parallel()
	got := make(chan []chat.File, 1)
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "one", seeing(got), options{})
	h, err := p.Begin(t.Context(), turn.Request{UserID: "u1", SessionID: "s", Files: someFiles(), Route: "POST /v1/chat"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someFiles(), <-got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	wait(t, h)
	if n := filesLeft(t, p.db, h.ID); n != 0 {
		t.Errorf("%d files are left after the end", n)
	}
	m := memory.New(memory.Config{DB: p.db, FormationID: "f", BufferSize: 10})
	past, err := m.Recall(t.Context(), "u1", "s")
	if err != nil {
		t.Fatal(err)
	}
	want := []chat.Message{{Role: chat.User, Content: "spoken\n\n[files: a.png (image), b.txt (document)]"}, {Role: chat.Assistant, Content: "done"}}
	if diff := cmp.Diff(want, past.History); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func TestFiles_AreThereForAResumedTurn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	shown := make(chan struct{})
	dead := start(t, path, "dead", cut(shown, nil), options{})
	h := begin(t, dead, turn.Request{SessionID: "s", Files: someFiles()})
	<-shown
	got := make(chan []chat.File, 1)
	p := start(t, path, "fresh", seeing(got), options{fence: []string{"dead"}})
	if diff := cmp.Diff(someFiles(), <-got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	again, err := p.Find(t.Context(), "u1", h.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, again)
	if n := filesLeft(t, p.db, h.ID); n != 0 {
		t.Errorf("%d files are left after the end", n)
	}
}

func TestFiles_ARepeatedKeyStoresThemOnce(t *testing.T) {
	t.Parallel()
	got := make(chan []chat.File, 2)
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "one", seeing(got), options{})
	first := begin(t, p, turn.Request{IdempotencyKey: "k", Files: someFiles()})
	second := begin(t, p, turn.Request{IdempotencyKey: "k", Files: someFiles()})
	wait(t, first)
	wait(t, second)
	if first.ID != second.ID || len(got) != 1 {
		t.Errorf("requests %s and %s, %d turns", first.ID, second.ID, len(got))
	}
}

func TestFiles_OfACancelledTurnGo(t *testing.T) {
	t.Parallel()
	shown := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "one", cut(shown, nil), options{})
	h := begin(t, p, turn.Request{Files: someFiles()})
	<-shown
	if n := filesLeft(t, p.db, h.ID); n != 3 {
		t.Errorf("%d files are stored", n)
	}
	if _, err := p.Cancel(t.Context(), "u1", h.ID, false); err != nil {
		t.Fatal(err)
	}
	wait(t, h)
	if n := filesLeft(t, p.db, h.ID); n != 0 {
		t.Errorf("%d files are left after the end", n)
	}
}

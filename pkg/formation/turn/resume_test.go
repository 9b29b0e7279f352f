package turn_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
)

// cut streams the parts and then hangs as a process does that is about to be
// killed; what it did before is in the store.
func cut(shown chan<- struct{}, steps map[string]string, parts ...string) handler {
	return func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		for step, payload := range steps {
			if err := in.Journal.Save(ctx, step, []byte(payload)); err != nil {
				return chat.Answer{}, err
			}
		}
		for _, p := range parts {
			if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: p}); err != nil {
				return chat.Answer{}, err
			}
		}
		close(shown)
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}
}

// killed runs a streaming turn up to its parts, reads them, and leaves it as a
// dead process would: open, and its launch to be fenced.
func killed(t *testing.T, path string, steps map[string]string, parts ...string) (id string) {
	t.Helper()
	shown := make(chan struct{})
	dead := start(t, path, "dead", cut(shown, steps, parts...), options{})
	h := begin(t, dead, turn.Request{Stream: true, SessionID: "s", IdempotencyKey: "k"})
	<-shown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := 0
	_ = h.Frames(ctx, 0, func(batch []turn.Frame) error {
		if read += len(batch); read == len(parts)+1 {
			cancel()
		}
		return nil
	})
	return h.ID
}

func TestResume_SameTellingContinuesTheStreamWithoutAGap(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, nil, "Once ", "upon ")
	p := start(t, path, "fresh", say("On", "ce upon a ", "time"), options{fence: []string{"dead"}})
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"progress/init", "content/response_generation:Once ", "content/response_generation:upon ",
		"content/response_generation:a ", "content/response_generation:time", "completed:Once upon a time", `done {"finished":true}`,
	}
	if diff := cmp.Diff(want, frames(t, h, 0)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(want[3:], frames(t, h, 3)); diff != "" {
		t.Fatal(diff)
	}
	wait(t, h)
	rec, err := request.Get(t.Context(), p.db, id)
	if err != nil || rec.Attempt != 2 || rec.LaunchID != "fresh" || rec.Status != request.Completed {
		t.Fatalf("record = %+v, %v", rec, err)
	}
}

func TestResume_OtherTellingIsMarkedAsDiscontinuity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, nil, "Once ", "upon ")
	p := start(t, path, "fresh", say("Long ago"), options{fence: []string{"dead"}})
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"completed:Long ago (discontinuity)", `done {"finished":true}`}
	if diff := cmp.Diff(want, frames(t, h, 3)); diff != "" {
		t.Fatal(diff)
	}
}

func TestResume_FinishedStepsAreHandedBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, map[string]string{"route": `{"agent":"writer"}`})
	got := make(chan string, 1)
	p := start(t, path, "fresh", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		payload, _ := in.Journal.Done("route")
		got <- string(payload)
		return say("done")(ctx, in, sink)
	}), options{fence: []string{"dead"}})
	if payload := <-got; payload != `{"agent":"writer"}` {
		t.Fatalf("journal = %q", payload)
	}
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, h)
	steps, err := request.Steps(t.Context(), p.db, id)
	if err != nil || len(steps) != 0 {
		t.Fatalf("steps after the end: %v, %v", steps, err)
	}
}

func TestResume_ADeadLaunchThatLivesOnCommitsNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	release, entered := make(chan struct{}), make(chan struct{})
	hung := start(t, path, "hung", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		close(entered)
		<-release
		return say("from the hung process")(ctx, in, sink)
	}), options{})
	old := begin(t, hung, turn.Request{})
	<-entered
	p := start(t, path, "fresh", say("from the fresh process"), options{fence: []string{"hung"}})
	h, err := p.Find(t.Context(), "u1", old.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	if reply := wait(t, h); reply.Response != "from the fresh process" {
		t.Fatalf("reply = %+v", reply)
	}
	close(release)
	if reply, err := old.Wait(t.Context()); err == nil {
		t.Fatalf("the fenced process acknowledged %+v", reply)
	}
	rec, err := request.Get(t.Context(), p.db, old.ID)
	if err != nil || rec.Result != "from the fresh process" {
		t.Fatalf("record = %+v, %v", rec, err)
	}
}

func TestStop_OpenTurnsResumeInTheNextLife(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	entered := make(chan struct{})
	first := start(t, path, "first", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
		close(entered)
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{})
	h := begin(t, first, turn.Request{Mode: turn.Async})
	<-entered
	first.stop()
	second := start(t, path, "second", say("resumed"), options{fence: []string{"first"}})
	again, err := second.Find(t.Context(), "u1", h.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	if reply := wait(t, again); reply.Response != "resumed" {
		t.Fatalf("reply = %+v", reply)
	}
}

func TestResume_AnIdempotencyKeyJoinsTheResumedTurn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, nil, "a")
	release := make(chan struct{})
	p := start(t, path, "fresh", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		<-release
		return say("a", "b")(ctx, in, sink)
	}), options{fence: []string{"dead"}})
	h := begin(t, p, turn.Request{Stream: true, SessionID: "s", IdempotencyKey: "k"})
	if h.ID != id || !h.Replayed {
		t.Fatalf("handle = %+v", h)
	}
	close(release)
	want := []string{"content/response_generation:b", "completed:ab", `done {"finished":true}`}
	if diff := cmp.Diff(want, frames(t, h, 2)); diff != "" {
		t.Fatal(diff)
	}
}

func TestResume_ATurnThatKeepsKillingItsProcessIsGivenUp(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, nil)
	launches := []string{"dead", "b", "c", "d", "e"}
	for i := 1; i < len(launches); i++ {
		entered := make(chan struct{})
		start(t, path, launches[i], cut(entered, nil), options{fence: launches[:i]})
		<-entered
	}
	p := start(t, path, "last", say("never"), options{fence: launches})
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := h.Wait(t.Context()); err == nil {
		t.Fatalf("reply = %+v", reply)
	}
	rec, err := request.Get(t.Context(), p.db, id)
	if err != nil || rec.Status != request.Failed {
		t.Fatalf("record = %+v, %v", rec, err)
	}
}

package turn_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/manifest"
)

const clicked = "ui_000000000000000000001"

// inquirer asks when it hears "ask", fails when it hears "fail", and takes every
// other message for the answer to what is pending.
func inquirer(_ context.Context, in overlord.Input, _ chat.Sink) (chat.Answer, error) {
	answer := chat.Answer{Content: "You said " + in.Message, AgentID: "writer", Agents: []string{"writer"}}
	if in.Pending != nil {
		answer.Settles = chat.SettlesAnswered
		if in.Click != nil {
			answer.Content = "You chose " + in.Click.Value
		}
	}
	switch in.Message {
	case "fail":
		return chat.Answer{}, errors.New("down")
	case "drop":
		answer.Settles = chat.SettlesDropped
	case "ask", "ask again":
		waits := in.RequestID
		if answer.Settles == chat.SettlesAnswered {
			waits = in.Pending.RequestID
		}
		answer.Content = "Which?"
		answer.Question = &chat.Question{ID: clicked, Kind: "test", Prompt: "Which?", RequestID: waits, Message: in.Message, State: []byte(`{"n":1}`)}
		answer.Widgets = []chat.Widget{{Type: chat.WidgetOptions, ID: clicked, Prompt: "Which?", Options: []chat.Option{{Value: "a", Label: "A"}}}}
	}
	return answer, nil
}

func record(t *testing.T, p *process, id string) *request.Record {
	t.Helper()
	rec, err := request.Get(t.Context(), p.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// status is the state of each request and its text.
func status(t *testing.T, p *process, ids ...string) (out []string) {
	t.Helper()
	for _, id := range ids {
		rec := record(t, p, id)
		if rec.Ended() == (rec.Status == request.AwaitingClarification) {
			t.Errorf("%s is %s and ended: %v", id, rec.Status, rec.Ended())
		}
		out = append(out, id+" "+rec.Status+": "+rec.Result)
	}
	return out
}

func say1(t *testing.T, p *process, id, message string) *turn.Reply {
	t.Helper()
	return wait(t, begin(t, p, turn.Request{ID: id, SessionID: "s", Message: message}))
}

func TestQuestions_TheNextMessageEndsEveryRequestThatWaits(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(inquirer), options{})
	if r := say1(t, p, "r1", "ask"); !r.Asks() || r.Response != "Which?" || len(r.Widgets) != 1 || r.Answers != "" {
		t.Fatalf("reply = %+v", r)
	}
	if r := say1(t, p, "r2", "ask again"); !r.Asks() || r.Answers != "r1" {
		t.Fatalf("reply = %+v", r)
	}
	want := []string{"r1 awaiting_clarification: Which?", "r2 awaiting_clarification: Which?"}
	if diff := cmp.Diff(want, status(t, p, "r1", "r2")); diff != "" {
		t.Fatal(diff)
	}
	if r := say1(t, p, "r3", "a"); r.Asks() || r.Answers != "r1" {
		t.Fatalf("reply = %+v", r)
	}
	want = []string{"r1 completed: You said a", "r2 completed: You said a", "r3 completed: You said a"}
	if diff := cmp.Diff(want, status(t, p, "r1", "r2", "r3")); diff != "" {
		t.Fatal(diff)
	}
	if r := say1(t, p, "r4", "b"); r.Answers != "" {
		t.Fatalf("an answered question is asked no more: %+v", r)
	}
}

func TestQuestions_FailureKeepsThemAndADropCancels(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(inquirer), options{})
	say1(t, p, "r1", "ask")
	if _, err := begin(t, p, turn.Request{ID: "r2", SessionID: "s", Message: "fail"}).Wait(t.Context()); err == nil {
		t.Fatal("the turn is to fail")
	}
	say1(t, p, "r3", "drop")
	want := []string{"r1 cancelled: ", "r2 failed: ", "r3 completed: You said drop"}
	if diff := cmp.Diff(want, status(t, p, "r1", "r2", "r3")); diff != "" {
		t.Fatal(diff)
	}
}

func TestQuestions_CancellingOneOfThoseThatWaitTakesTheQuestionBack(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(inquirer), options{})
	say1(t, p, "r1", "ask")
	say1(t, p, "r2", "ask again")
	for range 2 {
		if _, err := p.Cancel(t.Context(), "u1", "r2", false); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"r1 cancelled: ", "r2 cancelled: "}, status(t, p, "r1", "r2")); diff != "" {
		t.Fatal(diff)
	}
	if r := say1(t, p, "r3", "a"); r.Answers != "" {
		t.Fatalf("reply = %+v", r)
	}
	var signals int
	if err := p.db.QueryRow(t.Context(), `SELECT COUNT(*) FROM signals`, nil, &signals); err != nil || signals != 0 {
		t.Fatalf("%d signals for nobody, %v", signals, err)
	}
}

func TestQuestions_OutliveTheProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	first := start(t, path, "first", handler(inquirer), options{})
	wait(t, begin(t, first, turn.Request{ID: "r1", SessionID: "s", Message: "ask", Files: someFiles()[:1], Stream: true}))

	// The one after takes the question up and dies over the answer.
	seen := make(chan *chat.Question, 1)
	second := start(t, path, "second", handler(func(ctx context.Context, in overlord.Input, _ chat.Sink) (chat.Answer, error) {
		seen <- in.Pending
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{fence: []string{"first"}})
	if _, active := second.Counts(); active != 0 {
		t.Fatal("a request that waits is no work to go on with")
	}
	begin(t, second, turn.Request{ID: "r2", SessionID: "s", Click: &chat.UIReply{ID: clicked, Value: "a"}})
	if q := <-seen; q == nil || q.ID != clicked || string(q.State) != `{"n":1}` || q.RequestID != "r1" {
		t.Fatalf("pending = %+v", q)
	}

	var files []chat.File
	third := start(t, path, "third", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (answer chat.Answer, err error) {
		if files, err = in.Waiting(ctx); err != nil {
			return chat.Answer{}, err
		}
		return inquirer(ctx, in, sink)
	}), options{fence: []string{"first", "second"}})
	h, err := third.Find(t.Context(), "u1", "r2", false)
	if err != nil {
		t.Fatal(err)
	}
	if r := wait(t, h); r.Response != "You chose a" || r.Answers != "r1" {
		t.Fatalf("reply = %+v", r)
	}
	if diff := cmp.Diff(someFiles()[:1], files); diff != "" {
		t.Errorf("files of the request that waits (-want +got):\n%s", diff)
	}
	if n := filesLeft(t, third.db, "r1"); n != 0 {
		t.Errorf("%d files are left after the end", n)
	}
	if diff := cmp.Diff([]string{"r1 completed: You chose a", "r2 completed: You chose a"}, status(t, third, "r1", "r2")); diff != "" {
		t.Fatal(diff)
	}
	// Its stream is still the question, with the widgets right before done.
	if h, err = third.Find(t.Context(), "u1", "r1", false); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"progress/init", "completed:Which?",
		`ui {"ui":[{"type":"options","id":"` + clicked + `","prompt":"Which?","options":[{"value":"a","label":"A"}]}]}`, `done {"finished":true}`,
	}
	if diff := cmp.Diff(want, frames(t, h, 0)); diff != "" {
		t.Fatal(diff)
	}
}

func TestQuestions_ARepeatedKeyGetsTheQuestionAgain(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(inquirer), options{})
	ask := turn.Request{ID: "r1", SessionID: "s", Message: "ask", IdempotencyKey: "k"}
	first := wait(t, begin(t, p, ask))
	ask.ID = "r2"
	for range 2 { // while it waits, and after it has ended
		again := begin(t, p, ask)
		if diff := cmp.Diff(first, wait(t, again)); diff != "" || !again.Replayed {
			t.Fatalf("replayed %v: %s", again.Replayed, diff)
		}
		say1(t, p, p.db.Now().Format("r150405.000000000"), "a")
	}
}

func TestQuestions_LapseWithTheResults(t *testing.T) {
	t.Parallel()
	var pending []bool
	h := handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		pending = append(pending, in.Pending != nil)
		return inquirer(ctx, in, sink)
	})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", h, options{async: manifest.Async{Mode: "sync", ResultTTL: -time.Hour}})
	say1(t, p, "r1", "ask")
	if err := p.Lapse(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rec := record(t, p, "r1"); rec.Status != request.Cancelled || rec.Error != "the question was not answered in time" {
		t.Fatalf("record = %+v", rec)
	}
	// Nor is one taken up that the hourly look has not found yet.
	say1(t, p, "r2", "ask")
	say1(t, p, "r3", "a")
	if diff := cmp.Diff([]string{"r2 cancelled: ", "r3 completed: You said a"}, status(t, p, "r2", "r3")); diff != "" {
		t.Fatal(diff)
	}
	if slices.Contains(pending, true) {
		t.Fatal(pending)
	}
}

func TestSink_AnEventThatMayWaitIsShownWithTheNext(t *testing.T) {
	t.Parallel()
	var commits []int
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		return chat.Answer{Content: "ok", AgentID: "writer"}, sink(chat.Event{Type: chat.Progress, Stage: chat.StageResponsePreparation, Content: "Preparing", Soon: true})
	}), options{})
	h := begin(t, p, turn.Request{Stream: true})
	want := []string{"progress/init", "progress/response_preparation", "completed:ok", `done {"finished":true}`}
	if diff := cmp.Diff(want, frames(t, h, 0)); diff != "" {
		t.Fatal(diff)
	}
	rows, err := p.db.Query(t.Context(), `SELECT first_id FROM stream_events WHERE request_id = ? ORDER BY first_id`, h.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		commits = append(commits, id)
	}
	if diff := cmp.Diff([]int{1, 2}, commits); diff != "" || rows.Err() != nil {
		t.Fatalf("first frames of the commits: %s %v", diff, rows.Err())
	}
}

package turn_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/turn"
)

// transcript is what a session remembers, as role: text.
func transcript(t *testing.T, p *process, session string) (out []string) {
	t.Helper()
	list, _, err := memory.New(memory.Config{DB: p.db}).Messages(t.Context(), memory.MessageQuery{UserID: "u1", SessionID: session, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		out = append(out, string(list[i].Role)+": "+list[i].Content)
	}
	return out
}

func TestTurn_AClickWithoutWordsEndsAndIsRemembered(t *testing.T) {
	t.Parallel()
	two := 2
	for name, test := range map[string]struct {
		click *chat.UIReply
		want  string
	}{
		"a value": {&chat.UIReply{ID: "ui_of_long_ago", Value: "berlin"}, "user: [choice: berlin]"},
		"a place": {&chat.UIReply{ID: "ui_of_long_ago", Index: &two}, "user: [choice]"},
		"nothing": {nil, "user: [choice]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(context.Context, overlord.Input, chat.Sink) (chat.Answer, error) {
				return chat.Answer{Content: "There is nothing to choose from."}, nil
			}), options{})
			h, err := p.Begin(t.Context(), turn.Request{UserID: "u1", SessionID: "s", Click: test.click})
			if err != nil {
				t.Fatal(err)
			}
			if r := wait(t, h); r.Status != request.Completed {
				t.Errorf("reply = %+v", r)
			}
			if diff := cmp.Diff([]string{test.want, "assistant: There is nothing to choose from."}, transcript(t, p, "s")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTurn_ThatUsesTheIDOfAPurgedRequestIsRememberedToo(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(inquirer), options{})
	say1(t, p, "daily-report", "monday")
	if n, err := request.Purge(t.Context(), p.db, time.Now().Add(time.Hour)); n != 1 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	if r := say1(t, p, "daily-report", "ask"); !r.Asks() {
		t.Fatalf("reply = %+v", r)
	}
	if r := say1(t, p, "answer", "a"); r.Answers != "daily-report" {
		t.Errorf("the question is forgotten: %+v", r)
	}
	want := []string{
		"user: monday", "assistant: You said monday", "user: ask", "assistant: Which?", "user: a", "assistant: You said a",
	}
	if diff := cmp.Diff(want, transcript(t, p, "s")); diff != "" {
		t.Error(diff)
	}
}

func TestTurn_AnAnswerThatCanNeverBeStoredEndsFailed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	synctest.Test(t, func(t *testing.T) {
		p := start(t, path, "a", say("hi"), options{noJobs: true})
		if err := p.db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(`CREATE TRIGGER broken BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'broken'); END`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		h := begin(t, p, turn.Request{Stream: true, IdempotencyKey: "k"})
		if _, err := h.Wait(t.Context()); fault.KindOf(err) != fault.Internal {
			t.Errorf("its caller gets %v", err)
		}
		<-time.After(time.Minute)
		if got := record(t, p, h.ID); got.Status != request.Failed || got.ErrorCode != "INTERNAL_ERROR" || got.Result != "" {
			t.Errorf("a minute later it is %s %s %q", got.Status, got.ErrorCode, got.Result)
		} else if told := frames(t, find(t, p, h.ID), 0); !strings.HasPrefix(told[len(told)-2], "error ") || !strings.HasPrefix(told[len(told)-1], "done ") {
			t.Errorf("its stream is %q", told)
		}
		p.stop()
	})
}

package memory_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/memory/event"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T, size int) (*memory.Memory, *store.DB) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "s.db"), LaunchID: "a", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	var ids atomic.Int64
	return memory.New(memory.Config{DB: db, FormationID: "f", BufferSize: size, NewID: func(p string) string {
		return fmt.Sprintf("%s%d", p, ids.Add(1))
	}}), db
}

func record(t *testing.T, m *memory.Memory, db *store.DB, turn memory.Turn) {
	t.Helper()
	if err := db.Write(t.Context(), func(tx *store.Tx) error { return m.Record(tx, turn) }); err != nil {
		t.Fatal(err)
	}
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func turn(user, session string, n int) memory.Turn {
	at := start.Add(time.Duration(n) * time.Minute)
	return memory.Turn{
		UserID: user, SessionID: session, RequestID: fmt.Sprintf("req-%s-%s-%d", user, session, n), AgentID: "writer",
		Message: fmt.Sprintf("q%d", n), Answer: fmt.Sprintf("a%d", n), AskedAt: at, AnsweredAt: at.Add(time.Second),
	}
}

func TestRecall_ShowsTheNewestMessagesOfThatUsersSession(t *testing.T) {
	t.Parallel()
	m, db := setup(t, 4)
	for n := range 5 {
		record(t, m, db, turn("u1", "s", n))
	}
	record(t, m, db, turn("u2", "s", 9)) // the same session id of somebody else
	got, err := m.Recall(t.Context(), "u1", "s")
	if err != nil {
		t.Fatal(err)
	}
	want := memory.Context{LastAgent: "writer", History: []chat.Message{
		{Role: chat.User, Content: "q3"},
		{Role: chat.Assistant, Content: "a3"},
		{Role: chat.User, Content: "q4"},
		{Role: chat.Assistant, Content: "a4"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if other, err := m.Recall(t.Context(), "u3", "s"); err != nil || len(other.History) != 0 || other.LastAgent != "" {
		t.Fatalf("a stranger recalls %+v, %v", other, err)
	}
}

func TestRecall_ABufferOfSizeZeroRecallsNothingButTheAgent(t *testing.T) {
	t.Parallel()
	m, db := setup(t, 0)
	record(t, m, db, turn("u", "s", 1))
	got, err := m.Recall(t.Context(), "u", "s")
	if err != nil || len(got.History) != 0 || got.LastAgent != "writer" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestRecord_TwiceLeavesOneEventAndOneTranscript(t *testing.T) {
	t.Parallel()
	m, db := setup(t, 10)
	for range 2 {
		record(t, m, db, turn("u", "s", 1))
	}
	var events, messages int
	if err := db.QueryRow(t.Context(), `SELECT (SELECT COUNT(*) FROM memory_events), (SELECT COUNT(*) FROM messages)`, nil, &events, &messages); err != nil {
		t.Fatal(err)
	}
	if events != 1 || messages != 2 {
		t.Fatalf("%d events, %d messages", events, messages)
	}
	var payload string
	if err := db.QueryRow(t.Context(), `SELECT payload FROM memory_events`, nil, &payload); err != nil {
		t.Fatal(err)
	}
	var got event.Turn
	if err := json.Unmarshal([]byte(payload), &got); err != nil || got != (event.Turn{UserMessage: "q1", AgentResponse: "a1", SessionID: "s"}) {
		t.Fatalf("payload = %s", payload)
	}
}

func TestNewTurn_RefusesAPayloadWithoutAMessage(t *testing.T) {
	t.Parallel()
	if _, err := event.NewTurn(event.Event{}, event.Turn{AgentResponse: "x"}); !errors.Is(err, event.ErrPayload) {
		t.Fatalf("err = %v", err)
	}
}

func TestSessions_AreListedNewestFirstWithTheirMessages(t *testing.T) {
	t.Parallel()
	m, db := setup(t, 10)
	record(t, m, db, turn("u", "first", 1))
	record(t, m, db, turn("u", "second", 2))
	record(t, m, db, turn("u", "first", 3))
	record(t, m, db, turn("other", "third", 4))
	list, more, err := m.Sessions(t.Context(), "u", false, 1)
	if err != nil || !more || len(list) != 1 || list[0].ID != "first" || list[0].MessageCount != 4 {
		t.Fatalf("sessions = %+v, %v, %v", list, more, err)
	}
	if active, _, err := m.Sessions(t.Context(), "u", true, 10); err != nil || len(active) != 0 {
		t.Fatalf("active = %+v, %v", active, err)
	}
	msgs, more, err := m.Messages(t.Context(), memory.MessageQuery{UserID: "u", SessionID: "first", Limit: 3})
	if err != nil || !more || len(msgs) != 3 || msgs[0].Content != "a1" || msgs[2].Content != "a3" {
		t.Fatalf("messages = %+v, %v, %v", msgs, more, err)
	}
	older, more, err := m.Messages(t.Context(), memory.MessageQuery{UserID: "u", SessionID: "first", Limit: 3, Before: msgs[1].Time})
	if err != nil || more || len(older) != 2 {
		t.Fatalf("older = %+v, %v, %v", older, more, err)
	}
}

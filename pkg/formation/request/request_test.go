package request_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "s.db"), LaunchID: "a", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

var began = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func accept(t *testing.T, db *store.DB, id string, at time.Time, key *request.Key) (request.Accepted, error) {
	t.Helper()
	var out request.Accepted
	err := db.Write(t.Context(), func(tx *store.Tx) (err error) {
		out, err = request.Accept(tx, request.Record{
			ID: id, UserID: "u", SessionID: "s", Status: request.Processing, Mode: request.ModeSync,
			Message: "m", LaunchID: "a", CreatedAt: at,
		}, key)
		return err
	})
	return out, err
}

func finish(t *testing.T, db *store.DB, e request.End) bool {
	t.Helper()
	var ended bool
	if err := db.Write(t.Context(), func(tx *store.Tx) (err error) {
		ended, err = request.Finish(tx, e)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return ended
}

func TestAsked_TellsWhenAnAgentAnswered(t *testing.T) {
	t.Parallel()
	db := open(t)
	for i, e := range []request.End{
		{ID: "old", Status: request.Completed, AgentID: "cook"},
		{ID: "a", Status: request.Completed, AgentID: "cook"},
		{ID: "other", Status: request.Completed, AgentID: "coder"},
		{ID: "failed", Status: request.Failed, AgentID: "cook", ErrorCode: "INTERNAL_ERROR"},
		{ID: "refused", Status: request.Failed, AgentID: "cook", ErrorCode: "RATE_LIMITED"},
		{ID: "open"},
	} {
		if _, err := accept(t, db, e.ID, began.Add(time.Duration(i)*time.Minute), nil); err != nil {
			t.Fatal(err)
		}
		if e.At = began.Add(time.Hour); e.Status != "" {
			finish(t, db, e)
		}
	}
	got, err := request.Reader{DB: db}.Asked(t.Context(), "cook", began.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]time.Time{began.Add(time.Minute), began.Add(3 * time.Minute)}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFinish_EndsARequestOnce(t *testing.T) {
	t.Parallel()
	db := open(t)
	if _, err := accept(t, db, "r", began, nil); err != nil {
		t.Fatal(err)
	}
	if !finish(t, db, request.End{ID: "r", Status: request.Cancelled, At: began.Add(time.Second)}) {
		t.Fatal("the first end did not count")
	}
	if finish(t, db, request.End{ID: "r", Status: request.Completed, Result: "late", At: began.Add(time.Minute)}) {
		t.Fatal("a second end counted")
	}
	rec, err := request.Get(t.Context(), db, "r")
	if err != nil || rec.Status != request.Cancelled || rec.Result != "" || !rec.CompletedAt.Equal(began.Add(time.Second)) {
		t.Fatalf("record = %+v, %v", rec, err)
	}
}

func TestAccept_AKeyFindsItsRequestAndRefusesAnotherBody(t *testing.T) {
	t.Parallel()
	db := open(t)
	key := &request.Key{Scope: request.KeyScope("POST /v1/chat", "u", "json", "k"), BodyHash: [32]byte{1}}
	if _, err := accept(t, db, "r1", began, key); err != nil {
		t.Fatal(err)
	}
	again, err := accept(t, db, "r2", began, key)
	if err != nil || !again.Existing || again.Record.ID != "r1" {
		t.Fatalf("accepted = %+v, %v", again, err)
	}
	if _, err := accept(t, db, "r3", began, &request.Key{Scope: key.Scope, BodyHash: [32]byte{2}}); fault.NameOf(err) != "CONFLICT" {
		t.Fatalf("err = %v", err)
	}
	finish(t, db, request.End{ID: "r1", Status: request.Failed, Error: "no", At: began})
	if anew, err := accept(t, db, "r4", began, key); err != nil || anew.Existing {
		t.Fatalf("after a failure: %+v, %v", anew, err)
	}
	if id, err := request.ByKey(t.Context(), db, key.Scope); err != nil || id != "r4" {
		t.Fatalf("the key names %q, %v", id, err)
	}
}

func TestAccept_AKeyWhoseRequestIsGoneStandsForTheNextOneWithItsBody(t *testing.T) {
	t.Parallel()
	db := open(t)
	key := request.Key{Scope: request.KeyScope("POST /v1/chat", "u", "json", "k"), BodyHash: [32]byte{1}}
	if _, err := accept(t, db, "r1", began, &key); err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`DELETE FROM requests WHERE id = ?`, "r1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	other := request.Key{Scope: key.Scope, BodyHash: [32]byte{2}}
	if got, err := accept(t, db, "r2", began, &other); err != nil || got.Existing {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := accept(t, db, "r3", began, &other); err != nil || !got.Existing || got.Record.ID != "r2" {
		t.Errorf("repeated: %+v, %v", got, err)
	}
}

func TestKeyScope_TellsApartWhatJoinsAlike(t *testing.T) {
	t.Parallel()
	seen := make(map[[32]byte][]string)
	for _, parts := range [][]string{
		{"POST /a", "u", "json", "k"},
		{"POST /a", "uj", "son", "k"},
		{"POST /a", "u", "json;1:k", ""},
		{"POST /a", "u;4:json", "", "k"},
		{"POST /a", "", "u", "jsonk"},
	} {
		scope := request.KeyScope(parts[0], parts[1], parts[2], parts[3])
		if other, ok := seen[scope]; ok {
			t.Errorf("%q and %q have one scope", parts, other)
		}
		seen[scope] = parts
	}
}

func TestFrames_ComeBackInOrderFromAnyPoint(t *testing.T) {
	t.Parallel()
	db := open(t)
	var all []request.Frame
	id := uint64(1)
	for batch := range 5 {
		var frames []request.Frame
		for range batch + 1 {
			frames = append(frames, request.Frame{ID: id, Event: []string{"", "done"}[id%2], Data: fmt.Appendf(nil, `{"n":%d}`, id)})
			id++
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error { return request.AppendFrames(tx, "r", frames) }); err != nil {
			t.Fatal(err)
		}
		all = append(all, frames...)
	}
	for after := range uint64(len(all) + 2) {
		got, err := request.Frames(t.Context(), db, "r", after)
		if err != nil {
			t.Fatal(err)
		}
		want := all[min(after, uint64(len(all))):]
		if len(want)+len(got) > 0 {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("after %d: %s", after, diff)
			}
		}
	}
}

func TestPurge_RemovesWhatEndedBeforeAndNothingElse(t *testing.T) {
	t.Parallel()
	db := open(t)
	key := &request.Key{Scope: [32]byte{9}}
	for i, id := range []string{"old", "old-open", "new"} {
		at := began
		if id == "new" {
			at = began.Add(48 * time.Hour)
		}
		var k *request.Key
		if i == 0 {
			k = key
		}
		if _, err := accept(t, db, id, at, k); err != nil {
			t.Fatal(err)
		}
		if id != "old-open" {
			finish(t, db, request.End{ID: id, Status: request.Completed, At: at.Add(time.Second)})
		}
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		if err := request.SaveStep(tx, "old", "route", []byte("x")); err != nil {
			return err
		}
		return request.AppendFrames(tx, "old", []request.Frame{{ID: 1, Data: []byte("{}")}})
	}); err != nil {
		t.Fatal(err)
	}
	n, err := request.Purge(t.Context(), db, began.Add(24*time.Hour))
	if err != nil || n != 1 {
		t.Fatalf("purged %d, %v", n, err)
	}
	if _, err := request.Get(t.Context(), db, "old"); fault.NameOf(err) != "REQUEST_NOT_FOUND" {
		t.Fatalf("err = %v", err)
	}
	for _, id := range []string{"old-open", "new"} {
		if _, err := request.Get(t.Context(), db, id); err != nil {
			t.Fatal(err)
		}
	}
	if frames, err := request.Frames(t.Context(), db, "old", 0); err != nil || len(frames) != 0 {
		t.Fatalf("frames = %v, %v", frames, err)
	}
	if id, err := request.ByKey(t.Context(), db, key.Scope); err != nil || id != "" {
		t.Fatalf("key names %q, %v", id, err)
	}
}

// FuzzFrames writes whatever as a stored batch: reading it never panics, and
// what AppendFrames wrote comes back as it was.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x02{}\x04done\x02{}"), "done", []byte("{}"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "", []byte{0})
	db := open(f)
	ctx := context.WithoutCancel(f.Context())
	n := 0
	f.Fuzz(func(t *testing.T, raw []byte, event string, data []byte) {
		n++
		good, bad := fmt.Sprintf("good-%d", n), fmt.Sprintf("bad-%d", n)
		want := request.Frame{ID: 7, Event: event, Data: data}
		if err := db.Write(ctx, func(tx *store.Tx) error {
			if err := request.AppendFrames(tx, good, []request.Frame{want}); err != nil {
				return err
			}
			_, err := tx.Exec(`INSERT INTO stream_events (request_id, first_id, last_id, frames) VALUES (?, 1, 100, ?)`, bad, append([]byte{}, raw...))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		got, err := request.Frames(ctx, db, good, 0)
		if err != nil || len(got) != 1 || got[0].Event != event || !bytes.Equal(got[0].Data, data) || got[0].ID != 7 {
			t.Fatalf("got %+v, %v", got, err)
		}
		_, _ = request.Frames(ctx, db, bad, 0)
	})
}

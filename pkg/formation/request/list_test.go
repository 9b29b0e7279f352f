package request_test

import (
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestList_HoldsNoTexts(t *testing.T) {
	t.Parallel()
	db := open(t)
	large := strings.Repeat("x", 1<<20)
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := request.Accept(tx, request.Record{
			ID: "r", UserID: "u", SessionID: "s", Status: request.Processing, Mode: request.ModeAsync, Message: large, LaunchID: "a", CreatedAt: began,
		}, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	finish(t, db, request.End{ID: "r", Status: request.Failed, Result: large, Reply: []byte(large), Error: "down", At: began})
	for _, user := range []string{"u", ""} {
		list, err := request.List(t.Context(), db, user)
		if err != nil || len(list) != 1 {
			t.Fatalf("%d records, %v", len(list), err)
		}
		if r := &list[0]; r.ID != "r" || r.Error != "down" || !r.Ended() {
			t.Errorf("record = %+v", r)
		} else if n := len(r.Message) + len(r.Result) + len(r.Reply); n > 0 {
			t.Errorf("one of up to %d records holds %d bytes of texts", request.MaxList, n)
		}
	}
}

func TestPurge_RemovesWhatNobodyIsLeftToHeed(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, id := range []string{"mine", "left"} {
		if _, err := accept(t, db, id, began, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Exec(`UPDATE requests SET launch_id = 'dead' WHERE id = 'left'`); err != nil {
			return err
		}
		if err := request.Tell(tx, "left", request.SignalCancel, "other"); err != nil {
			return err
		}
		return request.Tell(tx, "mine", request.SignalCancel, "other")
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Fence(t.Context(), []string{"dead"}); err != nil {
		t.Fatal(err)
	}
	purge(t, db, began)
	for launch, want := range map[string]int{"dead": 0, "a": 1} {
		if got, err := request.Signals(t.Context(), db, launch); err != nil || len(got) != want {
			t.Errorf("%d signals for %s, %v", len(got), launch, err)
		}
	}
}

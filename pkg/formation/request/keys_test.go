package request_test

import (
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

func keyOf(user string) *request.Key {
	return &request.Key{Scope: request.KeyScope("POST /v1/chat", user, "json", "k"), BodyHash: [32]byte{1}}
}

func purge(t *testing.T, db *store.DB, before time.Time) int {
	t.Helper()
	n, err := request.Purge(t.Context(), db, before)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPurge_AKeyLivesAsLongAsItsRequest(t *testing.T) {
	t.Parallel()
	db := open(t)
	if _, err := accept(t, db, "long", began, keyOf("u")); err != nil {
		t.Fatal(err)
	}
	purge(t, db, began.Add(time.Hour))
	if again, err := accept(t, db, "doubled", began.Add(time.Hour), keyOf("u")); err != nil || again.Record.ID != "long" {
		t.Fatalf("an open request: %+v, %v", again, err)
	}
	finish(t, db, request.End{ID: "long", Status: request.Completed, Result: "r", At: began.Add(2 * time.Hour)})
	purge(t, db, began.Add(90*time.Minute))
	if again, err := accept(t, db, "doubled", began.Add(2*time.Hour), keyOf("u")); err != nil || again.Record.Result != "r" {
		t.Fatalf("a reply that is kept: %+v, %v", again, err)
	}
	if n := purge(t, db, began.Add(3*time.Hour)); n != 1 {
		t.Fatalf("purged %d", n)
	}
	if again, err := accept(t, db, "next", began.Add(3*time.Hour), keyOf("u")); err != nil || again.Existing {
		t.Fatalf("a reply that is gone: %+v, %v", again, err)
	}
}

func TestAccept_AKeyNeverAnswersWithAnotherRequestOfTheSameID(t *testing.T) {
	t.Parallel()
	db := open(t)
	if _, err := accept(t, db, "daily", began, keyOf("u")); err != nil {
		t.Fatal(err)
	}
	finish(t, db, request.End{ID: "daily", Status: request.Completed, Result: "of the first", At: began})
	// The process died in its purge, after the request and before the key.
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`DELETE FROM requests WHERE id = 'daily'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := accept(t, db, "daily", began.Add(time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	finish(t, db, request.End{ID: "daily", Status: request.Completed, Result: "of another", At: began.Add(time.Hour)})
	if id, err := request.ByKey(t.Context(), db, keyOf("u").Scope); err != nil || id != "" {
		t.Errorf("the key names %q, %v", id, err)
	}
	again, err := accept(t, db, "next", began.Add(2*time.Hour), keyOf("u"))
	if err != nil || again.Existing {
		t.Errorf("the key answers %+v, %v", again, err)
	}
}

func TestPurge_ARequestOfAClockThatWasAheadKeepsNoOther(t *testing.T) {
	t.Parallel()
	db := open(t)
	for i, id := range []string{"ahead", "old", "new"} {
		at := time.Now().Add(time.Duration([]int{24 * 365, -48, 0}[i]) * time.Hour)
		if _, err := accept(t, db, id, at, nil); err != nil {
			t.Fatal(err)
		}
		finish(t, db, request.End{ID: id, Status: request.Completed, At: at})
	}
	if n := purge(t, db, time.Now().Add(-24*time.Hour)); n != 1 {
		t.Errorf("purged %d", n)
	}
	for id, want := range map[string]bool{"ahead": true, "old": false, "new": true} {
		if _, err := request.Get(t.Context(), db, id); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestPurge_AnOpenRequestKeepsItsKeyHoweverManyCameLater(t *testing.T) {
	t.Parallel()
	db := open(t)
	if _, err := accept(t, db, "open", began, keyOf("u")); err != nil {
		t.Fatal(err)
	}
	if _, err := accept(t, db, "ended", began, keyOf("v")); err != nil {
		t.Fatal(err)
	}
	finish(t, db, request.End{ID: "ended", Status: request.Completed, At: began})
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO idempotency (key, request_id, body_hash, created_at) SELECT randomblob(32), 'r' || i, x'00', ? + i FROM n`,
			request.MaxKeys, began.UnixMilli())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	purge(t, db, began)
	for user, want := range map[string]string{"u": "open", "v": ""} {
		if id, err := request.ByKey(t.Context(), db, keyOf(user).Scope); err != nil || id != want {
			t.Errorf("the key of %s names %q, %v", user, id, err)
		}
	}
}

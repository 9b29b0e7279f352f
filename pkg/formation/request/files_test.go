package request_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestFiles_AreKeptInTheirOrderUntilTheirRequestIsPurged(t *testing.T) {
	t.Parallel()
	db := open(t)
	files := []chat.File{
		{Part: chat.Part{Kind: chat.Video, MediaType: "video/mp4", Name: "z", Data: []byte{0}}, Size: 9, Spoken: true},
		{Part: chat.Part{Kind: chat.Document, MediaType: "text/csv", Name: "a"}, Text: "ä;b", Cut: true},
	}
	if _, err := accept(t, db, "r", began, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(tx *store.Tx) error { return request.SaveFiles(tx, "r", files) }); err != nil {
		t.Fatal(err)
	}
	got, err := request.Files(t.Context(), db, "r")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	finish(t, db, request.End{ID: "r", Status: request.Failed, At: began})
	if _, err := request.Purge(t.Context(), db, began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got, err := request.Files(t.Context(), db, "r"); err != nil || len(got) != 0 {
		t.Errorf("%d files are left, %v", len(got), err)
	}
}

package store_test

import (
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/test/testprogram"
)

func TestOpen_AProcessThatIsBeingStartedKeepsNoLaunchAlive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "formation.db")
	for range 2 {
		db, err := store.Open(t.Context(), store.Config{Path: path, LaunchID: "again", Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		testprogram.Fork(t, path+"-launches")
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

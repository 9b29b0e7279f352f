package filelock_test

import (
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/filelock"
	"github.com/agentformation/service/test/testprogram"
)

func TestTake_AProcessThatIsBeingStartedKeepsNoLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := filelock.Take(t.Context(), path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	testprogram.Fork(t, path)
	unlock()
	unlock, err = filelock.Take(t.Context(), path, 0o600, func() { t.Error("it waits") })
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

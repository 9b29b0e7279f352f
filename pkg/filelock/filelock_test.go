package filelock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/filelock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTake_TheSecondWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		unlock, err := filelock.Take(t.Context(), path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		waits := 0
		second, err := filelock.Take(t.Context(), path, 0o600, func() {
			if waits++; waits == 3 {
				unlock()
			}
		})
		if err != nil || waits != 3 {
			t.Fatalf("%d waits, %v", waits, err)
		}
		second()
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

func TestTake_GivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := filelock.Take(t.Context(), path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := filelock.Take(ctx, path, 0o600, func() { cancel(why) }); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if _, err := filelock.Take(t.Context(), filepath.Join(path, "below"), 0o600, nil); err == nil {
		t.Error("a lock below a file is taken")
	}
}

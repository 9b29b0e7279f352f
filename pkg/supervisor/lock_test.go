package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/agentformation/service/test/testprogram"
)

func TestLock_AProcessThatIsBeingStartedKeepsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		l, err := acquireLock(dir)
		if err != nil {
			t.Fatal(err)
		}
		testprogram.Fork(t, filepath.Join(dir, "lock"))
		l.release()
	}
}

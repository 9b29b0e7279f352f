package limits

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestGuard_LeavesAnAuthorsDirectoryToItsAuthor(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHouse(t, Limits{})
	h.Stage = h.copyStage(t)
	h.UID, h.Foreign, h.VersionDir = 200007, true, filepath.Join(h.home, "author")
	open, closed := filepath.Join(h.VersionDir, "open"), filepath.Join(h.VersionDir, "closed")
	if err := os.MkdirAll(h.VersionDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{open: 0o644, closed: 0o600} {
		if err := os.WriteFile(path, []byte("text\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 200099, 200099); err != nil {
			t.Fatal(err)
		}
	}
	if got := runScript(t, h, true, `try "open" cat `+open+"\n"+`try "closed" cat `+closed); got != "open: yes\nclosed: no\n" {
		t.Error(got)
	}
	for path, mode := range map[string]os.FileMode{open: 0o644, closed: 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := info.Sys().(*syscall.Stat_t); s.Uid != 200099 || info.Mode().Perm() != mode { //nolint:forcetypeassert // it is one here
			t.Errorf("%s belongs to %d with mode %v", path, s.Uid, info.Mode())
		}
	}
}

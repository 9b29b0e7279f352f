package archive_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/archive"
)

func writeTree(t *testing.T, files map[string]string, when time.Time) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, when, when); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPack_SameFilesGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	files := map[string]string{"formation.afs": "id: h", "agents/a.afs": "a", "agents/b.afs": "b", "z.txt": ""}
	var one, two bytes.Buffer
	if err := archive.Pack(&one, writeTree(t, files, time.Unix(1, 0)), "h", nil); err != nil {
		t.Fatal(err)
	}
	if err := archive.Pack(&two, writeTree(t, files, time.Unix(1e9, 0)), "h", nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two directories with the same files packed to different bytes")
	}
}

func TestPack_ExtractGivesTheFilesBack(t *testing.T) {
	t.Parallel()
	files := map[string]string{"formation.afs": "id: h", "agents/a.afs": "a", ".git/HEAD": "ref", "memory.db": "db", "skip/me/x": "x"}
	exclude := func(rel string, isDir bool) bool {
		return rel == ".git" || rel == "memory.db" || (rel == "skip" && isDir)
	}
	for _, root := range []string{"h", ""} {
		var buf bytes.Buffer
		if err := archive.Pack(&buf, writeTree(t, files, time.Unix(1, 0)), root, exclude); err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(t.TempDir(), "1")
		info, err := archive.Extract(t.Context(), &buf, dst, archive.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"formation.afs": "id: h", "agents": "dir", "agents/a.afs": "a"}
		if diff := cmp.Diff(want, tree(t, dst)); diff != "" || info.Root != root {
			t.Errorf("root %q, tree (-want +got):\n%s", info.Root, diff)
		}
	}
}

func TestPack_NamesTheLinkItRefuses(t *testing.T) {
	t.Parallel()
	dir := writeTree(t, map[string]string{"formation.afs": "x"}, time.Unix(1, 0))
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	err := archive.Pack(&bytes.Buffer{}, dir, "h", nil)
	if err == nil || !strings.Contains(err.Error(), "link is not a regular file") {
		t.Errorf("error = %v, want one that names the link", err)
	}
}

package registry_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// store makes a database in WAL mode with n rows and leaves it open.
func store(t *testing.T, path string, n int) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE rows (n INTEGER PRIMARY KEY, text TEXT)`); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		insert(t.Context(), t, db, i)
	}
	return db
}

func insert(ctx context.Context, t *testing.T, db *sql.DB, n int) {
	t.Helper()
	if _, err := db.ExecContext(ctx, `INSERT INTO rows VALUES (?, hex(randomblob(500)))`, n); err != nil {
		t.Error(err)
	}
}

func count(t *testing.T, path string) int {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM rows`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCopySQLite_HoldsWhatWasCommittedBeforeWhileAWriterGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "src.db")
	db := store(t, src, 3000)
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		n := 3000
		for {
			select {
			case <-stop:
				stopped <- n
				return
			default:
				insert(t.Context(), t, db, n)
				n++
			}
		}
	}()
	for _, name := range []string{"a", "b", "c"} {
		dst := filepath.Join(dir, name)
		if err := registry.CopySQLite(t.Context(), src, dst); err != nil {
			t.Fatal(err)
		}
		if problem, err := registry.CheckSQLite(t.Context(), dst); problem != "" || err != nil {
			t.Errorf("check = %q, %v", problem, err)
		}
		if n := count(t, dst); n < 3000 {
			t.Errorf("the copy has %d rows, want at least 3000", n)
		}
		if left, _ := filepath.Glob(dst + "?*"); len(left) != 0 {
			t.Errorf("the copy has more files: %q", left)
		}
	}
	close(stop)
	if n := <-stopped; n == 3000 {
		t.Error("the writer stood still")
	}
}

func TestCopySQLite_LeavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src.db"), filepath.Join(dir, "dst.db")
	store(t, src, 1)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := registry.CopySQLite(gone, src, dst); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
	if err := registry.CopySQLite(t.Context(), src+"x", dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no source: %v", err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("no database "), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := registry.CopySQLite(t.Context(), text, dst); err == nil {
		t.Error("a text was copied as a database")
	}
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	if err := os.WriteFile(dst, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := registry.CopySQLite(t.Context(), src, dst); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing destination: %v", err)
	}
	if text, _ := os.ReadFile(dst); string(text) != "kept" {
		t.Errorf("the existing file is %q", text)
	}
}

func TestCheckSQLite_NamesDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src.db"), filepath.Join(dir, "dst.db")
	store(t, src, 500)
	if err := registry.CopySQLite(t.Context(), src, dst); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"a page of zeros": func(b []byte) []byte { clear(b[5*4096 : 6*4096]); return b },
		"cut short":       func(b []byte) []byte { return b[:len(b)/2] },
		"no database":     func(b []byte) []byte { clear(b[:100]); return b },
		"a few bytes":     func(b []byte) []byte { return b[:100] },
		"another file":    func([]byte) []byte { return []byte("x") },
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, damage(bytes.Clone(data)), 0o600); err != nil {
			t.Fatal(err)
		}
		if problem, err := registry.CheckSQLite(t.Context(), path); problem == "" || err != nil {
			t.Errorf("%s: %q, %v; want a problem", name, problem, err)
		}
	}
	if _, err := registry.CheckSQLite(t.Context(), dst+"x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestFindSQLite_KnowsDatabasesByTheirContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	store(t, filepath.Join(dir, "memory.db"), 1)
	store(t, filepath.Join(dir, "b/c/other"), 1)
	outside := filepath.Join(t.TempDir(), "x.db")
	store(t, outside, 1)
	if err := os.Symlink(outside, filepath.Join(dir, "link.db")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"notes.db": "SQLite format 3", "empty.db": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := registry.FindSQLite(dir)
	if diff := cmp.Diff([]string{"b/c/other", "memory.db"}, got); diff != "" || err != nil {
		t.Errorf("found (-want +got):\n%s%v", diff, err)
	}
	if got, err := registry.FindSQLite(dir + "/nowhere"); len(got) != 0 || err != nil {
		t.Errorf("nowhere = %q, %v", got, err)
	}
}

func TestInventory_ReadsACopyWithoutChangingIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "registry.db"), filepath.Join(dir, "copy.db")
	r, err := registry.Open(t.Context(), registry.Config{Path: src})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, id := range []string{"one", "two"} {
		n := registry.NewFormation{ID: id, Name: id, Port: 8000 + i, Semantic: "1.0.0", SHA256: "x", Dir: "versions/1", Serial: 1}
		if err := r.Begin(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Commit(t.Context(), "one", 1); err != nil {
		t.Fatal(err)
	}
	if err := registry.CopySQLite(t.Context(), src, dst); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	got, err := registry.Inventory(t.Context(), dst)
	if err != nil {
		t.Fatal(err)
	}
	want := []registry.Kept{
		{ID: "one", Dir: "versions/1", SHA256: "x", Current: true},
		{ID: "two", Dir: "versions/1", SHA256: "x", Staged: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
	if after, err := os.ReadFile(dst); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the copy was changed: %v", err)
	}
}

package backup

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// restoreEnv makes the test binary restore the backup on its standard input into
// the home that it names.
const restoreEnv = "BACKUPTEST_HOME"

func TestMain(m *testing.M) {
	if home := os.Getenv(restoreEnv); home != "" {
		if _, err := Restore(context.Background(), os.Stdin, home, Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// manifestOf is a formation's manifest with a memory block.
func manifestOf(id, memory string) string {
	text := "schema: \"1.0.0\"\nid: " + id + "\nname: X\ndescription: for tests\nversion: 1.0.0\nllm:\n  models:\n    - text: demo/hello\nagents:\n  - one\n"
	return text + memory
}

const agentOne = "schema: \"1.0.0\"\nid: one\nname: One\ndescription: answers\n"

// home is a supervisor's home with one formation of two versions.
type home struct {
	dir string
	reg *registry.Registry
}

func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{dir: filepath.Join(t.TempDir(), "home")}
	h.write(t, "config.yaml", "server_id: server-test\n", 0o600)
	h.write(t, "keys/hello.key", "k", 0o600)
	h.write(t, "logs/hello-out.log", "not backed up", 0o640)
	h.write(t, "cache/org--model/weights", "not backed up", 0o644)
	h.write(t, "formations/.dev/x/state/memory.db", "not backed up", 0o600)
	var err error
	if h.reg, err = registry.Open(t.Context(), registry.Config{Path: filepath.Join(h.dir, "registry.db")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.reg.Close() })
	h.deploy(t, "hello", 8000, nil)
	return h
}

func (h *home) write(t *testing.T, rel, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(h.dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// deploy makes a formation with one version.
func (h *home) deploy(t *testing.T, id string, port int, files map[string]string) {
	t.Helper()
	n := registry.NewFormation{ID: id, Name: id, Port: port, Semantic: "1.0.0", SHA256: "1", Dir: "versions/1", Serial: 1}
	if err := h.reg.Begin(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	dir := "formations/" + id + "/"
	h.write(t, dir+"versions/1/formation.afs", manifestOf(id, ""), 0o644)
	h.write(t, dir+"versions/1/agents/one.afs", agentOne, 0o644)
	h.write(t, dir+"versions/1/run.sh", "#!/bin/sh", 0o755)
	h.write(t, dir+"state/keys", "secret", 0o600)
	for name, text := range files {
		h.write(t, dir+name, text, 0o644)
	}
	if err := h.reg.Commit(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
}

// update makes one more version current.
func (h *home) update(ctx context.Context, t *testing.T, id, semantic string) registry.Version {
	t.Helper()
	v, err := h.reg.Stage(ctx, id, registry.NewVersion{Semantic: semantic, SHA256: semantic, Name: id})
	if err != nil {
		t.Error(err)
		return v
	}
	h.write(t, "formations/"+id+"/"+v.Dir+"/formation.afs", manifestOf(id, ""), 0o644)
	h.write(t, "formations/"+id+"/"+v.Dir+"/agents/one.afs", agentOne, 0o644)
	if err := h.reg.Promote(ctx, id, v.Serial); err != nil {
		t.Error(err)
	}
	return v
}

// store makes a database in WAL mode, which stays open.
func (h *home) store(t *testing.T, rel string, rows int) *sql.DB {
	t.Helper()
	path := filepath.Join(h.dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE facts (n INTEGER PRIMARY KEY, text TEXT)`); err != nil {
		t.Fatal(err)
	}
	for n := range rows {
		insert(t.Context(), t, db, n)
	}
	return db
}

func insert(ctx context.Context, t *testing.T, db *sql.DB, n int) {
	t.Helper()
	if _, err := db.ExecContext(ctx, `INSERT INTO facts VALUES (?, hex(randomblob(200)))`, n); err != nil {
		t.Error(err)
	}
}

// facts counts the rows of a restored store and checks it.
func facts(t *testing.T, path string) int {
	t.Helper()
	if problem, err := registry.CheckSQLite(t.Context(), path); problem != "" || err != nil {
		t.Errorf("%s: %s %v", path, problem, err)
	}
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM facts`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func assertFault(t *testing.T, err error, kind fault.Kind, name, text string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind || fault.NameOf(err) != name || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%v %s)\nwant    %s (%v %s)", err, fault.KindOf(err), fault.NameOf(err), text, kind, name)
	}
}

package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func (h *home) backup(t *testing.T, change func(*Config)) (Report, []byte) {
	t.Helper()
	cfg := Config{Home: h.dir, Version: "9.8.7", Now: func() time.Time { return time.Unix(1700000000, 0) }}
	if change != nil {
		change(&cfg)
	}
	var buf bytes.Buffer
	r, err := Write(t.Context(), cfg, &buf)
	if err != nil {
		t.Fatal(err)
	}
	return r, buf.Bytes()
}

// restore brings a backup back into a new home.
func restore(t *testing.T, data []byte) (Report, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	r, err := Restore(t.Context(), bytes.NewReader(data), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r, dir
}

// listing maps each file and directory below dir to its mode and content;
// databases and what belongs to a running supervisor are left out.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		top, _, _ := strings.Cut(rel, "/")
		switch {
		case slices.Contains([]string{"tmp", "logs", "cache", "run"}, top), strings.Contains(rel, ".dev"):
			return fs.SkipDir
		case strings.Contains(rel, ".db"), rel == ".":
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := ""
		if e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(data)
		}
		all[rel] = info.Mode().String() + " " + text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRestore_BringsEverythingBack(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.update(t.Context(), t, "hello", "2.0.0")
	h.write(t, "formations/hello/state/artifacts/a/b.txt", "artifact", 0o640)
	h.write(t, "formations/hello/draft/formation.afs", "draft", 0o644)
	h.write(t, "formations/only-draft/draft/formation.afs", "draft", 0o644)
	h.write(t, "formations/lost/state/notes", "memory without a registry", 0o600)
	h.write(t, "formations/hello/state/large", strings.Repeat("0123456789abcdef", inMemory/16+1), 0o600)
	h.write(t, "tls/key.pem", "key", 0o600)
	if err := os.Chmod(filepath.Join(h.dir, "formations/hello/state/artifacts"), 0o750); err != nil {
		t.Fatal(err)
	}
	h.store(t, "formations/hello/state/memory.db", 10)
	h.store(t, "formations/hello/state/deep/er/other.db", 3)
	wrote, data := h.backup(t, func(c *Config) { c.Extra = []string{"tls/key.pem"} })
	got, dir := restore(t, data)
	if diff := cmp.Diff(wrote, got); diff != "" {
		t.Errorf("reports (-written +restored):\n%s", diff)
	}
	if !slices.Equal(got.Formations, []string{"hello"}) || got.Databases != 3 || got.Version != "9.8.7" || len(got.Damaged)+len(got.Notes) != 0 {
		t.Errorf("report = %+v", got)
	}
	if diff := cmp.Diff(listing(t, h.dir), listing(t, dir)); diff != "" {
		t.Errorf("files (-home +restored):\n%s", diff)
	}
	for rel, want := range map[string]int{"memory.db": 10, "deep/er/other.db": 3} {
		if n := facts(t, filepath.Join(dir, "formations/hello/state", rel)); n != want {
			t.Errorf("%s has %d rows, want %d", rel, n, want)
		}
	}
	for _, rel := range []string{"logs", "cache", "formations/.dev", "tmp", "formations/hello/state/memory.db-wal"} {
		if _, err := os.Lstat(filepath.Join(dir, rel)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in the backup", rel)
		}
	}
	assertRegistry(t, dir, "2.0.0")
	if left, _ := os.ReadDir(filepath.Join(h.dir, "tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// assertRegistry checks that hello has that current version, with its files.
func assertRegistry(t *testing.T, dir, semantic string) {
	t.Helper()
	reg, err := registry.Open(t.Context(), registry.Config{Path: filepath.Join(dir, "registry.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	row, err := reg.Get(t.Context(), "hello")
	if err != nil || row.Current == nil || row.Current.Semantic != semantic {
		t.Fatalf("row = %+v, %v; want version %s", row, err, semantic)
	}
	all, err := reg.Versions(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if _, err := os.Stat(filepath.Join(dir, "formations/hello", v.Dir, "formation.afs")); err != nil {
			t.Errorf("version %s: %v", v.Semantic, err)
		}
	}
}

func TestWrite_HoldsEveryRowAcknowledgedBeforeWhileAChildWrites(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	db := h.store(t, "formations/hello/state/memory.db", 500)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	written, acknowledged := 500, make(chan int, 1)
	wg.Go(func() {
		for ctx.Err() == nil {
			insert(t.Context(), t, db, written)
			written++
			select {
			case <-acknowledged:
			default:
			}
			acknowledged <- written
		}
	})
	for range 3 {
		before := <-acknowledged
		_, data := h.backup(t, nil)
		_, dir := restore(t, data)
		if n := facts(t, filepath.Join(dir, "formations/hello/state/memory.db")); n < before {
			t.Errorf("the restored store has %d rows, %d were acknowledged before the backup began", n, before)
		}
	}
	cancel()
	wg.Wait()
}

// meddler calls fn once, when so many bytes of a backup have come.
type meddler struct {
	w     io.Writer
	after int
	once  sync.Once
	fn    func()
}

func (m *meddler) Write(p []byte) (int, error) {
	if m.after -= len(p); m.after < 0 {
		m.once.Do(m.fn)
	}
	return m.w.Write(p)
}

func TestWrite_WhileVersionsComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.update(t.Context(), t, "hello", "2.0.0")
	h.deploy(t, "going", 8001, nil)
	// The keys come before the formations.
	h.write(t, "keys/random", random(1<<20), 0o600)
	cfg := Config{Home: h.dir, Version: "9.8.7"}
	var buf bytes.Buffer
	m := &meddler{w: &buf, after: 300_000, fn: func() {
		ctx := t.Context()
		v := h.update(ctx, t, "hello", "3.0.0")
		h.update(ctx, t, "hello", "4.0.0")
		if err := errors.Join(
			h.reg.DropVersion(ctx, "hello", v.Serial), os.RemoveAll(filepath.Join(h.dir, "formations/hello", v.Dir)),
			h.reg.Delete(ctx, "going"), os.RemoveAll(filepath.Join(h.dir, "formations/going")),
		); err != nil {
			t.Error(err)
		}
		h.deploy(t, "coming", 8002, map[string]string{"state/x": "x"})
	}}
	if _, err := Write(t.Context(), cfg, m); err != nil {
		t.Fatal(err)
	}
	_, dir := restore(t, buf.Bytes())
	assertRegistry(t, dir, "4.0.0")
	if diff := cmp.Diff(listing(t, h.dir), listing(t, dir)); diff != "" {
		t.Errorf("files (-home +restored):\n%s", diff)
	}
}

func random(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return string(b)
}

func TestWrite_DropsWhatWentWhileItWasPacked(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.deploy(t, "going", 8001, nil)
	h.write(t, "formations/going/state/large", random(1<<20), 0o600)
	h.write(t, "formations/hello/versions/1/large", random(1<<20), 0o644)
	next := h.update(t.Context(), t, "hello", "2.0.0")
	var buf bytes.Buffer
	// "going" is packed before "hello", and half in then.
	m := &meddler{w: &buf, after: 300_000, fn: func() {
		ctx := t.Context()
		if err := errors.Join(
			h.reg.Delete(ctx, "going"), os.RemoveAll(filepath.Join(h.dir, "formations/going")),
		); err != nil {
			t.Error(err)
		}
	}}
	if _, err := Write(t.Context(), Config{Home: h.dir}, m); err != nil {
		t.Fatal(err)
	}
	_, dir := restore(t, buf.Bytes())
	if _, err := os.Lstat(filepath.Join(dir, "formations/going")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the deleted formation is back: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "formations/hello", next.Dir)); err != nil {
		t.Error(err)
	}
}

func TestWrite_NamesAVersionWithoutFilesAndWhatIsNoFile(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.update(t.Context(), t, "hello", "2.0.0")
	if err := os.RemoveAll(filepath.Join(h.dir, "formations/hello", v.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(h.dir, "formations/hello/state/link")); err != nil {
		t.Fatal(err)
	}
	r, data := h.backup(t, nil)
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], v.Dir) || !slices.Equal(r.Skipped, []string{"formations/hello/state/link"}) {
		t.Errorf("report = %+v", r)
	}
	restore(t, data)
}

func TestWrite_LeavesOutTheCachesOfProgramsAsAWhole(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	const state = "formations/hello/state/"
	h.write(t, state+".npm/_npx/1/node_modules/words/index.js", "x", 0o600)
	h.write(t, state+"notes/.cache", "kept: no cache at the top", 0o600)
	if err := os.Symlink("../words/index.js", filepath.Join(h.dir, state+".npm/_npx/1/words")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(h.dir, state+".cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := h.store(t, state+".cache/http.db", 10).Close(); err != nil {
		t.Fatal(err)
	}
	r, data := h.backup(t, nil)
	if len(r.Skipped)+len(r.Notes) != 0 {
		t.Errorf("report = %+v", r)
	}
	_, dir := restore(t, data)
	for rel, want := range map[string]bool{".npm": false, ".cache": false, "notes/.cache": true} {
		if _, err := os.Lstat(filepath.Join(dir, state+rel)); (err == nil) != want {
			t.Errorf("%s is back: %t, want %t", rel, err == nil, want)
		}
	}
}

func TestWrite_KeepsADamagedDatabaseAndSaysSo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	db := h.store(t, "formations/hello/state/memory.db", 200)
	if err := db.Close(); err != nil { // the journal is in the file then
		t.Fatal(err)
	}
	path := filepath.Join(h.dir, "formations/hello/state/memory.db")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 4096), 3*4096); err != nil {
		t.Fatal(err)
	}
	f.Close()
	wrote, data := h.backup(t, nil)
	if len(wrote.Damaged) != 1 || wrote.Damaged[0].Path != "formations/hello/state/memory.db" || wrote.Damaged[0].Problem == "" {
		t.Errorf("damaged = %+v", wrote.Damaged)
	}
	if got, _ := restore(t, data); !cmp.Equal(wrote.Damaged, got.Damaged) {
		t.Errorf("restored: %+v", got.Damaged)
	}
}

func TestWrite_NamesStoresThatLieElsewhereWithoutCredentials(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for i, c := range []struct{ id, memory string }{
		{"pg-url", "memory:\n  persistent:\n    connection_string: postgres://alice:hunter2@db.example:5433/memory?sslpassword=hunter2\n"},
		{"pg-words", "memory:\n  persistent:\n    connection_string: host=db.example dbname=m user=alice password=hunter2\n"},
		{"pg-secret", "memory:\n  persistent:\n    connection_string: ${{ secrets.PG }}\n"},
		{"pg-mixed", "memory:\n  persistent:\n    connection_string: postgres://alice:hunter2${{ secrets.PW }}@db/x\n"},
		{"pg-remote", "memory:\n  working:\n    mode: remote\n    remote:\n      url: postgresql://u:hunter2@w.example/w\n"},
		{"off-pg", "memory:\n  persistent:\n    enabled: false\n    connection_string: postgres://db/x\n"},
		{"sqlite-in", "memory:\n  persistent:\n    connection_string: sqlite://memory.db\n"},
		{"sqlite-out", "memory:\n  persistent:\n    connection_string: sqlite:///srv/memory.db\n"},
	} {
		h.deploy(t, c.id, 8100+i, map[string]string{"versions/1/formation.afs": manifestOf(c.id, c.memory)})
	}
	r, data := h.backup(t, nil)
	want := []NotCovered{
		{"pg-mixed", "memory.persistent.connection_string with ${{ secrets.PW }}", `pg_dump --format=custom --file='pg-mixed-persistent.dump' --dbname="$CONNECTION_STRING"   # the value of ${{ secrets.PW }}`},
		{"pg-remote", "postgresql://w.example/w", "pg_dump --format=custom --file='pg-remote-working.dump' --dbname='postgresql://w.example/w'"},
		{"pg-secret", "memory.persistent.connection_string ${{ secrets.PG }}", `pg_dump --format=custom --file='pg-secret-persistent.dump' --dbname="$CONNECTION_STRING"   # the value of ${{ secrets.PG }}`},
		{"pg-url", "postgres://db.example:5433/memory", "pg_dump --format=custom --file='pg-url-persistent.dump' --dbname='postgres://db.example:5433/memory'"},
		{"pg-words", "host=db.example dbname=m", "pg_dump --format=custom --file='pg-words-persistent.dump' --dbname='host=db.example dbname=m'"},
		{"sqlite-out", "/srv/memory.db", `sqlite3 '/srv/memory.db' ".backup sqlite-out.db"`},
	}
	if diff := cmp.Diff(want, r.NotCovered); diff != "" {
		t.Errorf("not covered (-want +got):\n%s", diff)
	}
	if got, _ := restore(t, data); !cmp.Equal(got.NotCovered, want) {
		t.Errorf("restored: %+v", got.NotCovered)
	}
}

func TestWrite_RefusesWhatIsNoHome(t *testing.T) {
	t.Parallel()
	_, err := Write(t.Context(), Config{Home: t.TempDir()}, io.Discard)
	assertFault(t, err, fault.NotFound, "NoHome", "no supervisor's home")
	h := newHome(t)
	for _, rel := range []string{"../outside", "/etc/passwd", "nowhere"} {
		if _, err := Write(t.Context(), Config{Home: h.dir, Extra: []string{rel}}, io.Discard); err == nil {
			t.Errorf("extra %s was taken", rel)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Write(gone, Config{Home: h.dir}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(h.dir, "tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWrite_OfFormationsElsewhereSaysWhereTheyGo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	other := filepath.Join(filepath.Dir(h.dir), "fleet")
	if err := os.Rename(filepath.Join(h.dir, "formations"), other); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(filepath.Dir(h.dir), "etc.yaml")
	if err := os.WriteFile(settings, []byte("server_id: elsewhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, data := h.backup(t, func(c *Config) { c.Formations, c.Settings = other, settings })
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], other) {
		t.Errorf("notes = %q", r.Notes)
	}
	_, dir := restore(t, data)
	assertRegistry(t, dir, "1.0.0")
	if text, _ := os.ReadFile(filepath.Join(dir, "config.yaml")); string(text) != "server_id: elsewhere\n" {
		t.Errorf("settings = %q", text)
	}
}

package backup

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrite_OneFormationsOddDatabaseDoesNotKeepTheRestFromABackup(t *testing.T) {
	t.Parallel()
	const magic = "SQLite format 3\x00"
	for name, text := range map[string]string{
		"only its first bytes":  magic,
		"followed by nothing":   magic + strings.Repeat("\x00", 4096),
		"followed by something": magic + strings.Repeat("x", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			const odd = "formations/hello/state/tools/odd.db"
			h.write(t, odd, text, 0o600)
			wrote, data := h.backup(t, nil)
			if len(wrote.Damaged) != 1 || wrote.Damaged[0].Path != odd || wrote.Damaged[0].Problem == "" {
				t.Errorf("damaged = %+v", wrote.Damaged)
			}
			_, dir := restore(t, data)
			if got, err := os.ReadFile(filepath.Join(dir, odd)); err != nil || string(got) != text {
				t.Errorf("%d bytes are back, want %d: %v", len(got), len(text), err)
			}
		})
	}
}

func TestWrite_ADatabaseThatAProgramKeepsToItselfIsBackedUpAsItsFileIs(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	const kept = "formations/hello/state/.config/browser/cookies"
	path := filepath.Join(h.dir, kept)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", "file:"+path+"?_locking_mode=EXCLUSIVE")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE facts (n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO facts VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	wrote, data := h.backup(t, nil)
	if len(wrote.Damaged) != 1 || wrote.Damaged[0].Path != kept || !strings.Contains(wrote.Damaged[0].Problem, "locked") {
		t.Errorf("damaged = %+v", wrote.Damaged)
	}
	_, dir := restore(t, data)
	if n := facts(t, filepath.Join(dir, kept)); n != 1 {
		t.Errorf("%d facts are back", n)
	}
}

func TestWrite_ANameThatIsNoTextIsLeftOutAndTold(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	const state = "formations/hello/state/"
	for _, name := range []string{"caf\xe9.txt", "d\xe9p\xf4t/inner.txt", "dépôt/two\nlines.txt"} {
		h.write(t, state+name, "text", 0o600)
	}
	h.store(t, state+"d\xe9p\xf4t/inner.db", 1)
	wrote, data := h.backup(t, nil)
	want := []string{
		`left out, since its name is no UTF-8 or too long: "formations/hello/state/caf\xe9.txt"`,
		`left out, since its name is no UTF-8 or too long: "formations/hello/state/d\xe9p\xf4t"`,
	}
	slices.Sort(wrote.Notes)
	if diff := cmp.Diff(want, wrote.Notes); diff != "" {
		t.Error(diff)
	}
	_, dir := restore(t, data)
	if text, err := os.ReadFile(filepath.Join(dir, state+"dépôt/two\nlines.txt")); err != nil || string(text) != "text" {
		t.Errorf("%q: %v", text, err)
	}
}

package deploy_test

import (
	"archive/zip"
	"bytes"
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// download returns the content of each file of a formation's zip.
func download(t *testing.T, r *deploytest.Rig, id string, db bool) (map[string]string, []byte) {
	t.Helper()
	d, err := r.Service.Download(t.Context(), id, db)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Name != id+".zip" {
		t.Errorf("name = %q", d.Name)
	}
	var buf bytes.Buffer
	if n, err := d.WriteTo(&buf); err != nil || n != int64(buf.Len()) {
		t.Fatalf("write = %d of %d, %v", n, buf.Len(), err)
	}
	z, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range z.File {
		if f.Method != zip.Deflate {
			t.Errorf("%s has method %d", f.Name, f.Method)
		}
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all[f.Name] = string(text)
	}
	return all, buf.Bytes()
}

func TestDownload_IsTheCurrentVersionWithoutHiddenFiles(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	extra := map[string]string{
		".env": "A=1", ".key": "secret", ".hidden/x": "x", "tools/.git/y": "y", "tools/run.sh": "#!/bin/sh", "sub/.env": "B=2",
		"memory.db": "the seed",
	}
	r.MustDeploy(t, "hello", extra)
	want := deploytest.Files("hello", map[string]string{
		".env": "A=1", "tools/run.sh": "#!/bin/sh", "sub/.env": "B=2", "memory.db": "the seed",
	})
	got, first := download(t, r, "hello", false)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("zip (-want +got):\n%s", diff)
	}
	if _, second := download(t, r, "hello", false); !bytes.Equal(first, second) {
		t.Error("the same files give other bytes")
	}
}

func TestDownload_AddsTheDatabasesAsTheyAre(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", map[string]string{"memory.db": "the seed"})
	state := filepath.Join(r.Home, "formations/hello/state")
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(state, "memory.db")+"?_journal_mode=WAL")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() // open: its last writes are in the journal
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE facts (text TEXT); INSERT INTO facts VALUES ('remembered')`); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "keys"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _ := download(t, r, "hello", true)
	path := filepath.Join(t.TempDir(), "memory.db")
	if err := os.WriteFile(path, []byte(got["memory.db"]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := got["keys"]; ok {
		t.Error("the keys left the server")
	}
	copied, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	var text string
	if err := copied.QueryRowContext(t.Context(), `SELECT text FROM facts`).Scan(&text); err != nil || text != "remembered" {
		t.Errorf("the copy has %q, %v", text, err)
	}
	if left, _ := os.ReadDir(filepath.Join(r.Home, "tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestDownload_OfAnUnknownFormation(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "draft-only", nil)
	for _, id := range []string{"nobody", "draft-only", "../x"} {
		_, err := r.Service.Download(t.Context(), id, true)
		assertFault(t, err, fault.NotFound, "FormationNotFound", id)
	}
}

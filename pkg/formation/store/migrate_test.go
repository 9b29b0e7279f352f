package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
)

// release returns the migrations of a build with so many more than this one.
func release(t *testing.T, more int) []migration {
	t.Helper()
	all, err := loadMigrations()
	if err != nil {
		t.Fatal(err)
	}
	for range more {
		n := all[len(all)-1].number + 1
		all = append(all, migration{number: n, name: fmt.Sprint(n), sql: fmt.Sprintf(
			`ALTER TABLE journal ADD COLUMN extra%d TEXT NOT NULL DEFAULT ''; CREATE TABLE more%d (id TEXT); CREATE INDEX journal%d ON journal (extra%d)`, n, n, n, n)})
	}
	return all
}

// latest is the schema of a build with these migrations; numbers may be missing.
func latest(all []migration) int { return all[len(all)-1].number }

func openRelease(t *testing.T, path, launch string, more int) *DB {
	t.Helper()
	db, err := open(t.Context(), Config{Path: path, LaunchID: launch, Log: zerolog.Nop()}, release(t, more))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func addStep(t *testing.T, db *DB, step string) {
	t.Helper()
	if err := db.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec(`INSERT INTO journal (request_id, step, payload) VALUES ('r', ?, x'00')`, step)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func steps(t *testing.T, db *DB) (list []string) {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT step FROM journal ORDER BY step`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var step string
		if err := rows.Scan(&step); err != nil {
			t.Fatal(err)
		}
		list = append(list, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func snapshotNames(t *testing.T, path string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return names
}

func TestMigrate_AnOldProcessGoesOnBesideANewerSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.db")
	old := openRelease(t, path, "old", 0)
	addStep(t, old, "1") // its statements are prepared before the change
	if got := steps(t, old); !cmp.Equal(got, []string{"1"}) {
		t.Fatal(got)
	}
	fresh := openRelease(t, path, "fresh", 1)
	addStep(t, old, "2")
	addStep(t, fresh, "3")
	addStep(t, old, "4")
	want := []string{"1", "2", "3", "4"}
	if diff := cmp.Diff(want, steps(t, old)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, steps(t, fresh)); diff != "" {
		t.Error(diff)
	}
	if err := fresh.Fence(t.Context(), []string{"old"}); err != nil {
		t.Fatal(err)
	}
	if err := old.Look(t.Context()); !errors.Is(err, ErrFenced) {
		t.Fatalf("err = %v", err)
	}
}

func TestMigrate_KeepsCopiesThatAnOlderBuildCanBeGivenBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.db")
	base := latest(release(t, 0))
	db := openRelease(t, path, "a", 0)
	if names := snapshotNames(t, path); names != nil {
		t.Fatalf("an empty store was copied: %v", names)
	}
	addStep(t, db, "before")
	openRelease(t, path, "b", 0)
	if names := snapshotNames(t, path); names != nil {
		t.Fatalf("a store was copied without a migration: %v", names)
	}
	for more := 1; more <= 3; more++ {
		openRelease(t, path, fmt.Sprint("launch-", more), more)
	}
	mark := func(n int) string { return fmt.Sprintf("memory.db.pre-%d", base+n) }
	if diff := cmp.Diff([]string{mark(2), mark(3)}, snapshotNames(t, path)); diff != "" {
		t.Fatal(diff)
	}
	_, err := open(t.Context(), Config{Path: path, LaunchID: "older", Log: zerolog.Nop()}, release(t, 1))
	want := fmt.Sprintf("the store has schema %d, this runtime knows %d: roll forward, or restore the snapshot %s", base+3, base+1, mark(2))
	if fault.NameOf(err) != "HealthCheckFailed" || fault.From(err).Message != want {
		t.Fatalf("err = %v", err)
	}
	_, err = open(t.Context(), Config{Path: path, LaunchID: "oldest", Log: zerolog.Nop()}, release(t, 0))
	if want := fmt.Sprintf("this runtime knows %d: roll forward", base); fault.NameOf(err) != "HealthCheckFailed" || !strings.HasSuffix(fault.From(err).Message, want) {
		t.Fatalf("err = %v", err)
	}
	// Given back, the older build goes on from there.
	back := filepath.Join(t.TempDir(), "memory.db")
	data, err := os.ReadFile(filepath.Join(filepath.Dir(path), mark(2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(back, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, openRelease(t, back, "back", 1)); !cmp.Equal(got, []string{"before"}) {
		t.Fatal(got)
	}
}

func TestMigrate_WithoutRoomForTheCopyChangesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.db")
	db := openRelease(t, path, "a", 0)
	addStep(t, db, "1")
	// A directory in its place keeps the copy from being made, like a full disk.
	if err := os.MkdirAll(fmt.Sprintf("%s.pre-%d.part/x", path, latest(release(t, 1))), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t.Context(), Config{Path: path, LaunchID: "b", Log: zerolog.Nop()}, release(t, 1)); err == nil {
		t.Fatal("migrated without a copy")
	}
	if got := steps(t, openRelease(t, path, "c", 0)); !cmp.Equal(got, []string{"1"}) {
		t.Fatal(got)
	}
}

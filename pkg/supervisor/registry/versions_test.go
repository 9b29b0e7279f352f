package registry_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// deployed returns a registry with one formation "alpha", version 1.2.3.
func deployed(t *testing.T) *registry.Registry {
	t.Helper()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	begin(t, r, "alpha", 8000)
	if err := r.Commit(t.Context(), "alpha", 1); err != nil {
		t.Fatal(err)
	}
	return r
}

func stage(t *testing.T, r *registry.Registry, semantic string) registry.Version {
	t.Helper()
	v, err := r.Stage(t.Context(), "alpha", registry.NewVersion{Semantic: semantic, SHA256: "sum-" + semantic, Name: "Alpha " + semantic})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func promote(t *testing.T, r *registry.Registry, serial int) registry.Formation {
	t.Helper()
	if err := r.Promote(t.Context(), "alpha", serial); err != nil {
		t.Fatal(err)
	}
	return get(t, r)
}

func get(t *testing.T, r *registry.Registry) registry.Formation {
	t.Helper()
	f, err := r.Get(t.Context(), "alpha")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func serials(t *testing.T, r *registry.Registry) []int {
	t.Helper()
	all, err := r.Versions(t.Context(), "alpha")
	if err != nil {
		t.Fatal(err)
	}
	got := []int{}
	for _, v := range all {
		got = append(got, v.Serial)
	}
	return got
}

func TestStage_ChangesNothingThatServesUntilPromote(t *testing.T) {
	t.Parallel()
	r := deployed(t)
	if err := r.SetDesired(t.Context(), "alpha", registry.Stopped); err != nil {
		t.Fatal(err)
	}
	before := get(t, r)
	v := stage(t, r, "2.0.0")
	if v.Serial != 2 || v.Dir != "versions/2" || v.State != registry.Staged || v.InitDone {
		t.Errorf("staged = %+v", v)
	}
	if diff := cmp.Diff(before, get(t, r)); diff != "" {
		t.Errorf("staging changed the formation (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1}, serials(t, r)); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	if err := r.MarkInit(t.Context(), "alpha", 2); err != nil {
		t.Fatal(err)
	}
	f := promote(t, r, 2)
	if f.Current.Serial != 2 || f.Previous.Serial != 1 || f.Desired != registry.Running || f.Name != "Alpha 2.0.0" {
		t.Errorf("after promote: %+v, current %+v, previous %+v", f, f.Current, f.Previous)
	}
	if f.Current.State != registry.Live || !f.Current.InitDone || f.Current.Semantic != "2.0.0" || f.Current.SHA256 != "sum-2.0.0" {
		t.Errorf("current = %+v", f.Current)
	}
	if !f.UpdatedAt.After(before.UpdatedAt) || !f.Current.DeployedAt.After(before.Current.DeployedAt) {
		t.Errorf("times did not move: %v, %v", f.UpdatedAt, f.Current.DeployedAt)
	}
}

func TestPromote_OfAKeptVersionSwapsThePointersAndBack(t *testing.T) {
	t.Parallel()
	r := deployed(t)
	stage(t, r, "2.0.0")
	deployedAt := promote(t, r, 2).Previous.DeployedAt
	f := promote(t, r, 1)
	if f.Current.Serial != 1 || f.Previous.Serial != 2 || f.Name != "Name of alpha" || !f.Current.DeployedAt.Equal(deployedAt) {
		t.Errorf("rolled back: %+v, current %+v, previous %+v", f, f.Current, f.Previous)
	}
	f = promote(t, r, 2)
	if f.Current.Serial != 2 || f.Previous.Serial != 1 {
		t.Errorf("rolled back twice: current %+v, previous %+v", f.Current, f.Previous)
	}
	if f = promote(t, r, 2); f.Previous == nil || f.Previous.Serial != 1 {
		t.Errorf("promoting the current version changed the previous one: %+v", f.Previous)
	}
}

func TestDropVersion_NeverTheCurrentAndNeverASerialTwice(t *testing.T) {
	t.Parallel()
	r := deployed(t)
	stage(t, r, "2.0.0")
	promote(t, r, 2)
	if err := r.DropVersion(t.Context(), "alpha", 2); !errors.Is(err, registry.ErrCurrent) {
		t.Errorf("drop of the current version: %v, want ErrCurrent", err)
	}
	v := stage(t, r, "3.0.0")
	for range 2 { // a missing one is no error
		if err := r.DropVersion(t.Context(), "alpha", v.Serial); err != nil {
			t.Fatal(err)
		}
	}
	if v = stage(t, r, "3.0.0"); v.Serial != 4 {
		t.Errorf("serial %d was given twice", v.Serial)
	}
	if n, err := r.DropStaged(t.Context(), "alpha"); err != nil || n != 1 {
		t.Errorf("dropped %d staged versions, %v; want 1", n, err)
	}
	if err := r.DropVersion(t.Context(), "alpha", 1); err != nil {
		t.Fatal(err)
	}
	if f := get(t, r); f.Previous != nil || f.Current.Serial != 2 {
		t.Errorf("after the drop of the previous version: current %+v, previous %+v", f.Current, f.Previous)
	}
	if diff := cmp.Diff([]int{2}, serials(t, r)); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

func TestVersions_OfAMissingFormationAreErrorsOrNone(t *testing.T) {
	t.Parallel()
	r := deployed(t)
	begin(t, r, "beta", 8001) // its first deploy is not committed
	for name, err := range map[string]error{
		"stage":           second(r.Stage(t.Context(), "none", registry.NewVersion{})),
		"stage too early": second(r.Stage(t.Context(), "beta", registry.NewVersion{})),
		"promote":         r.Promote(t.Context(), "none", 1),
		"promote unknown": r.Promote(t.Context(), "alpha", 9),
		"promote early":   r.Promote(t.Context(), "beta", 1),
		"mark init":       r.MarkInit(t.Context(), "alpha", 9),
		"add exit":        r.AddExit(t.Context(), "none", registry.Exit{}),
	} {
		if !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if f, err := r.Get(t.Context(), "beta"); err != nil || f.State != registry.Deploying || f.Current != nil {
		t.Errorf("beta = %+v, %v: a refused promote changed it", f, err)
	}
	if n, err := r.DropStaged(t.Context(), "beta"); err != nil || n != 0 {
		t.Errorf("dropped %d versions of a first deploy, %v", n, err)
	}
	if all, err := r.Versions(t.Context(), "none"); err != nil || len(all) != 0 {
		t.Errorf("versions of none: %v, %v", all, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestExits_KeepTheNewestHundredOfEachFormation(t *testing.T) {
	t.Parallel()
	r := deployed(t)
	begin(t, r, "beta", 8001)
	want := registry.Exit{
		Time: time.UnixMilli(1_700_000_000_123).UTC(), Code: -1, Signal: "killed", Reason: "out of memory, limit 512 MiB",
		Launch: "ab12", Served: 1500 * time.Millisecond, Stderr: []string{"one", "two"},
	}
	if err := r.AddExit(t.Context(), "beta", want); err != nil {
		t.Fatal(err)
	}
	for i := range 105 {
		lines := make([]string, 30)
		for n := range lines {
			lines[n] = fmt.Sprintf("line %d %s\xff", n, strings.Repeat("x", 3000))
		}
		if err := r.AddExit(t.Context(), "alpha", registry.Exit{Code: i, Stderr: lines}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.Exits(t.Context(), "alpha", 0)
	if err != nil || len(all) != 100 || all[0].Code != 104 || all[99].Code != 5 {
		t.Fatalf("%d exits, %v; want codes 104 to 5", len(all), err)
	}
	if e := all[0]; len(e.Stderr) != 20 || !strings.HasPrefix(e.Stderr[0], "line 10 ") || len(e.Stderr[0]) > 2100 {
		t.Errorf("stderr is not bounded: %d lines, the first %.40q of %d bytes", len(e.Stderr), e.Stderr[0], len(e.Stderr[0]))
	}
	if few, err := r.Exits(t.Context(), "alpha", 3); err != nil || len(few) != 3 || few[2].Code != 102 {
		t.Errorf("three exits: %+v, %v", few, err)
	}
	got, err := r.Exits(t.Context(), "beta", 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]registry.Exit{want}, got); diff != "" {
		t.Errorf("exits of beta (-want +got):\n%s", diff)
	}
	if err := r.Delete(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	begin(t, r, "beta", 8001)
	if got, err := r.Exits(t.Context(), "beta", 0); err != nil || len(got) != 0 {
		t.Errorf("a new formation has the exits of a deleted one: %+v, %v", got, err)
	}
}

func TestOpen_BringsARegistryOfTheFirstReleaseUpToDate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.db")
	schema, err := os.ReadFile("migrations/0001_formations.sql")
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), string(schema)+`;
		INSERT INTO formations (id, name, port, state, desired, created_at, updated_at) VALUES ('alpha', 'Old name', 8000, 'deployed', 'running', 1, 2);
		INSERT INTO versions (formation_id, serial, semantic, sha256, dir, state, deployed_at) VALUES ('alpha', 1, '0.9.0', 'abc', 'versions/1', 'live', 1);
		UPDATE formations SET current = 1;
		PRAGMA user_version = 1;`)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, path)
	f := get(t, r)
	if f.Current == nil || f.Current.Name != "Old name" || !f.Current.InitDone || f.Current.Semantic != "0.9.0" {
		t.Errorf("current = %+v, want the old version with the formation's name and its init done", f.Current)
	}
	if v := stage(t, r, "1.0.0"); v.Serial != 2 {
		t.Errorf("the next serial is %d, want 2", v.Serial)
	}
	if f := promote(t, r, 2); f.Previous.Serial != 1 || f.Name != "Alpha 1.0.0" {
		t.Errorf("after an update: %+v", f)
	}
}

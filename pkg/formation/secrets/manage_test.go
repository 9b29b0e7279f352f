package secrets

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// versions are the deployed versions of one formation with one state.
type versions struct {
	t     *testing.T
	state string
	key   secretfile.Key
}

func newVersions(t *testing.T) *versions {
	t.Helper()
	return &versions{t: t, state: t.TempDir(), key: secretfile.GenerateKey()}
}

// open opens a version with the given file; the first secret is used.
func (v *versions) open(file map[string]string) *Store {
	v.t.Helper()
	dir := v.t.TempDir()
	v.save(dir, file)
	return v.at(dir)
}

func (v *versions) save(dir string, file map[string]string) {
	v.t.Helper()
	if err := secretfile.Save(filepath.Join(dir, "secrets.enc"), v.key, file); err != nil {
		v.t.Fatal(err)
	}
}

func (v *versions) at(dir string) *Store {
	v.t.Helper()
	used := []manifest.Ref{{Kind: manifest.KindSecret, Name: "used", File: "formation.afs", Line: 7, Col: 13}}
	s, err := Open(Config{Dir: dir, StateDir: v.state, Key: v.key.Encode()}, used)
	if err != nil {
		v.t.Fatal(err)
	}
	return s
}

// values returns what holds.
func values(s *Store) map[string]string {
	v, err := s.look()
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	return v.values
}

func (v *versions) must(_ string, errs ...error) {
	v.t.Helper()
	for _, err := range errs {
		if err != nil {
			v.t.Fatal(err)
		}
	}
}

func update(s *Store, name, value string) error {
	_, _, err := s.Update(name, value)
	return err
}

func TestStore_ChangesHoldOverRestartsAndUpdates(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	first := map[string]string{"USED": "used-1", "OTHER": "other-1", "GONE": "gone-1"}
	s := v.open(first)
	v.must(s.Create("new-one", "created"))
	v.must("", update(s, "used", "used-2"), update(s, "OTHER", "other-2"))
	v.must(s.Delete("gone"))
	want := map[string]string{"USED": "used-2", "OTHER": "other-2", "NEW_ONE": "created"}
	for name, s := range map[string]*Store{
		"now": s, "restart": v.open(first), "update without a change": v.open(maps.Clone(first)),
	} {
		if diff := cmp.Diff(want, values(s)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got, ok := s.Resolve(manifest.KindSecret, "used"); got != "used-2" || !ok {
			t.Errorf("%s: resolved %q", name, got)
		}
	}
	// A version that brings values was written later than what they replace.
	later := v.open(map[string]string{"USED": "used-3", "OTHER": "other-1", "NEW_ONE": "own", "GONE": "back"})
	if diff := cmp.Diff(map[string]string{"USED": "used-3", "OTHER": "other-2", "NEW_ONE": "own", "GONE": "back"}, values(later)); diff != "" {
		t.Error(diff)
	}
	// A rollback brings back what held before.
	if diff := cmp.Diff(want, values(v.open(first))); diff != "" {
		t.Error(diff)
	}
	// Another formation has none of it.
	if got := values(newVersions(t).open(map[string]string{"USED": "x"})); len(got) != 1 {
		t.Errorf("another formation has %d secrets", len(got))
	}
}

func TestStore_RefusesWhatTheReferenceNames(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	s := v.open(map[string]string{"USED": "used-1", "FREE": "free-1"})
	create := func(name string) error { _, err := s.Create(name, "x"); return err }
	remove := func(name string) error { _, err := s.Delete(name); return err }
	mask := func(name string) error { _, _, err := s.Mask(name); return err }
	for name, tt := range map[string]struct {
		err  error
		kind fault.Kind
		code string
	}{
		"exists":       {create("free"), fault.Conflict, "SECRET_EXISTS"},
		"update none":  {update(s, "none", "x"), fault.NotFound, "SECRET_NOT_FOUND"},
		"delete none":  {remove("none"), fault.NotFound, "SECRET_NOT_FOUND"},
		"delete used":  {remove("Used"), fault.Conflict, "SECRET_IN_USE"},
		"get none":     {mask("none"), fault.NotFound, "SECRET_NOT_FOUND"},
		"get no name":  {mask("-"), fault.NotFound, "SECRET_NOT_FOUND"},
		"deleted once": {remove("free"), 0, ""}, "deleted twice": {remove("free"), fault.NotFound, "SECRET_NOT_FOUND"},
	} {
		if tt.code == "" && tt.err == nil {
			continue
		}
		if fault.KindOf(tt.err) != tt.kind || fault.NameOf(tt.err) != tt.code {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	if f := fault.From(remove("used")); !strings.Contains(f.Message, "formation.afs:7:13") || len(f.Data["used_by"].([]string)) != 1 {
		t.Errorf("%v %v", f, f.Data)
	}
	v.must(s.Create("FREE", "sk-proj-1234567890"))
	masked, err := s.Masked()
	if diff := cmp.Diff(map[string]string{"FREE": "sk-pr••••••7890", "USED": "••••••••"}, masked); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if name, masked, err := s.Mask("free"); name != "FREE" || masked != "sk-pr••••••7890" || err != nil {
		t.Error(name, masked, err)
	}
}

func TestReload_MergesTheFileAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	dir := t.TempDir()
	v.save(dir, map[string]string{"USED": "used-1", "CHANGED": "changed-1", "DELETED": "deleted-1", "DROPPED": "dropped-1"})
	s := v.at(dir)
	v.must(s.Create("MINE", "mine"))
	v.must("", update(s, "CHANGED", "changed-2"))
	v.must(s.Delete("DELETED"))
	v.save(dir, map[string]string{"USED": "used-2", "CHANGED": "changed-3", "DELETED": "deleted-1", "FRESH": "fresh"})
	added, overwritten, preserved, err := s.Reload()
	if diff := cmp.Diff([][]string{{"DELETED", "FRESH"}, {"CHANGED", "USED"}, {"DROPPED", "MINE"}}, [][]string{added, overwritten, preserved}); diff != "" || err != nil {
		t.Error(diff, err)
	}
	want := map[string]string{
		"USED": "used-2", "CHANGED": "changed-3", "DELETED": "deleted-1", "FRESH": "fresh", "MINE": "mine", "DROPPED": "dropped-1",
	}
	if diff := cmp.Diff(want, values(s)); diff != "" {
		t.Error(diff)
	}
	delete(want, "DROPPED") // it was in memory only
	if diff := cmp.Diff(want, values(v.at(dir))); diff != "" {
		t.Error("after a restart: " + diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets.enc"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := values(s)
	if _, _, _, err := s.Reload(); fault.KindOf(err) != fault.Internal || fault.NameOf(err) != "SECRETS_RELOAD_FAILED" {
		t.Errorf("a damaged file: %v", err)
	}
	if diff := cmp.Diff(before, values(s)); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(filepath.Join(dir, "secrets.enc")); err != nil {
		t.Fatal(err)
	}
	if added, overwritten, preserved, err := s.Reload(); len(added)+len(overwritten) != 0 || len(preserved) != len(before) || err != nil {
		t.Errorf("without a file: %v %v %v %v", added, overwritten, preserved, err)
	}
}

func TestStore_TwoProcessesSeeEachOthersChanges(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	file := map[string]string{"USED": "used-1"}
	stores := []*Store{v.open(file), v.open(file)}
	var all sync.WaitGroup
	for i, s := range stores {
		for j := range 5 {
			all.Go(func() {
				if _, err := s.Create(fmt.Sprintf("NAME_%d_%d", i, j), "x"); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	for _, s := range stores {
		if got := values(s); len(got) != 11 {
			t.Errorf("%v", slices.Sorted(maps.Keys(got)))
		}
	}
}

func TestStore_ChangesAreEncryptedAndTheirDamageIsTold(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	dir := t.TempDir()
	v.save(dir, map[string]string{"USED": "used-1"})
	var known []string
	s, err := Open(Config{Dir: dir, StateDir: v.state, Key: v.key.Encode(), Known: func(values ...string) { known = append(known, values...) }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.must(s.Create("NEW", "hidden-value"))
	if !slices.Contains(known, "used-1") || !slices.Contains(known, "hidden-value") {
		t.Errorf("known are %d values", len(known))
	}
	entries, err := os.ReadDir(v.state)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(v.state, e.Name()))
		info, _ := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 || strings.Contains(string(text), "hidden") {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(v.state, "secrets.state.enc"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, maskedErr := s.Masked()
	_, createErr := s.Create("B", "x")
	for name, err := range map[string]error{"list": maskedErr, "create": createErr, "update": update(s, "NEW", "x")} {
		if fault.KindOf(err) != fault.Internal || fault.NameOf(err) != "SECRETS_ERROR" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, ok := s.Resolve(manifest.KindSecret, "NEW"); got != "hidden-value" || !ok {
		t.Error("what was read before does not hold any more")
	}
	if _, err := Open(Config{Dir: dir, StateDir: v.state, Key: v.key.Encode()}, nil); fault.NameOf(err) != "SecretsError" ||
		!strings.Contains(err.Error(), "secrets.state.enc") {
		t.Errorf("open: %v", err)
	}
}

func TestStore_WithoutAStateDirectoryOrAFileChangesAreInMemory(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{Dir: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create("A", "value"); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Resolve(manifest.KindSecret, "a"); got != "value" || !ok {
		t.Errorf("%q", got)
	}
}

func TestOpen_ASecretOfTheAPIFillsAPlaceholder(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	s := v.open(map[string]string{"USED": "used-1"})
	v.must(s.Create("LATER", "value"))
	ref := manifest.Ref{Kind: manifest.KindSecret, Name: "LATER", File: "formation.afs", Line: 1, Col: 1}
	if _, err := Open(Config{Dir: t.TempDir(), StateDir: v.state}, []manifest.Ref{ref}); err != nil {
		t.Error(err)
	}
}

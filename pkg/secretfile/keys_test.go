package secretfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/secretfile"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func TestRotate_KeepsTheOldPairUntilTheOverlapEnds(t *testing.T) {
	t.Parallel()
	first := secretfile.FormationKeys{Admin: "fma_1", Client: "fmc_1"}
	second := first.Rotate(noon, 24*time.Hour)
	third := second.Rotate(noon.Add(time.Hour), time.Hour)
	if second.Admin == first.Admin || second.Client == first.Client || third.Admin == second.Admin {
		t.Error("a key was not replaced")
	}
	if !strings.HasPrefix(third.Admin, "fma_") || !strings.HasPrefix(third.Client, "fmc_") || len(third.Admin) != 47 {
		t.Errorf("the form of the new keys: %q, %q", third.Admin, third.Client)
	}
	firstOld := secretfile.PreviousKeys{Admin: "fma_1", Client: "fmc_1", ValidUntil: noon.Add(24 * time.Hour)}
	secondOld := secretfile.PreviousKeys{Admin: second.Admin, Client: second.Client, ValidUntil: noon.Add(2 * time.Hour)}
	for at, want := range map[time.Duration][]secretfile.PreviousKeys{
		time.Hour: {secondOld, firstOld}, 2*time.Hour - 1: {secondOld, firstOld}, 2 * time.Hour: {firstOld}, 24 * time.Hour: nil,
	} {
		if diff := cmp.Diff(want, third.Valid(noon.Add(at))); diff != "" {
			t.Errorf("after %s: %s", at, diff)
		}
	}
}

func TestRotate_EndsTheOldPairAtOnceWithoutOverlap(t *testing.T) {
	t.Parallel()
	k := secretfile.FormationKeys{Admin: "fma_1"}.Rotate(noon, 0)
	if len(k.Previous) != 0 || k.Admin == "fma_1" || k.Client != "" {
		t.Errorf("got %+v, want a new admin key and nothing else", k)
	}
}

func TestRotate_KeepsAtMostMaxPrevious(t *testing.T) {
	t.Parallel()
	k := secretfile.FormationKeys{Admin: "fma_1"}
	for i := range secretfile.MaxPrevious + 5 {
		k = k.Rotate(noon, time.Duration(i+1)*time.Hour)
	}
	if len(k.Previous) != secretfile.MaxPrevious {
		t.Fatalf("%d pairs are kept", len(k.Previous))
	}
	for _, p := range k.Previous {
		if !p.ValidUntil.After(noon.Add(5 * time.Hour)) {
			t.Errorf("a pair that ends at %s outlived a later one", p.ValidUntil)
		}
	}
}

func TestUpdateKeys_ManyWritersLoseNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
				k.Previous = append(k.Previous, secretfile.PreviousKeys{Admin: "x", ValidUntil: noon})
				return k, true
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	k, err := secretfile.LoadKeys(path)
	if err != nil || len(k.Previous) != 8 {
		t.Errorf("%d of 8 writes are there, %v", len(k.Previous), err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestUpdateKeys_WritesNothingWithoutAChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	k, err := secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) { return k, false })
	if diff := cmp.Diff(secretfile.FormationKeys{}, k); diff != "" || err != nil {
		t.Errorf("%s %v", diff, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
}

func TestLoadKeys_RefusesWhatIsNoKeysFileAndShowsNothingOfIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte(`{"admin_key":"fma_1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, path := range map[string]string{
		"a link": link, "a directory": dir, "cut off": write("cut", `{"admin_key":"fma_secret`),
		"another type": write("type", `{"admin_key":["fma_secret"]}`),
		"too long":     write("long", `{"admin_key":"fma_secret`+strings.Repeat("x", secretfile.MaxKeysFile)+`"}`),
	} {
		k, err := secretfile.LoadKeys(path)
		if err == nil || strings.Contains(err.Error(), "fma_") || k.Admin != "" {
			t.Errorf("%s: %+v, %v", name, k, err)
		}
	}
}

func FuzzLoadKeys(f *testing.F) {
	f.Add([]byte(`{"admin_key":"fma_1","previous":[{"client_key":"fmc_1","valid_until":"2026-03-04T12:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := secretfile.LoadKeys(path)
		if err != nil {
			return
		}
		if next := k.Rotate(noon, time.Hour); len(next.Previous) > secretfile.MaxPrevious {
			t.Errorf("%d previous pairs", len(next.Previous))
		}
	})
}

package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/auth"
)

func homeWith(t *testing.T, text string) (home, path string) {
	t.Helper()
	home = t.TempDir()
	path = filepath.Join(home, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return home, path
}

// keysOf reads the keys of a home.
func keysOf(t *testing.T, home string) []auth.Key {
	t.Helper()
	cfg, err := LoadConfig(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Auth.Keys
}

func TestAddKeyAndRemoveKey_ChangeNothingElse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, added, removed string }{
		"a list": {
			before: "# mine\nserver_id: x # this\nauth:\n  # the keys\n  keys:\n    # of Ann\n    - id: ann\n      secret: a1 # old\n\nformations:\n  max_formations: 3\n",
			added: "# mine\nserver_id: x # this\nauth:\n  # the keys\n  keys:\n    # of Ann\n    - id: ann\n      secret: a1 # old\n" +
				"    - id: new\n      secret: SECRET\n\nformations:\n  max_formations: 3\n",
			removed: "# mine\nserver_id: x # this\nauth:\n  # the keys\n  keys:\n    # of Ann\n    - id: new\n      secret: SECRET\n\nformations:\n  max_formations: 3\n",
		},
		"not indented": {
			before:  "auth:\n  keys:\n  - secret: a1\n    id: ann\nserver_id: x\n",
			added:   "auth:\n  keys:\n  - secret: a1\n    id: ann\n  - id: new\n    secret: SECRET\nserver_id: x\n",
			removed: "auth:\n  keys:\n  - id: new\n    secret: SECRET\nserver_id: x\n",
		},
		"a list of flows": {
			before:  "auth:\n  keys:\n    - {id: ann, secret: a1}\n",
			added:   "auth:\n  keys:\n    - {id: ann, secret: a1}\n    - id: new\n      secret: SECRET\n",
			removed: "auth:\n  keys:\n    - id: new\n      secret: SECRET\n",
		},
		"a flow": {
			before:  "auth: {keys: [{id: ann, secret: \"ä1\"}], enabled: true}\n",
			added:   "auth: {keys: [{id: ann, secret: \"ä1\"}, {id: new, secret: SECRET}], enabled: true}\n",
			removed: "auth: {keys: [{id: new, secret: SECRET}], enabled: true}\n",
		},
		"a flow over lines": {
			before:  "auth:\n  keys: [\n    {id: ann, secret: a1},\n    {id: bob, secret: b1}\n  ]\n",
			added:   "auth:\n  keys: [\n    {id: ann, secret: a1},\n    {id: bob, secret: b1}\n  , {id: new, secret: SECRET}]\n",
			removed: "auth:\n  keys: [\n    {id: bob, secret: b1}\n  , {id: new, secret: SECRET}]\n",
		},
		"the older way": {
			before:  "auth:\n  enabled: true\n  key: ann\n  secret: a1\n  timestamp_tolerance: 10\n",
			added:   "auth:\n  keys:\n    - id: new\n      secret: SECRET\n  enabled: true\n  key: ann\n  secret: a1\n  timestamp_tolerance: 10\n",
			removed: "auth:\n  keys:\n    - id: new\n      secret: SECRET\n  enabled: true\n  timestamp_tolerance: 10\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, path := homeWith(t, tc.before)
			k, err := AddKey(home, "new")
			if err != nil {
				t.Fatal(err)
			}
			masked := func() string { return strings.ReplaceAll(readFile(t, path), string(k.Secret), "SECRET") }
			if diff := cmp.Diff(tc.added, masked()); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
			if err := RemoveKey(home, "ann"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.removed, masked()); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
				t.Errorf("mode %v, %v; want that of before", info.Mode(), err)
			}
			if left, _ := os.ReadDir(home); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestRotateKey_TheOldSecretStaysUntilItsEnd(t *testing.T) {
	t.Parallel()
	until := time.Date(2199, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	const end = `valid_until: "2199-01-02T02:04:05Z"`
	for name, tc := range map[string]struct{ before, rotated, ended string }{
		"a list": {
			before:  "auth:\n  keys:\n    # of Ann\n    - id: ann\n      secret: a1 # old\n    - {id: bob, secret: b1}\n",
			rotated: "auth:\n  keys:\n    # of Ann\n    - id: ann\n      secret: SECRET\n    - id: ann\n      secret: a1 # old\n      " + end + "\n    - {id: bob, secret: b1}\n",
			ended:   "auth:\n  keys:\n    # of Ann\n    - id: ann\n      secret: SECRET\n    - {id: bob, secret: b1}\n",
		},
		"a list of flows": {
			before:  "auth:\n  keys:\n    - {id: ann, secret: a1}\n    - id: bob\n      secret: b1\n",
			rotated: "auth:\n  keys:\n    - id: ann\n      secret: SECRET\n    - {id: ann, secret: a1, " + end + "}\n    - id: bob\n      secret: b1\n",
			ended:   "auth:\n  keys:\n    - id: ann\n      secret: SECRET\n    - id: bob\n      secret: b1\n",
		},
		"a flow": {
			before:  "auth: {keys: [{id: bob, secret: b1}, {id: ann, secret: a1}]}\n",
			rotated: "auth: {keys: [{id: bob, secret: b1}, {id: ann, secret: SECRET}, {id: ann, secret: a1, " + end + "}]}\n",
			ended:   "auth: {keys: [{id: bob, secret: b1}, {id: ann, secret: SECRET}]}\n",
		},
		"the older way": {
			before:  "auth:\n  key: ann\n  secret: a1\n",
			rotated: "auth:\n  keys:\n    - id: ann\n      secret: SECRET\n    - id: ann\n      secret: a1\n      " + end + "\n",
			ended:   "auth:\n  keys:\n    - id: ann\n      secret: SECRET\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, path := homeWith(t, tc.before)
			k, err := RotateKey(home, "ann", until)
			if err != nil {
				t.Fatal(err)
			}
			masked := func() string { return strings.ReplaceAll(readFile(t, path), string(k.Secret), "SECRET") }
			if diff := cmp.Diff(tc.rotated, masked()); diff != "" {
				t.Errorf("rotated (-want +got):\n%s", diff)
			}
			if n, err := EndOverlap(home, "ann"); n != 1 || err != nil {
				t.Errorf("ended %d secrets, %v", n, err)
			}
			if diff := cmp.Diff(tc.ended, masked()); diff != "" {
				t.Errorf("ended (-want +got):\n%s", diff)
			}
			if n, err := EndOverlap(home, "ann"); n != 0 || err != nil {
				t.Errorf("ended %d secrets again, %v", n, err)
			}
			again, err := RotateKey(home, "ann", time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.ReplaceAll(tc.ended, "SECRET", string(again.Secret)); readFile(t, path) != want {
				t.Errorf("without an overlap it is\n%swant\n%s", readFile(t, path), want)
			}
		})
	}
}

func TestEditKeys_DropsWhatHasEndedAndBoundsWhatHasNot(t *testing.T) {
	t.Parallel()
	home, _ := homeWith(t, "auth:\n  keys:\n    - {id: gone, secret: x, valid_until: \"2001-01-01T00:00:00Z\"}\n    - {id: a, secret: x}\n")
	for i := range auth.MaxSecrets - 1 {
		if _, err := RotateKey(home, "a", time.Now().Add(time.Hour)); err != nil {
			t.Fatalf("rotation %d: %v", i, err)
		}
	}
	if keys := keysOf(t, home); len(keys) != auth.MaxSecrets || keys[0].ID != "a" || !keys[0].Until.IsZero() {
		t.Errorf("keys %v", keys)
	}
	if _, err := RotateKey(home, "a", time.Now().Add(time.Hour)); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "7 older secrets") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := RotateKey(home, "a", time.Time{}); err != nil {
		t.Errorf("without an overlap: %v", err)
	}
	if err := RemoveKey(home, "a"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("removing all: %v", err)
	}
}

func TestAddKey_WhereThereWasNone(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no file to speak of": "", "no auth": "server_id: x\n", "empty auth": "auth:\n\nserver_id: x\n", "empty keys": "auth:\n  keys:\n  enabled: true\n",
		"empty list": "auth:\n  keys: []\n", "empty flow": "auth: {}\n", "flow": "auth: {enabled: true}\n", "no line end": "server_id: x",
		"another of auth": "auth:\n  # on\n  enabled: true\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, path := homeWith(t, text)
			k, err := AddKey(home, "")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(k.ID, "svc_pk_") || len(k.Secret) != len("svc_sk_")+56 {
				t.Errorf("key %s with a secret of %d bytes", k.ID, len(k.Secret))
			}
			if keys := keysOf(t, home); len(keys) != 1 || keys[0] != k {
				t.Errorf("keys %v in:\n%s", keys, readFile(t, path))
			}
			if err := RemoveKey(home, k.ID); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "only management key") {
				t.Errorf("removing the last: %v", err)
			}
		})
	}
}

func TestEditKeys_RefusesWhatItCannotDoAndLeavesTheFile(t *testing.T) {
	t.Parallel()
	const text = "auth: {keys: [{id: a, secret: b}, {id: c, secret: d}]}\n"
	home, path := homeWith(t, text)
	second := func(_ any, err error) error { return err }
	for name, tc := range map[string]struct {
		err  error
		kind fault.Kind
	}{
		"taken":          {second(AddKey(home, "a")), fault.Conflict},
		"no id":          {second(AddKey(home, "a, b")), fault.Invalid},
		"unknown":        {RemoveKey(home, "x"), fault.NotFound},
		"rotate unknown": {second(RotateKey(home, "x", time.Time{})), fault.NotFound},
		"end unknown":    {second(EndOverlap(home, "x")), fault.NotFound},
		"no home":        {second(AddKey(t.TempDir(), "a")), fault.NotFound},
	} {
		if fault.KindOf(tc.err) != tc.kind {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
	if got := readFile(t, path); got != text {
		t.Errorf("the file is now:\n%s", got)
	}
	// What it may not be able to edit: anchors, a flow that ends with a comma, ids
	// that YAML reads otherwise.
	for _, text := range []string{
		"x: &k\n  - {id: a, secret: b}\nauth:\n  keys: *k\n", "auth: {keys: [{id: a, secret: b},]}\n", "{auth: {enabled: true}}\n",
		"auth:\n  key: a\n  secret: |\n    b\n", "auth:\n  keys:\n    -\n      id: a\n      secret: b\n", "auth:\r\n  keys:\r\n    - id: a\r\n      secret: b\r\n",
	} {
		home, path := homeWith(t, text)
		for _, change := range []func() error{
			func() error { return second(AddKey(home, "1e3")) },
			func() error { return second(RotateKey(home, "a", time.Now().Add(time.Hour))) },
			func() error { return RemoveKey(home, "1e3") },
		} {
			before := readFile(t, path)
			switch err := change(); {
			case err == nil:
				keysOf(t, home) // fails when the file cannot be read
			case readFile(t, path) != before:
				t.Errorf("%q: %v, but the file was changed:\n%s", text, err, readFile(t, path))
			case fault.KindOf(err) == fault.Internal:
				t.Errorf("%q: %v", text, err)
			}
		}
	}
}

func TestEditKeys_ThroughALink(t *testing.T) {
	t.Parallel()
	home, path := homeWith(t, "auth: {keys: [{id: a, secret: b}]}\n")
	other := t.TempDir()
	if err := os.Symlink(path, filepath.Join(other, "config.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := AddKey(other, "new"); err != nil {
		t.Fatal(err)
	}
	if keys := keysOf(t, home); len(keys) != 2 {
		t.Errorf("keys %v", keys)
	}
	if info, err := os.Lstat(filepath.Join(other, "config.yaml")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
}

func TestEditKeys_TheFileStaysItsOwners(t *testing.T) {
	t.Parallel()
	home, path := homeWith(t, "auth: {keys: [{id: a, secret: b}]}\n")
	owner := os.Geteuid()
	if owner == 0 { // as when root works on the home of a service
		owner = 65534
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := RotateKey(home, "a", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != owner {
		t.Errorf("the owner is %d, want %d", st.Uid, owner)
	}
}

func TestAddKey_ManyAtOnceAreAllKept(t *testing.T) {
	t.Parallel()
	home, _ := homeWith(t, "server_id: x\n")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := AddKey(home, fmt.Sprintf("key-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if keys := keysOf(t, home); len(keys) != 20 {
		t.Errorf("%d keys", len(keys))
	}
}

func FuzzKeyText(f *testing.F) {
	f.Add("auth:\n  keys:\n    - id: a\n      secret: b\n")
	f.Add("auth: {keys: [{id: a, secret: b}, {id: c, secret: d}]} # c\n")
	f.Add("auth:\n  key: a\n  secret: |\n    b\n")
	f.Fuzz(func(t *testing.T, text string) {
		before, err := parseText(t, text, nil)
		if err != nil {
			return
		}
		// None may panic; what they make is checked before it is written.
		for _, change := range []func(*keyText){
			func(k *keyText) { k.insertKey(len(before.Auth.Keys), auth.Key{ID: "svc_pk_new", Secret: "s"}) },
			func(k *keyText) { k.insertKey(0, auth.Key{ID: "svc_pk_new", Secret: "s"}) },
			func(k *keyText) { k.endKey(0, time.Unix(0, 0)) },
			func(k *keyText) { k.cutKey(0) },
			func(k *keyText) { k.cutKey(len(before.Auth.Keys) - 1) },
		} {
			if parsed, err := parseKeyText([]byte(text)); err == nil && len(before.Auth.Keys) > 0 {
				change(parsed)
			}
		}
	})
}

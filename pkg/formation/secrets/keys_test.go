package secrets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

func openKeys(t *testing.T, cfg KeysConfig) (*KeyRing, bool) {
	t.Helper()
	r, generated, err := OpenKeys(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r, generated
}

// reveal returns the texts of both lists.
func reveal(k *Keys) (admin, client []string) {
	for _, v := range k.Admin {
		admin = append(admin, v.Reveal())
	}
	for _, v := range k.Client {
		client = append(client, v.Reveal())
	}
	return admin, client
}

func TestOpenKeys_GeneratesOnceAndKeeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, generated := openKeys(t, KeysConfig{StateDir: dir})
	admin, client := reveal(first.Keys())
	if !generated || len(admin) != 1 || len(client) != 1 {
		t.Fatalf("generated %v, %d and %d keys", generated, len(admin), len(client))
	}
	for key, prefix := range map[string]string{admin[0]: "fma_", client[0]: "fmc_"} {
		if !strings.HasPrefix(key, prefix) || len(key) != len(prefix)+43 {
			t.Errorf("key of %d characters does not look like %s and 43", len(key), prefix)
		}
	}
	second, generated := openKeys(t, KeysConfig{StateDir: dir})
	again, _ := reveal(second.Keys())
	if generated || again[0] != admin[0] {
		t.Errorf("keys changed over a restart: generated %v", generated)
	}
	info, err := os.Stat(filepath.Join(dir, "keys"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("keys file: %v %v, want mode 0600", info, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var stored map[string]string
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"admin_key": admin[0], "client_key": client[0]}, stored); diff != "" {
		t.Error(diff)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestOpenKeys_ManifestWins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	resolve := func(_, name string) (string, bool) {
		v, ok := map[string]string{"CK": "client-key", "EMPTY": ""}[name]
		return v, ok
	}
	both, _ := openKeys(t, KeysConfig{StateDir: dir, Resolve: resolve, Server: manifest.Server{AdminKey: "plain", ClientKey: "${{ secrets.CK }}"}})
	if admin, client := reveal(both.Keys()); !cmp.Equal(admin, []string{"plain"}) || !cmp.Equal(client, []string{"client-key"}) {
		t.Fatalf("got %d and %d keys", len(admin), len(client))
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("a keys file was written for nothing: %v", entries)
	}
	one, _ := openKeys(t, KeysConfig{StateDir: dir, Resolve: resolve, Server: manifest.Server{AdminKey: "plain"}})
	if admin, client := reveal(one.Keys()); !cmp.Equal(admin, []string{"plain"}) || !strings.HasPrefix(client[0], "fmc_") {
		t.Fatalf("got %d and %d keys", len(admin), len(client))
	}
	for _, bad := range []string{"${{ secrets.EMPTY }}", "${{ secrets.NONE }}"} {
		if _, _, err := OpenKeys(KeysConfig{StateDir: dir, Resolve: resolve, Server: manifest.Server{AdminKey: bad}}); fault.NameOf(err) != "SecretsError" {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

func TestOpenKeys_RefusesADamagedFileWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"half":  `{"admin_key": "fma_hidden`,
		"type":  `{"admin_key": ["fma_hidden"]}`,
		"large": `{"admin_key": "fma_hidden"}` + strings.Repeat(" ", secretfile.MaxKeysFile),
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "keys"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := OpenKeys(KeysConfig{StateDir: dir})
		if fault.NameOf(err) != "SecretsError" || strings.Contains(fmt.Sprintf("%+v", err), "hidden") {
			t.Errorf("%s: got %v", name, err)
		}
		if kept, _ := os.ReadFile(filepath.Join(dir, "keys")); string(kept) != content {
			t.Errorf("%s: the file was replaced", name)
		}
	}
}

func TestKeyRing_TakesARotationUpWhileItRunsAndOldKeysEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	var changes []error
	r, _ := openKeys(t, KeysConfig{StateDir: dir, Now: func() time.Time { return now }, Changed: func(err error) { changes = append(changes, err) }})
	old, _ := reveal(r.Keys())

	next, err := secretfile.UpdateKeys(filepath.Join(dir, "keys"), func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		return k.Rotate(now, time.Minute), true
	})
	if err != nil {
		t.Fatal(err)
	}
	if admin, _ := reveal(r.Keys()); !cmp.Equal(admin, old) {
		t.Error("the file was looked at twice within a second")
	}
	now = now.Add(lookEvery)
	if admin, client := reveal(r.Keys()); !cmp.Equal(admin, []string{next.Admin, old[0]}) || len(client) != 2 {
		t.Errorf("after the rotation there are %d admin keys", len(admin))
	}
	// The overlap ends on time, whatever became of the file.
	if err := os.WriteFile(filepath.Join(dir, "keys"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	if admin, client := reveal(r.Keys()); !cmp.Equal(admin, []string{next.Admin}) || len(client) != 1 {
		t.Errorf("after the overlap there are %d admin keys", len(admin))
	}
	if err := os.Remove(filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	for range 3 { // a missing file is told once
		now = now.Add(lookEvery)
		if admin, _ := reveal(r.Keys()); !cmp.Equal(admin, []string{next.Admin}) {
			t.Error("the keys went with their file")
		}
	}
	if len(changes) != 3 || changes[0] != nil || changes[1] == nil || changes[2] == nil {
		t.Errorf("changes = %v", changes)
	}
}

func TestKeyRing_AKeyOfTheManifestHasNoOlderOnes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openKeys(t, KeysConfig{StateDir: dir})
	now := time.Now()
	if _, err := secretfile.UpdateKeys(filepath.Join(dir, "keys"), func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		return k.Rotate(now, time.Minute), true
	}); err != nil {
		t.Fatal(err)
	}
	r, _ := openKeys(t, KeysConfig{StateDir: dir, Server: manifest.Server{AdminKey: "plain"}})
	if admin, client := reveal(r.Keys()); !cmp.Equal(admin, []string{"plain"}) || len(client) != 2 {
		t.Errorf("%d admin and %d client keys", len(admin), len(client))
	}
}

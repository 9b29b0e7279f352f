package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
)

// plant writes a sample with two models and returns its directory.
func plant(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "from")
	files := map[string]string{
		"formation.afs":    "schema: 1.0.0\nid: hello\nllm:\n  models:\n    - text: demo/small\nagents: [one]\n",
		"agents/one.afs":   "id: one\nllm_models:\n  - text: demo/small-2\n",
		"agents/NOTES.txt": "demo/small stays\n",
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPrepare_WithoutSettingsCopiesAsItIs(t *testing.T) {
	t.Parallel()
	from, to := plant(t), filepath.Join(t.TempDir(), "dev", "hello")
	if err := prepare(from, to, settings{model: "ignored"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"formation.afs", "agents/one.afs"} {
		if got, want := read(t, to, name), read(t, from, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "secrets.enc")); !os.IsNotExist(err) {
		t.Errorf("secrets.enc without a key: %v", err)
	}
}

func TestPrepare_NamesModelEndpointAndSecret(t *testing.T) {
	t.Parallel()
	from, to := plant(t), filepath.Join(t.TempDir(), "hello")
	s := settings{key: "sk-canary", baseURL: "http://127.0.0.1:9/v1", model: "m-1"}
	for range 2 { // the second time over the first
		if err := prepare(from, to, s); err != nil {
			t.Fatal(err)
		}
	}
	manifest := read(t, to, "formation.afs")
	for _, want := range []string{"text: openai/m-1", "openai: http://127.0.0.1:9/v1", "${{ secrets.OPENAI_API_KEY }}", "id: hello"} {
		if !strings.Contains(manifest, want) {
			t.Errorf("no %q in the manifest:\n%s", want, manifest)
		}
	}
	if strings.Contains(manifest, s.key) {
		t.Error("the manifest holds the key itself")
	}
	if got := read(t, to, "agents/one.afs"); !strings.Contains(got, "text: openai/m-1\n") {
		t.Errorf("the agent still has its own model: %q", got)
	}
	if got := read(t, to, "agents/NOTES.txt"); got != "demo/small stays\n" {
		t.Errorf("a file that is no formation file was changed: %q", got)
	}
	key, err := secretfile.ReadKey(filepath.Join(to, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := secretfile.Open(filepath.Join(to, "secrets.enc"), key)
	if err != nil {
		t.Fatal(err)
	}
	if values[secretName] != s.key {
		t.Errorf("secret %s is %q, want the key", secretName, values[secretName])
	}
}

func TestPrepare_ServerWithoutKeyNeedsNoSecret(t *testing.T) {
	t.Parallel()
	from, to := plant(t), filepath.Join(t.TempDir(), "hello")
	if err := prepare(from, to, settings{baseURL: "http://127.0.0.1:9/v1"}); err != nil {
		t.Fatal(err)
	}
	manifest := read(t, to, "formation.afs")
	if strings.Contains(manifest, "api_keys") || !strings.Contains(manifest, "openai/"+defaultModel) {
		t.Errorf("want the default model and no key reference:\n%s", manifest)
	}
}

func TestPrepare_RefusesAWrongAddressAndKeepsTheOldCopy(t *testing.T) {
	t.Parallel()
	from, to := plant(t), filepath.Join(t.TempDir(), "hello")
	if err := prepare(from, to, settings{}); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"localhost:8080", "ftp://x/v1", "http://", "::"} {
		if err := prepare(from, to, settings{baseURL: address}); err == nil {
			t.Errorf("%q was accepted", address)
		}
	}
	read(t, to, "formation.afs")
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/secretfile"
)

func writeFormation(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "formation.afs"), []byte("id: hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSecrets_TheKeyOfTheEnvironmentWins(t *testing.T) {
	t.Parallel()
	dir := writeFormation(t)
	first, second := secretfile.GenerateKey(), secretfile.GenerateKey()
	env := map[string]string{"SVC_SECRETS_KEY": first.Encode()}
	s := &session{home: t.TempDir(), env: env, in: "a-value-of-the-environment\n"}
	try := func(want int, args ...string) string {
		t.Helper()
		if got := s.run(t.Context(), append(args, "--path", dir)...); got != want {
			t.Fatalf("%v: exit code %d, want %d: %s", args, got, want, s.er.String())
		}
		return s.out.String() + s.er.String()
	}
	try(0, "secrets", "set", "A")
	if _, err := os.Stat(filepath.Join(dir, ".key")); err == nil {
		t.Error("a key file was made")
	}
	if got := try(2, "secrets", "rotate"); !strings.Contains(got, "NEW,OLD") {
		t.Errorf("got %s", got)
	}
	try(2, "secrets", "rotate", "--to-store")
	env["SVC_SECRETS_KEY"] = second.Encode() + "," + first.Encode()
	try(0, "secrets", "rotate")
	env["SVC_SECRETS_KEY"] = second.Encode()
	if got := try(0, "secrets", "get", "A", "--reveal"); got != "a-value-of-the-environment\n" {
		t.Errorf("got %s", got)
	}
	env["SVC_SECRETS_KEY"] = first.Encode()
	if got := try(1, "secrets", "get", "A"); !strings.Contains(got, "the key is from SVC_SECRETS_KEY") {
		t.Errorf("got %s", got)
	}
	env["SVC_SECRETS_KEY"] = "no-key-at-all"
	if got := try(1, "secrets", "get", "A"); strings.Contains(got, "no-key-at-all") {
		t.Errorf("got %s", got)
	}
}

func TestSecrets_SetAtATerminalAsks(t *testing.T) {
	t.Parallel()
	s := &session{home: t.TempDir(), in: "typed-in-secret\n", inTTY: true}
	dir := writeFormation(t)
	if code := s.run(t.Context(), "secrets", "set", "A", "--path", dir); code != 0 || strings.Contains(s.out.String()+s.er.String(), "typed-in-secret") {
		t.Errorf("%d: %s%s", code, s.out.String(), s.er.String())
	}
	s = &session{home: t.TempDir(), in: strings.Repeat("x", secretfile.MaxValue) + "\r\n", inTTY: true}
	if code := s.run(t.Context(), "secrets", "set", "B", "--stdin", "--path", dir); code != 0 {
		t.Errorf("the largest value: %d: %s", code, s.er.String())
	}
	s.in = strings.Repeat("x", secretfile.MaxValue+1)
	if code := s.run(t.Context(), "secrets", "set", "C", "--stdin", "--path", dir); code != exitUsage {
		t.Errorf("over the limit: %d: %s", code, s.er.String())
	}
}

func TestSecrets_ChangesAtTheSameTimeAreAllThere(t *testing.T) {
	t.Parallel()
	dir := writeFormation(t)
	const writers = 6
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			s := &session{home: t.TempDir(), in: "value"}
			if code := s.run(t.Context(), "secrets", "set", fmt.Sprintf("NAME_%d", i), "--path", dir); code != 0 {
				t.Errorf("exit code %d: %s", code, s.er.String())
			}
		})
	}
	all.Wait()
	key, err := secretfile.ReadKey(filepath.Join(dir, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	if values, err := secretfile.Open(filepath.Join(dir, "secrets.enc"), key); len(values) != writers || err != nil {
		t.Errorf("%d values, %v", len(values), err)
	}
	for name, mode := range map[string]os.FileMode{".key": 0o600, "secrets.enc": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestSecrets_SetupAsksForWhatIsMissing(t *testing.T) {
	t.Parallel()
	dir := writeFormation(t)
	manifest := "schema: \"1.0.0\"\nid: hello\ndescription: Tests\nllm:\n  models: [{text: openai/gpt}]\n  api_keys: {openai: \"${{ secrets.MODEL_KEY }}\"}\n" +
		"server: {api_keys: {admin_key: \"${{ secrets.ADMIN }}\", client_key: \"${{ secrets.CLIENT }}\"}}\nagents: [{id: one, description: answers}]\n"
	if err := os.WriteFile(filepath.Join(dir, "formation.afs"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &session{home: t.TempDir(), inTTY: true, in: "typed-admin\n\n  typed-model \n"}
	setup := func(args ...string) string {
		t.Helper()
		if code := s.run(t.Context(), append([]string{"secrets", "setup", "--path", dir}, args...)...); code != 0 {
			t.Errorf("exit code %d: %s", code, s.er.String())
		}
		if all := s.out.String() + s.er.String(); strings.Contains(all, "typed-") {
			t.Errorf("a value shows: %s", all)
		}
		return s.out.String()
	}
	if got := setup(); got != "set: ADMIN, MODEL_KEY\nwithout a value: CLIENT\n" {
		t.Errorf("got %q", got)
	}
	s.in = "typed-client\n"
	if got := setup("-o", "json"); !strings.Contains(got, `"CLIENT"`) || strings.Contains(got, "ADMIN") {
		t.Errorf("got %s", got)
	}
	s.in = ""
	if got := setup(); got != "every secret that is used has a value\n" {
		t.Errorf("got %q", got)
	}
	s.in = "\ntyped-client-again\n\n"
	if got := setup("--force"); !strings.HasPrefix(got, "set: CLIENT\n") {
		t.Errorf("got %q", got)
	}
	key, err := secretfile.ReadKey(filepath.Join(dir, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := secretfile.Open(filepath.Join(dir, "secrets.enc"), key)
	want := map[string]string{"ADMIN": "typed-admin", "CLIENT": "typed-client-again", "MODEL_KEY": "typed-model"}
	if diff := cmp.Diff(want, values); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
	s.in = strings.Repeat("x", secretfile.MaxValue+1)
	if code := s.run(t.Context(), "secrets", "setup", "--path", dir, "--stdin"); code == 0 {
		t.Error("what is no line was taken")
	}
}

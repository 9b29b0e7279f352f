package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// canaries are secrets of every kind, each recognisable wherever it shows.
var canaries = map[string]string{
	"MODEL_KEY":  "canary-model-key-5f1d",
	"ADMIN_KEY":  "canary-admin-key-77c0",
	"CLIENT_KEY": "canary-client-key-3ab9",
	"UNUSED":     "canary-unused-secret-e02c",
	"CANARY_ENV": "canary-environment-91aa",
	"HIDDEN_ENV": "canary-not-allowed-4d4d",
}

// guarded is the pair with all its keys as secrets: three in secrets.enc, one
// from the environment.
func guarded(t *testing.T, url string) harness.Files {
	t.Helper()
	files := suite.Pair(t, "guarded", url).With(
		"\nserver:\n  api_keys:\n    admin_key: ${{ secrets.ADMIN_KEY }}\n    client_key: ${{ secrets.CLIENT_KEY }}\n" +
			"overlord:\n  soul: \"Your number is ${{ env.CANARY_ENV }}.\"\n")
	files["formation.afs"] = strings.Replace(files["formation.afs"], "openai: test-key", "openai: ${{ secrets.MODEL_KEY }}", 1)
	dir, key := t.TempDir(), secretfile.GenerateKey()
	sealed := filepath.Join(dir, "secrets.enc")
	values := maps.Clone(canaries)
	delete(values, "CANARY_ENV")
	delete(values, "HIDDEN_ENV")
	if err := secretfile.Save(sealed, key, values); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sealed)
	if err != nil {
		t.Fatal(err)
	}
	files["secrets.enc"], files[".key"] = string(text), key.Encode()
	return files
}

func TestSecrets_NeverShow(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{
		Formations: fewRestarts + "  env_allow: [CANARY_ENV]\n",
		Env:        []string{"CANARY_ENV=" + canaries["CANARY_ENV"], "HIDDEN_ENV=" + canaries["HIDDEN_ENV"]},
	})
	model := fakellm.Start(t, fakellm.Options{Key: canaries["MODEL_KEY"]})
	model.Add(fakellm.Rule{User: "upset", Reply: fakellm.Reply{
		// Some servers quote the key that they refuse.
		Status: http.StatusUnauthorized, Message: "Incorrect API key provided: " + canaries["MODEL_KEY"],
	}})
	files := guarded(t, model.URL())
	f := s.Deploy("guarded", files)
	shown := s.CLI("keys", "show", "guarded")
	f.AdminKey, f.ClientKey = canaries["ADMIN_KEY"], canaries["CLIENT_KEY"]
	visit(t, s, f, files)
	checkModelKnows(t, model)
	checkEnvironment(t, s, f)

	var all bytes.Buffer
	all.Write(s.HTTP.Seen())
	all.WriteString(shown.Stdout + shown.Stderr)
	for _, args := range [][]string{
		{"list"},
		{"status"},
		{"status", "-o", "json"},
		{"logs", "guarded", "-n", "10000"},
		{"list", "-o", "json"},
		{"chat", "guarded", "upset", "--key", canaries["CLIENT_KEY"]},
		{"chat", "guarded", "hi", "--key", "wrong-" + canaries["ADMIN_KEY"]},
	} {
		r := s.CLI(args...)
		all.WriteString(r.Stdout + r.Stderr)
	}
	f.Kill()
	f.UntilStatus("running")
	if code := s.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	all.WriteString(s.Out.String())
	everywhere := slices.Collect(maps.Values(canaries))
	everywhere = append(everywhere, s.Secret)
	for _, secret := range everywhere {
		if i := bytes.Index(all.Bytes(), []byte(secret)); i >= 0 {
			t.Errorf("%s shows: %s", secret, all.Bytes()[max(0, i-200):min(all.Len(), i+100)])
		}
	}
	checkFiles(t, s, everywhere)
}

// visit asks for everything that could tell a secret, faults included.
func visit(t *testing.T, s *harness.Supervisor, f *harness.Formation, files harness.Files) {
	t.Helper()
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
	s.HTTP.Must(f.Request(harness.Chat{"message": "upset", "agent_id": "poet"})).Want(t, http.StatusInternalServerError)
	s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "hello again"})).MustRest(t)
	for _, path := range []string{"/v1/status", "/v1/agents", "/v1/agents/poet", "/v1/sessions", "/v1/requests", "/v1/health", "/v1/nowhere"} {
		r := f.Read(path)
		r.Header["X-SVC-Admin-Key"] = f.AdminKey
		s.HTTP.Must(r)
		r.Header = map[string]string{"X-SVC-Admin-Key": "wrong-" + f.AdminKey, "X-SVC-Client-Key": "wrong-" + f.ClientKey}
		s.HTTP.Must(r)
	}
	for _, path := range []string{"", "/guarded", "/guarded/logs?lines=1000", "/nobody"} {
		base, query, _ := strings.Cut("/rpc/formations"+path, "?")
		r := harness.Request{Method: http.MethodGet, URL: s.URL + base + "?" + query, Header: s.Signing(http.MethodGet, base, nil).ThreeHeaders()}
		s.HTTP.Must(r)
		r.Header["X-SVC-Key-ID"] = s.Secret // a mix-up that happens
		s.HTTP.Must(r).Want(t, http.StatusUnauthorized)
	}
	// A key that does not fit, and secrets that are damaged or missing.
	for _, change := range []map[string]string{
		{".key": secretfile.GenerateKey().Encode()},
		{"secrets.enc": "damaged"},
		{".key": canaries["UNUSED"]},
		{"agents/poet.afs": files["agents/poet.afs"] + "\nbroken: ${{ secrets.NOT_THERE }}\nsystem_message: ${{ secrets.UNUSED"},
	} {
		broken := files.With("")
		maps.Copy(broken, change)
		broken["formation.afs"] = strings.Replace(broken["formation.afs"], "id: guarded", "id: broken", 1)
		reply := s.HTTP.Must(s.DeployRequest("broken", broken.Bundle(t, "broken")))
		if reply.Status != http.StatusBadRequest {
			t.Errorf("a bundle with other %v: %d %s", slices.Collect(maps.Keys(change)), reply.Status, reply.Body)
		}
	}
}

// checkModelKnows proves that the secrets were there: the model was asked with
// its key and the soul had its number.
func checkModelKnows(t *testing.T, model *fakellm.Server) {
	t.Helper()
	calls := model.Calls()
	if len(calls) == 0 || calls[0].Authorization != "Bearer "+canaries["MODEL_KEY"] {
		t.Fatal("the model was asked without its key")
	}
	if !slices.ContainsFunc(calls, func(c fakellm.Call) bool { return strings.Contains(c.Body, canaries["CANARY_ENV"]) }) {
		t.Error("no model call has the soul with its value from the environment")
	}
	for _, c := range calls {
		for _, name := range []string{"ADMIN_KEY", "CLIENT_KEY", "UNUSED", "HIDDEN_ENV"} {
			if strings.Contains(c.Body, canaries[name]) {
				t.Errorf("the model was told %s", name)
			}
		}
	}
}

// checkEnvironment looks at what the child has got from the supervisor.
func checkEnvironment(t *testing.T, s *harness.Supervisor, f *harness.Formation) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", f.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{canaries["HIDDEN_ENV"], s.Secret, s.KeyID} {
		if bytes.Contains(text, []byte(hidden)) {
			t.Errorf("the child's environment holds %s", hidden)
		}
	}
}

// checkFiles searches every file of the home but those that are there to hold
// a secret, which only their owner may read.
func checkFiles(t *testing.T, s *harness.Supervisor, secrets []string) {
	t.Helper()
	holders := map[string]bool{"config.yaml": true, "formations/guarded/versions/1/.key": true}
	if info, err := os.Stat(s.Home); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the home is open to others: %v, %v", info.Mode(), err)
	}
	err := filepath.WalkDir(s.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(s.Home, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if holders[rel] {
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %o", rel, info.Mode().Perm())
			}
			return nil
		}
		text, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s holds %s", rel, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

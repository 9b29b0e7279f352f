package e2e

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
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
	"MCP_TOKEN":  "canary-\"tool\\token\"-1b6e",
	"CANARY_ENV": "canary-environment-91aa",
	"HIDDEN_ENV": "canary-not-allowed-4d4d",
}

// overTheAPI are secrets that an administrator sets; the second replaces the
// first.
var overTheAPI = []string{"canary-set-by-admin-08dd", "canary-set-again-<b>&-61f2"}

// guarded is the pair with all its keys as secrets: in secrets.enc, and one from
// the environment. It has a tool server with a secret of its own, and logs each
// request.
func guarded(t *testing.T, url string) harness.Files {
	t.Helper()
	files := suite.Pair(t, "guarded", url).With(
		"\nserver:\n  access_log: true\n  api_keys:\n    admin_key: ${{ secrets.ADMIN_KEY }}\n    client_key: ${{ secrets.CLIENT_KEY }}\n" +
			"overlord:\n  soul: \"Your number is ${{ env.CANARY_ENV }}.\"\nmcp:\n  servers:\n    - tools\n")
	files["mcp/tools.afs"] = "schema: \"1.0.0\"\nid: tools\ndescription: Has a secret.\ntype: command\ncommand: /bin/false\n" +
		"auth:\n  type: env\n  TOOL_TOKEN: ${{ secrets.MCP_TOKEN }}\n"
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
	model.Add(fakellm.Rule{User: "confused", Reply: fakellm.Reply{
		// Others quote what they were sent, or what stands beside it in their settings.
		Status: http.StatusBadRequest, Message: "no route for " + url.QueryEscape(canaries["MCP_TOKEN"]) + " with " + canaries["UNUSED"] +
			" and Authorization " + base64.StdEncoding.EncodeToString([]byte("me:"+canaries["UNUSED"])),
	}})
	files := guarded(t, model.URL())
	f := s.Deploy("guarded", files)
	shown := s.CLI("keys", "show", "guarded")
	f.AdminKey, f.ClientKey = canaries["ADMIN_KEY"], canaries["CLIENT_KEY"]
	visit(t, s, f, files)
	visitSecrets(t, s, f)
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
		{"audit", "-n", "1000"},
		{"audit", "-o", "json", "-n", "1000"},
		{"config", "show"},
		{"doctor"},
		{"chat", "guarded", "upset", "--key", canaries["CLIENT_KEY"]},
		{"chat", "guarded", "hi", "--key", "wrong-" + canaries["ADMIN_KEY"]},
	} {
		r := s.CLI(args...)
		if r.Code == 2 {
			t.Errorf("%v: %s", args, r.Stderr)
		}
		all.WriteString(r.Stdout + r.Stderr)
	}
	all.Write(downloaded(t, s))
	f.Kill()
	f.UntilStatus("running")
	if code := s.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	all.WriteString(s.Out.String())
	everywhere := slices.Collect(maps.Values(canaries))
	everywhere = append(append(everywhere, overTheAPI...), s.Secret)
	everywhere = append(everywhere, `canary-\"tool`, "canary-set-again", url.QueryEscape(canaries["MCP_TOKEN"])) // as JSON and addresses have them
	everywhere = append(everywhere, base64.StdEncoding.EncodeToString([]byte("me:" + canaries["UNUSED"]))[6:30])
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
	s.HTTP.Must(f.Request(harness.Chat{"message": "confused", "agent_id": "poet", "request_id": "confused"})).Want(t, http.StatusInternalServerError)
	s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "confused", "agent_id": "poet", "session_id": "sess_confused", "request_id": "confused-stream"})).MustRest(t)
	for _, path := range []string{
		"/v1/config", "/v1/formation", "/v1/overlord", "/v1/overlord/soul", "/v1/llm/settings", "/v1/async",
		"/v1/mcp", "/v1/mcp/servers", "/v1/mcp/servers/tools", "/v1/mcp/tools", "/v1/status", "/v1/agents", "/v1/agents/poet", "/v1/sessions", "/v1/requests", "/v1/health", "/v1/nowhere",
		"/v1/requests/confused", "/v1/requests/confused/trace", "/v1/requests/confused-stream", "/v1/requests/confused-stream/trace",
		"/v1/sessions/sess_confused/messages",
	} {
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

// visitSecrets changes secrets as an administrator does, right and wrong.
func visitSecrets(t *testing.T, s *harness.Supervisor, f *harness.Formation) {
	t.Helper()
	ask := func(method, path string, body any, status int) harness.Reply {
		t.Helper()
		return s.HTTP.Must(harness.Request{
			Method: method, URL: f.Own() + path, Body: body, Header: map[string]string{"X-SVC-Admin-Key": f.AdminKey},
		}).Want(t, status)
	}
	list := ask(http.MethodGet, "/v1/secrets", nil, http.StatusOK)
	if got := list.Int("data.count"); got != 5 {
		t.Errorf("there are %d secrets", got)
	}
	for name := range canaries {
		ask(http.MethodGet, "/v1/secrets/"+name, nil, map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[strings.HasSuffix(name, "_ENV")])
	}
	ask(http.MethodPost, "/v1/secrets", harness.Chat{"key": "by admin", "value": overTheAPI[0]}, http.StatusCreated)
	ask(http.MethodPost, "/v1/secrets", harness.Chat{"key": "BY_ADMIN", "value": overTheAPI[0]}, http.StatusConflict)
	ask(http.MethodPost, "/v1/secrets", harness.Chat{"key": []string{overTheAPI[0]}, "value": overTheAPI[0]}, http.StatusUnprocessableEntity)
	ask(http.MethodPut, "/v1/secrets/by_admin", harness.Chat{"value": overTheAPI[1]}, http.StatusOK)
	ask(http.MethodDelete, "/v1/secrets/MODEL_KEY", nil, http.StatusConflict)
	ask(http.MethodPost, "/v1/secrets/reload", nil, http.StatusOK)
	for _, secret := range append(overTheAPI, canaries["MODEL_KEY"], canaries["MCP_TOKEN"]) {
		// Somebody takes a value for an id: it is in the access log.
		path := url.PathEscape(secret)
		ask(http.MethodGet, "/v1/agents/"+path, nil, http.StatusNotFound)
		ask(http.MethodGet, "/v1/nowhere/"+path+"?key="+url.QueryEscape(secret), nil, http.StatusNotFound)
		ask(http.MethodDelete, "/v1/requests/"+path, nil, http.StatusNotFound)
	}
	for _, path := range []string{"/v1/config", "/v1/audit", "/v1/llm/settings", "/v1/mcp", "/v1/mcp/servers", "/v1/usage", "/v1/secrets"} {
		s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: f.Own() + path, Header: map[string]string{"X-SVC-Admin-Key": f.AdminKey}})
	}
	harness.Until(t, "the access log shows that it was asked for a secret", func() bool {
		text, err := os.ReadFile(filepath.Join(s.Home, "logs", "guarded-out.log"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(text, []byte("/v1/agents/[redacted]"))
	})
	harness.Until(t, "the changes are in the audit", func() bool {
		return strings.Contains(s.CLI("audit", "-n", "1000").Stdout, "secret.reload")
	})
}

// downloaded returns what is in the zip file of the formation, its databases
// included, without the files that are there to hold secrets.
func downloaded(t *testing.T, s *harness.Supervisor) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "guarded.zip")
	if r := s.CLI("download", "guarded", "--include-db", "-f", file); r.Code != 0 {
		t.Fatalf("download: %d %s", r.Code, r.Stderr)
	}
	in, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var all bytes.Buffer
	for _, f := range in.File {
		content, err := f.Open()
		if err == nil {
			_, err = all.ReadFrom(content)
		}
		if err != nil {
			t.Fatal(err)
		}
		content.Close()
	}
	if !bytes.Contains(all.Bytes(), []byte("SQLite format 3")) {
		t.Error("the download has no database")
	}
	return all.Bytes()
}

// TestSecrets_ChangesServeAtOnceAndHoldOverRestartsAndUpdates changes the key of a model until
// the model takes it.
func TestSecrets_ChangesServeAtOnceAndHoldOverRestartsAndUpdates(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{
		Formations: fewRestarts + "  env_allow: [CANARY_ENV]\n", Env: []string{"CANARY_ENV=x"},
	})
	model := fakellm.Start(t, fakellm.Options{Key: "the-key-of-later"})
	files := guarded(t, model.URL())
	f := s.Deploy("guarded", files)
	f.AdminKey, f.ClientKey = canaries["ADMIN_KEY"], canaries["CLIENT_KEY"]
	admin := map[string]string{"X-SVC-Admin-Key": f.AdminKey}
	s.HTTP.Must(f.Request(harness.Chat{"message": "hello", "agent_id": "poet"})).Want(t, http.StatusInternalServerError)
	for method, body := range map[string]harness.Chat{
		http.MethodPut + " /MODEL_KEY": {"value": "the-key-of-later"}, http.MethodPost + " ": {"key": "EXTRA", "value": "an-extra-secret"},
		http.MethodDelete + " /UNUSED": nil,
	} {
		method, path, _ := strings.Cut(method, " ")
		if reply := s.HTTP.Must(harness.Request{Method: method, URL: f.Own() + "/v1/secrets" + path, Body: body, Header: admin}); reply.Status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, reply.Status, reply.Body)
		}
	}
	check := func(when string) {
		t.Helper()
		f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
		reply := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: f.Own() + "/v1/secrets", Header: admin})
		if reply.Text("data.secrets.EXTRA") != "an-e••••••••cret" || reply.Get("data.secrets.UNUSED") != nil || reply.Int("data.count") != 5 {
			t.Errorf("%s: %s", when, reply.Body)
		}
	}
	check("at once")
	if r := s.CLI("restart", "guarded"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	check("after a restart")
	f.Kill()
	f.UntilStatus("running")
	check("after kill -9")
	if reply := s.Update("guarded", files.Version("2.0.0")); reply.Status != http.StatusOK {
		t.Fatalf("update: %d %s", reply.Status, reply.Body)
	}
	check("after an update")
	others := guarded(t, model.URL())
	others["formation.afs"] = strings.Replace(others["formation.afs"], "id: guarded", "id: other", 1)
	other := s.Deploy("other", others)
	if reply := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: other.Own() + "/v1/secrets", Header: admin}); reply.Get("data.secrets.EXTRA") != nil || reply.Int("data.count") != 5 {
		t.Errorf("another formation: %s", reply.Body)
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

package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

func TestFaults_SpeakTheErrorVocabulary(t *testing.T) {
	t.Parallel()
	_, _, err := manifest.Parse("formation.afs", []byte(head+"async: {mode: atuo}\nagents: [x]\n"))
	e := fault.From(fmt.Errorf("deploy hello: %w", err))
	if e.Kind != fault.Invalid || e.Name != "ParseError" {
		t.Errorf("fault is %v %q", e.Kind, e.Name)
	}
	want := `formation.afs:4:15: async.mode: "atuo" is not a mode (one of auto, sync, async); did you mean "auto"?
formation.afs:5:10: agents[0]: agents/x.afs (or .yaml, .yml) does not exist`
	if diff := cmp.Diff(want, e.Message); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	items, ok := e.Data["validation_errors"].([]map[string]any)
	if !ok || len(items) != 2 {
		t.Fatalf("validation_errors is %v", e.Data["validation_errors"])
	}
	got, err := json.Marshal(items[0])
	if err != nil {
		t.Fatal(err)
	}
	wantItem := `{"column":15,"error":"value.enum","field":"async.mode","file":"formation.afs","line":4,` +
		`"msg":"\"atuo\" is not a mode (one of auto, sync, async)","suggestion":"auto","text":"atuo"}`
	if diff := cmp.Diff(wantItem, string(got)); diff != "" {
		t.Errorf("item (-want +got):\n%s", diff)
	}
}

func TestFaults_NeverShowSecrets(t *testing.T) {
	t.Parallel()
	const secret = "sk-do-not-show"
	src := head + `
server: {api_keys: {admin_key: [sk-do-not-show], client_key: "sk-do-not-show", other: sk-do-not-show}, auth: sk-do-not-show}
llm:
  api_keys: sk-do-not-show
  endpoints: {openai: "ftp://user:sk-do-not-show@host", lab: "http://u:sk-do-not-show@h?x"}
  models: [{text: x, api_key: {a: sk-do-not-show}}, {vision: demo/hello, api_key: sk-do-not-show}]
async: {webhook_secret: sk-do-not-show}
rce: {token: sk-do-not-show}
agents: [a]
`
	_, warnings, err := manifest.Parse("formation.afs", []byte(src))
	if err == nil || len(warnings) < 5 {
		t.Fatalf("faults %v, warnings %v", err, warnings)
	}
	shown, jsonErr := json.Marshal([]any{warnings, fault.From(err).Data, err.Error()})
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if strings.Contains(string(shown), secret) {
		t.Errorf("a secret is shown: %s", shown)
	}
}

// The same for every other kind of file: whatever is wrong around a secret, the
// secret is not shown.
func TestFaults_NeverShowSecretsOfAnyFile(t *testing.T) {
	t.Parallel()
	const secret = "sk-do-not-show"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"formation.afs": head + `
async: {webhook_url: "example.com/hook?token=SECRET", webhook_secret: [SECRET]}
rce: {url: "ftp://u:SECRET@host", token: {a: SECRET}}
user_credentials: {encryption: {key: [SECRET], salt: [SECRET]}, encryption_key: SECRET}
memory: {persistent: {connection_string: "mysql:SECRET://db"}, working: {remote: {url: "tcp://u:SECRET@db"}}}
logging: {conversation: {streams: [{transport: stdout, auth: {type: bearer, token: [SECRET]}}]}}
a2a: {inbound: {auth: {type: SECRET2, secret: SECRET}}, outbound: {services: [{id: s, url: "//u:SECRET@h", auth: {type: hmac, secret: [SECRET]}}]}}
coding: {client: x, env: {API_KEY: [SECRET]}}
mcp: {servers: [files]}
agents:
- {id: a, name: A, description: b, mcp_servers: [{id: own, type: http, endpoint: "x?key=SECRET", auth: {type: basic, username: u, password: [SECRET]}}],
   knowledge: {sources: [{url: "nope://u:SECRET@h", auth: {type: aws, secret_access_key: [SECRET]}}]}}
`,
		"mcp/files.afs":          "schema: \"1.0.0\"\nid: files\ndescription: x\ntype: command\ncommand: f\nenv: {API_KEY: SECRET, TOKEN: [SECRET]}\nauth: {type: env, A_TOKEN: SECRET, B: [SECRET]}\n",
		"transformers/pager.yml": "endpoint: {url: \"x?key=SECRET\"}\nauth: {type: header, header_name: X, header_value: [SECRET]}\n",
		"triggers/alert.md":      "---\nwebhook: \"ftp://u:SECRET@h\"\n---\nx",
	} {
		write(t, dir, name, []byte(strings.ReplaceAll(strings.ReplaceAll(text, "SECRET2", "none"), "SECRET", secret)))
	}
	_, warnings, err := manifest.Load(dir)
	var faults *manifest.Faults
	if !errors.As(err, &faults) || len(*faults) < 15 || len(warnings) < 5 {
		t.Fatalf("faults %v, warnings %v", err, warnings)
	}
	shown, jsonErr := json.Marshal([]any{warnings, fault.From(err).Data, err.Error()})
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if at := strings.Index(string(shown), secret); at >= 0 {
		t.Errorf("a secret is shown: %s", shown[max(0, at-200):at+len(secret)])
	}
}

func TestFaults_AreCutAtTwoHundred(t *testing.T) {
	t.Parallel()
	_, warnings, err := manifest.Parse("formation.afs", []byte(
		head+"server:\n"+numbered("  k%d: 1\n", 300)+"agents:\n"+numbered("  - missing%d\n", 300)))
	var faults *manifest.Faults
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	if n := len(*faults); n != 201 || (*faults)[200].Message != "100 more faults are not listed" {
		t.Errorf("%d faults, the last is %v", n, (*faults)[n-1])
	}
	if n := len(warnings); n != 201 || warnings[200].Message != "100 more warnings are not listed" {
		t.Errorf("%d warnings, the last is %v", n, warnings[n-1])
	}
}

func numbered(line string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

func TestFind_TakesTheNamesInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := manifest.Find(dir); fault.NameOf(err) != "ParseError" {
		t.Errorf("without a manifest: %v", err)
	}
	for _, name := range []string{"formation.yml", "formation.yaml", "formation.afs"} {
		write(t, dir, name, nil)
		if got, err := manifest.Find(dir); err != nil || got != filepath.Join(dir, name) {
			t.Errorf("Find = %q, %v; want %s", got, err, name)
		}
	}
	if _, err := manifest.Find(filepath.Join(dir, "formation.afs")); err == nil {
		t.Error("found a manifest in a file")
	}
}

func TestLoad_ReadsASingleFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "flat.json", []byte("{\n\t\"schema\": \"1.0.0\", \"id\": \"hello\",\n\t\"description\": \"x\",\n\t\"agents\": [{\"id\": \"a\", \"name\": \"a\", \"description\": \"b\"}]\n}\n"))
	f, _, err := manifest.Load(filepath.Join(dir, "flat.json"))
	if err != nil || f.ID != "hello" {
		t.Errorf("formation %v, error %v", f, err)
	}
	if _, _, err := manifest.Load(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent directory: %v", err)
	}
}

func TestCheckID_TellsWhy(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"abc", "a-b", "0a0", strings.Repeat("a", 50)} {
		if err := manifest.CheckID(id); err != nil {
			t.Errorf("CheckID(%q) = %v", id, err)
		}
	}
	for _, id := range []string{"", "ab", "-ab", "ab-", "Abc", "a_b", "a/b", "../a", "abc\n", strings.Repeat("a", 51), "rpc", "all"} {
		if err := manifest.CheckID(id); fault.KindOf(err) != fault.Invalid {
			t.Errorf("CheckID(%q) = %v", id, err)
		}
	}
}

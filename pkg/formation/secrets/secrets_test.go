package secrets

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

var refs = []manifest.Ref{
	{Kind: manifest.KindSecret, Name: "openai_api_key", File: "formation.afs", Line: 7, Col: 13, Key: "llm.api_keys.openai"},
	{Kind: manifest.KindEnv, Name: "REGION", File: "agents/a.afs", Line: 3, Col: 2, Key: "description"},
	{Kind: manifest.KindUser, Name: "github", File: "agents/a.afs", Line: 9, Col: 1},
}

func bundle(t *testing.T, values map[string]string) (dir string, key secretfile.Key) {
	t.Helper()
	dir, key = t.TempDir(), secretfile.GenerateKey()
	if err := secretfile.Save(filepath.Join(dir, "secrets.enc"), key, values); err != nil {
		t.Fatal(err)
	}
	return dir, key
}

func env(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

func TestOpen_ResolvesFromFileAndEnvironment(t *testing.T) {
	t.Parallel()
	dir, key := bundle(t, map[string]string{"OPENAI_API_KEY": "sk-1"})
	other := secretfile.GenerateKey()
	if err := secretfile.SaveKey(filepath.Join(dir, ".key"), key); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"key file":             {Dir: dir},
		"handed down":          {Dir: dir, Key: key.Encode()},
		"handed down with eol": {Dir: dir, Key: key.Encode() + "\n"},
	} {
		cfg.Env = env(map[string]string{"REGION": "north"})
		s, err := Open(cfg, refs)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := manifest.Expand("${{ secrets.OPENAI_API_KEY }} ${{ secrets.openai_api_key }} ${{ env.REGION }}", s.Resolve)
		if want := "sk-1 sk-1 north"; got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
		if _, ok := s.Resolve(manifest.KindUser, "github"); ok {
			t.Errorf("%s: a user credential was resolved at load", name)
		}
	}
	if _, err := Open(Config{Dir: dir, Key: other.Encode()}, refs[:1]); fault.NameOf(err) != "SecretsError" {
		t.Errorf("a key handed down must win over .key: got %v", err)
	}
}

// TestOpen_TellsEverySecretAtOnce: whoever hears of values makes a table of all
// that it knows, so that one call for each would take minutes.
func TestOpen_TellsEverySecretAtOnce(t *testing.T) {
	t.Parallel()
	values := map[string]string{}
	for i := range 1000 {
		values[fmt.Sprintf("NAME_%d", i)] = fmt.Sprintf("value-%d", i)
	}
	dir, key := bundle(t, values)
	calls, told := 0, map[string]bool{}
	_, err := Open(Config{
		Dir: dir, Key: key.Encode(), Env: env(map[string]string{"REGION": "north-east", "CRM_TOKEN": "crm-value", "HEADER": "header-value"}),
		Known: func(some ...string) {
			calls++
			for _, value := range some {
				told[value] = true
			}
		},
	}, []manifest.Ref{
		{Kind: manifest.KindSecret, Name: "NAME_1", File: "formation.afs", Line: 1, Col: 1},
		{Kind: manifest.KindEnv, Name: "REGION", File: "mcp/crm.afs", Key: "parameters.region"},
		{Kind: manifest.KindEnv, Name: "CRM_TOKEN", File: "mcp/crm.afs", Key: "args[1]"},
		{Kind: manifest.KindEnv, Name: "HEADER", File: "mcp/crm.afs", Key: "headers.Authorization"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls > 3 || len(told) != 1002 || !told["value-999"] || !told["crm-value"] || !told["header-value"] || told["north-east"] {
		t.Errorf("%d values in %d calls", len(told), calls)
	}
}

func TestOpen_NamesEveryMissingPlaceholderWithItsPlace(t *testing.T) {
	t.Parallel()
	dir, key := bundle(t, map[string]string{"OTHER": "hidden-value"})
	_, err := Open(Config{Dir: dir, Key: key.Encode()}, refs)
	f := fault.From(err)
	if f.Kind != fault.Invalid || f.Name != "SecretsError" {
		t.Fatalf("got %v %q", f.Kind, f.Name)
	}
	want := "2 placeholder(s) without a value:\n" +
		"formation.afs:7:13: ${{ secrets.openai_api_key }}: secrets.enc has no OPENAI_API_KEY\n" +
		"agents/a.afs:3:2: ${{ env.REGION }}: the environment has no allowed variable REGION; set it and list it in formations.env_allow"
	if diff := cmp.Diff(want, f.Message); diff != "" {
		t.Error(diff)
	}
	if n := len(f.Data["missing"].([]map[string]any)); n != 2 {
		t.Errorf("data names %d, want 2", n)
	}
}

func TestOpen_TellsWhatIsWrongWithTheFile(t *testing.T) {
	t.Parallel()
	dir, _ := bundle(t, map[string]string{"OPENAI_API_KEY": "hidden-value"})
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"no file":       {Config{Dir: t.TempDir()}, "there is no secrets.enc"},
		"no key":        {Config{Dir: dir}, "secrets.enc has no key"},
		"no key at all": {Config{Dir: dir, Key: "nonsense"}, "SVC_SECRETS_KEY is no key"},
		"wrong key":     {Config{Dir: dir, Key: secretfile.GenerateKey().Encode()}, "secrets.enc"},
	} {
		_, err := Open(tt.cfg, refs[:1])
		if fault.NameOf(err) != "SecretsError" || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hidden-value") ||
			strings.Contains(err.Error(), "nonsense") {
			t.Errorf("%s: got %q, want %q in it and no secret", name, err, tt.want)
		}
	}
}

func TestOpen_WithoutPlaceholdersNeedsNoFile(t *testing.T) {
	t.Parallel()
	dir, _ := bundle(t, map[string]string{"A": "b"}) // its key is nowhere
	if _, err := Open(Config{Dir: dir}, refs[2:]); err != nil {
		t.Fatal(err)
	}
}

func TestValue_NeverPrints(t *testing.T) {
	t.Parallel()
	v := NewValue("s3cret")
	type holder struct {
		V   Value
		Map map[string]Value
	}
	h := holder{v, map[string]Value{"k": v}}
	js, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %+v %#v %v", v, v, v, v, v, v, v, h, h, h, &h) + string(js) +
		v.String() + v.GoString()
	if strings.Contains(text, "s3cret") || strings.Contains(text, "733363726574") {
		t.Errorf("the value got out: %s", text)
	}
	if !v.Equal("s3cret") || v.Equal("s3cre") || v.Equal("") || (Value{}).Equal("") {
		t.Error("Equal is wrong")
	}
}

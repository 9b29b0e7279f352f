package manifest_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentformation/service/pkg/manifest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each txtar file in testdata is a bundle with its expected outcome in the
// file "want": the warnings, then the faults or the normal form.
func TestLoad_GivesTheNormalFormOfValidBundles(t *testing.T) { golden(t, "valid") }
func TestLoad_NamesEveryFaultOfBrokenBundles(t *testing.T)   { golden(t, "broken") }

func golden(t *testing.T, kind string) {
	t.Parallel()
	for _, file := range goldenFiles(t, kind) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir, want := unpack(t, ar)
			f, warnings, err := manifest.Load(dir)
			if broken := kind == "broken"; broken != (err != nil) {
				t.Errorf("broken is %v, error is %v", broken, err)
			}
			got := outcome(t, f, warnings, err)
			if *update {
				rewrite(t, file, ar, got)
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func goldenFiles(t *testing.T, kind string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files of kind %s: %v", kind, err)
	}
	return files
}

// unpack writes the bundle and returns what is expected of it.
func unpack(t *testing.T, ar *txtar.Archive) (dir, want string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range ar.Files {
		if file.Name == "want" {
			want = string(file.Data)
			continue
		}
		write(t, dir, file.Name, file.Data)
	}
	return dir, want
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	at := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func outcome(t *testing.T, f *manifest.Formation, warnings []manifest.Warning, err error) string {
	t.Helper()
	var b strings.Builder
	for _, w := range warnings {
		b.WriteString("warning: " + w.String() + " [" + string(w.Rule) + "]\n")
	}
	if err != nil {
		var faults *manifest.Faults
		if !errors.As(err, &faults) {
			t.Fatalf("error is %T: %v", err, err)
		}
		for _, fault := range *faults {
			b.WriteString("fault: " + fault.String() + " [" + string(fault.Rule) + "]\n")
		}
		return b.String()
	}
	for _, ref := range f.Refs() {
		b.WriteString("ref: " + ref.String() + " at " + ref.Key + "\n")
	}
	normal, err := json.MarshalIndent(changed(asJSON(t, baseline(t)), asJSON(t, f)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	b.Write(normal)
	return b.String() + "\n"
}

// baseline is a formation with nothing that could be left out.
func baseline(t *testing.T) *manifest.Formation {
	t.Helper()
	f, _, err := manifest.Parse("formation.afs", []byte(head+"agents: [{id: a, description: b}]"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func asJSON(t *testing.T, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// changed returns what differs from base: blocks are cut to their changed
// keys, everything else is whole.
func changed(base, v any) any {
	was, ok := base.(map[string]any)
	is, both := v.(map[string]any)
	if !ok || !both {
		return v
	}
	out := map[string]any{}
	for key, value := range is {
		if old, has := was[key]; !has || !cmp.Equal(old, value) {
			out[key] = changed(old, value)
		}
	}
	return out
}

// The normal forms of the other tests show only what differs from this one.
func TestLoad_FillsInTheDefaults(t *testing.T) {
	t.Parallel()
	const file = "testdata/defaults.json"
	got, err := json.MarshalIndent(baseline(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func rewrite(t *testing.T, file string, ar *txtar.Archive, got string) {
	t.Helper()
	out := &txtar.Archive{Comment: ar.Comment}
	for _, f := range ar.Files {
		if f.Name != "want" {
			out.Files = append(out.Files, f)
		}
	}
	out.Files = append(out.Files, txtar.File{Name: "want", Data: []byte(got)})
	if err := os.WriteFile(file, txtar.Format(out), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRules_EachHasABrokenCase(t *testing.T) {
	t.Parallel()
	shown := map[manifest.RuleID]bool{}
	for _, c := range builtCases() {
		shown[c.rule] = true
	}
	rule := regexp.MustCompile(`(?m)^(?:fault|warning): .* \[([a-z_.]+)\]$`)
	for _, kind := range []string{"valid", "broken"} {
		for _, file := range goldenFiles(t, kind) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range rule.FindAllStringSubmatch(string(data), -1) {
				shown[manifest.RuleID(m[1])] = true
			}
		}
	}
	for _, r := range manifest.Rules() {
		if !shown[r.ID] {
			t.Errorf("no case breaks the rule %s: %s", r.ID, r.Meaning)
		}
		delete(shown, r.ID)
	}
	for id := range shown {
		t.Errorf("%s is shown but no listed rule", id)
	}
}

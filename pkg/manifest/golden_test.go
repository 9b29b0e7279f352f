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
			got := outcome(t, f, warnings, err, strings.Contains(file, corpus))
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

// corpus holds formations in directories by what they are about. Their wants
// leave out what changes with every release and what repeats the input: the
// warnings about keys without effect, and the raw manifest.
const corpus = "../../test/formations/corpus"

func goldenFiles(t *testing.T, kind string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{filepath.Join("testdata", kind, "*.txtar"), filepath.Join(corpus, kind, "*", "*.txtar")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of kind %s: %v", kind, err)
		}
		all = append(all, files...)
	}
	return all
}

// The corpus is as large as it was promised to be.
func TestCorpus_HasManyFormations(t *testing.T) {
	t.Parallel()
	for kind, least := range map[string]int{"valid": 60, "broken": 150} {
		if n := len(goldenFiles(t, kind)); n < least {
			t.Errorf("%d %s formations, fewer than %d", n, kind, least)
		}
	}
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

func outcome(t *testing.T, f *manifest.Formation, warnings []manifest.Warning, err error, brief bool) string {
	t.Helper()
	var b strings.Builder
	for _, w := range warnings {
		if brief && w.Rule == manifest.RuleNoEffect {
			continue
		}
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
	for _, ref := range f.LateRefs() {
		b.WriteString("late: " + ref.String() + " at " + ref.Key + "\n")
	}
	form := changed(asJSON(t, baseline(t)), asJSON(t, f))
	if m, ok := form.(map[string]any); ok && brief {
		delete(m, "Raw")
		form = dropZero(m, false)
	}
	normal, err := json.MarshalIndent(form, "", "  ")
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
	if list, ok := v.([]any); ok {
		if first, ok := base.([]any); ok && len(first) > 0 {
			for i := range list {
				list[i] = changed(first[0], list[i])
			}
		}
	}
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

// dropZero leaves out what is empty; inside lists also what is false or 0, for
// there nothing is left out because it is the default.
func dropZero(v any, inList bool) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			_, list := value.([]any)
			inList := inList || list && key != "Agents" // agents show what is not the default
			if v[key] = dropZero(value, inList); v[key] == nil {
				delete(v, key)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = dropZero(v[i], inList)
		}
	case string, bool, float64:
		if v == "" || inList && (v == false || v == 0.0) {
			return nil
		}
	}
	return v
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

// The line "rules:" above a valid formation names the rules that it keeps; the
// outcome may not speak of them.
func TestRules_EachHasAValidCase(t *testing.T) {
	t.Parallel()
	kept := map[manifest.RuleID]bool{}
	for _, file := range goldenFiles(t, "valid") {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, line, ok := strings.Cut(string(ar.Comment), "\nrules: ")
		if !ok {
			continue
		}
		_, want := unpack(t, ar)
		for id := range strings.FieldsSeq(line) {
			kept[manifest.RuleID(id)] = true
			if strings.Contains(want, "["+id+"]") {
				t.Errorf("%s breaks the rule %s which it is to keep", file, id)
			}
		}
	}
	for _, r := range manifest.Rules() {
		if !kept[r.ID] {
			t.Errorf("no valid formation keeps the rule %s: %s", r.ID, r.Meaning)
		}
		delete(kept, r.ID)
	}
	for id := range kept {
		t.Errorf("%s is kept but no listed rule", id)
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

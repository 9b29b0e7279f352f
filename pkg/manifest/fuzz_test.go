package manifest_test

import (
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentformation/service/pkg/manifest"
)

// FuzzParse holds anything against the parser: it never panics, every fault
// has a place in the file, and what it accepts is complete.
func FuzzParse(f *testing.F) {
	for _, kind := range []string{"valid", "broken"} {
		files, err := os.ReadDir("testdata/" + kind)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			ar, err := txtar.ParseFile("testdata/" + kind + "/" + file.Name())
			if err != nil {
				f.Fatal(err)
			}
			for _, part := range ar.Files {
				if part.Name != "want" {
					f.Add(part.Data)
				}
			}
		}
	}
	f.Add([]byte(mixed))
	f.Fuzz(func(t *testing.T, src []byte) {
		formation, warnings, err := manifest.Parse("formation.afs", src)
		again, _, errAgain := manifest.Parse("formation.afs", src)
		if (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Errorf("two readings differ: %v, %v", err, errAgain)
		}
		for _, w := range warnings {
			checkPlace(t, src, manifest.Fault(w))
		}
		if err != nil {
			var faults *manifest.Faults
			if !errors.As(err, &faults) || len(*faults) == 0 {
				t.Fatalf("error is %T: %v", err, err)
			}
			for _, fault := range *faults {
				checkPlace(t, src, fault)
			}
			return
		}
		if diff := cmp.Diff(formation, again, cmp.AllowUnexported(manifest.Formation{}), cmpopts.IgnoreUnexported(manifest.MCPUse{})); diff != "" {
			t.Errorf("two readings differ:\n%s", diff)
		}
		if manifest.CheckID(formation.ID) != nil || len(formation.Agents) == 0 || strings.TrimSpace(formation.Description) == "" {
			t.Errorf("accepted %+v", formation)
		}
		if _, err := json.Marshal(formation); err != nil {
			t.Errorf("the normal form is no JSON: %v", err)
		}
		for _, r := range formation.Refs() {
			checkPlace(t, src, manifest.Fault{File: r.File, Line: r.Line, Col: r.Col, Rule: manifest.RulePlaceholder})
		}
	})
}

// checkPlace proves that a fault's place is inside the file.
func checkPlace(t *testing.T, src []byte, f manifest.Fault) {
	t.Helper()
	if f.Line == 0 && f.Col == 0 && (f.Rule == manifest.RuleFileSize || f.Rule == "") {
		return
	}
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(string(src), "\ufeff"))
	lines := strings.Split(text, "\n")
	if f.File == "" || f.Line < 1 || f.Line > len(lines) || f.Col < 1 {
		t.Fatalf("no such place: %#v", f)
	}
	// The parser counts one column past the end for a value that is absent.
	if most := utf8.RuneCountInString(lines[f.Line-1]) + 2; f.Col > most {
		t.Errorf("column %d of %d: %#v", f.Col, most-2, f)
	}
}

// FuzzLoad holds whole bundles, as txtar archives, against Load: it never
// panics or hangs, every fault has a place in its file, two readings agree, and
// what it accepts is complete.
func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.txtar", corpus + "/*/*/*.txtar"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			bundle, _, _ := strings.Cut(string(data), "-- want --\n")
			f.Add([]byte(bundle))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, texts := t.TempDir(), cut(string(data))
		if len(texts) > 12 {
			return
		}
		for name, text := range texts {
			at := filepath.Join(dir, filepath.FromSlash(name))
			if strings.ContainsRune(name, 0) || os.MkdirAll(filepath.Dir(at), 0o755) != nil || os.WriteFile(at, text, 0o600) != nil {
				return // a name that no archive could hold
			}
		}
		var formation *manifest.Formation
		var warnings []manifest.Warning
		var err error
		d := processorTime(t, func() { formation, warnings, err = manifest.Load(dir) })
		if d > 10*time.Second {
			t.Errorf("took %s", d)
		}
		again, _, errAgain := manifest.Load(dir)
		if (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Fatalf("two readings differ: %v, %v", err, errAgain)
		}
		var all manifest.Faults
		if faults, ok := errors.AsType[*manifest.Faults](err); ok {
			all = *faults
		} else if err != nil {
			t.Fatalf("error is %T: %v", err, err)
		}
		for _, w := range warnings {
			all = append(all, manifest.Fault(w))
		}
		for _, fault := range all {
			if text, ok := texts[fault.File]; ok && fault.Line > 0 {
				checkPlace(t, text, fault)
			}
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(formation, again, cmp.AllowUnexported(manifest.Formation{}), cmpopts.IgnoreUnexported(manifest.MCPUse{})); diff != "" {
			t.Errorf("two readings differ:\n%s", diff)
		}
		if manifest.CheckID(formation.ID) != nil || len(formation.Agents) == 0 || strings.TrimSpace(formation.Description) == "" {
			t.Errorf("accepted %+v", formation)
		}
		if _, err := json.Marshal(formation); err != nil {
			t.Errorf("the normal form is no JSON: %v", err)
		}
	})
}

// cut splits an archive as txtar does, for any input.
func cut(archive string) map[string][]byte {
	files, name := map[string][]byte{}, ""
	for line := range strings.Lines(archive) {
		inner, starts := strings.CutPrefix(strings.TrimRight(line, "\n"), "-- ")
		inner, ends := strings.CutSuffix(inner, " --")
		if starts && ends {
			if name = path.Clean(strings.TrimSpace(inner)); !filepath.IsLocal(name) || name == "." {
				name = ""
			} else {
				files[name] = nil
			}
		} else if name != "" {
			files[name] = append(files[name], line...)
		}
	}
	return files
}

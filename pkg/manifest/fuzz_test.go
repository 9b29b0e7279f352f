package manifest_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
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
		if diff := cmp.Diff(formation, again, cmp.AllowUnexported(manifest.Formation{})); diff != "" {
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

// Package spec ties every row of the specification to the test that proves it.
// rows.yaml is the table; this test keeps it honest: a named test must exist,
// an id is used once, and a row without a test says when one comes.
package spec

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// table is rows.yaml.
type table struct {
	Topics map[string]string `yaml:"topics"`
	Rows   []row             `yaml:"rows"`
}

// row is one promise of the specification.
type row struct {
	ID      string   `yaml:"id"`
	Row     string   `yaml:"row"`
	Tests   []string `yaml:"tests"`
	Planned string   `yaml:"planned"`
}

var rowID = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*$`)

// parse reads a table; an unknown key is an error, so a typing slip in "tests"
// can not hide a row.
func parse(text []byte) (table, error) {
	var t table
	if err := yaml.UnmarshalWithOptions(text, &t, yaml.Strict()); err != nil {
		return table{}, fmt.Errorf("read the rows: %w", err)
	}
	return t, nil
}

// check returns one text per fault of t. known says which tests exist, by
// "directory.TestName".
func check(t table, known map[string]bool) []string {
	var faults []string
	seen := map[string]bool{}
	for i, r := range t.Rows {
		say := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("row %d %q: ", i+1, r.ID)+fmt.Sprintf(format, args...))
		}
		switch {
		case !rowID.MatchString(r.ID):
			say("the id must match %s", rowID)
		case seen[r.ID]:
			say("the id is used twice")
		}
		seen[r.ID] = true
		if strings.TrimSpace(r.Row) == "" {
			say("no text: quote what the specification promises")
		}
		switch {
		case len(r.Tests) == 0 && r.Planned == "":
			say("neither tests nor planned")
		case len(r.Tests) > 0 && r.Planned != "":
			say("both tests and planned; a proven row is no longer planned")
		case r.Planned != "" && t.Topics[r.Planned] == "":
			say("planned: %q is none of the topics", r.Planned)
		}
		for _, name := range r.Tests {
			if !known[name] {
				say("no test %s", name)
			}
		}
	}
	return faults
}

// knownTests finds every test function below root by parsing the sources.
// Table cases count with their function: "dir.TestName".
func knownTests(root string) (map[string]bool, error) {
	known := map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse tests: %w", err)
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && isTest(fn.Name.Name) {
				known[path.Join(filepath.ToSlash(rel))+"."+fn.Name.Name] = true
			}
		}
		return nil
	})
	return known, err
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz"))
}

// summary counts proven rows and, per topic, planned ones.
func summary(t table) string {
	proven, planned := 0, map[string]int{}
	for _, r := range t.Rows {
		if len(r.Tests) > 0 {
			proven++
		} else {
			planned[r.Planned]++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rows: %d proven, %d planned", len(t.Rows), proven, len(t.Rows)-proven)
	for _, topic := range slices.Sorted(maps.Keys(planned)) {
		fmt.Fprintf(&b, "\n  %4d %s", planned[topic], topic)
	}
	return b.String()
}

func TestRows_EveryNamedTestExists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("rows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	known, err := knownTests(repository(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range check(rows, known) {
		t.Error(fault)
	}
	t.Log(summary(rows))
}

func TestRows_FaultsOfTheTableAreCaught(t *testing.T) {
	t.Parallel()
	const head = "topics: {later: what comes}\nrows:\n"
	known := map[string]bool{"pkg/a.TestIs": true}
	tests := map[string]struct{ rows, want string }{
		"proven":      {"- {id: a.b-c, row: x, tests: [pkg/a.TestIs]}", ""},
		"planned":     {"- {id: a, row: x, planned: later}", ""},
		"gone":        {"- {id: a, row: x, tests: [pkg/a.TestWas]}", "no test pkg/a.TestWas"},
		"neither":     {"- {id: a, row: x}", "neither tests nor planned"},
		"both":        {"- {id: a, row: x, planned: later, tests: [pkg/a.TestIs]}", "both tests and planned"},
		"twice":       {"- {id: a, row: x, planned: later}\n- {id: a, row: y, planned: later}", "used twice"},
		"bad id":      {"- {id: A b, row: x, planned: later}", "the id must match"},
		"no text":     {"- {id: a, row: ' ', planned: later}", "no text"},
		"no topic":    {"- {id: a, row: x, planned: never}", "none of the topics"},
		"typing slip": {"- {id: a, row: x, test: [pkg/a.TestIs]}", "test"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := parse([]byte(head + tt.rows))
			got := strings.Join(check(rows, known), "\n")
			if err != nil {
				got = err.Error()
			}
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("want %q, got %q", tt.want, got)
			}
		})
	}
}

func TestRows_TestsAreFoundByParsing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	files := map[string]string{
		"pkg/a/a_test.go":          "package a_test\nfunc TestOne() {}\nfunc TestMain() {}\nfunc (x T) TestNot() {}\n",
		"pkg/a/a.go":               "package a\nfunc TestInNoTestFile() {}\n",
		"pkg/a/testdata/x_test.go": "not Go\n",
	}
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	known, err := knownTests(root)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, []string{"pkg/a.TestOne"}) {
		t.Errorf("found %v, want only pkg/a.TestOne", got)
	}
}

// repository returns the root of the repository, found by its go.mod.
func repository(t *testing.T) string {
	t.Helper()
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); errors.Is(err, fs.ErrNotExist) {
		t.Fatal("test/spec stands two directories below go.mod")
	}
	return root
}

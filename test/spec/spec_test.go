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
	"strconv"
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

// inventory is what can be named in a row: tests by "directory.TestName", and
// per directory the names of cases, which are texts in the test files and the
// stems of golden files.
type inventory struct {
	tests map[string]bool
	cases map[string]map[string]bool
}

// has says whether a test exists. A case may follow it: "dir.TestName/case".
func (in inventory) has(name string) bool {
	dir, rest, _ := strings.Cut(name, ".Test")
	test, sub, isCase := strings.Cut(rest, "/")
	return in.tests[dir+".Test"+test] && (!isCase || in.cases[dir][sub])
}

// check returns one text per fault of t.
func check(t table, known inventory) []string {
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
			if !known.has(name) {
				say("no test %s", name)
			}
		}
	}
	return faults
}

// takeStock finds every test function and case below root by parsing the sources.
func takeStock(root string) (inventory, error) {
	in := inventory{tests: map[string]bool{}, cases: map[string]map[string]bool{}}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != root && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir, inside, golden := strings.Cut(filepath.ToSlash(rel), "/testdata/")
		switch {
		case golden:
			in.addCase(dir, strings.TrimSuffix(path.Base(inside), path.Ext(inside)))
		case strings.HasSuffix(file, "_test.go"):
			return in.addFile(path.Dir(dir), file)
		}
		return nil
	})
	return in, err
}

func (in inventory) addCase(dir, name string) {
	if in.cases[dir] == nil {
		in.cases[dir] = map[string]bool{}
	}
	in.cases[dir][name] = true
}

func (in inventory) addFile(dir, file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse tests: %w", err)
	}
	for n := range ast.Preorder(f) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") && n.Name.Name != "TestMain" {
				in.tests[dir+"."+n.Name.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				// "go test -run" shows the spaces of a case as underscores.
				in.addCase(dir, strings.ReplaceAll(text, " ", "_"))
			}
		}
	}
	return nil
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
	known, err := takeStock(repository(t))
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
	known := inventory{tests: map[string]bool{"pkg/a.TestIs": true}, cases: map[string]map[string]bool{"pkg/a": {"a_case": true}}}
	tests := map[string]struct{ rows, want string }{
		"proven":      {"- {id: a.b-c, row: x, tests: [pkg/a.TestIs]}", ""},
		"planned":     {"- {id: a, row: x, planned: later}", ""},
		"gone":        {"- {id: a, row: x, tests: [pkg/a.TestWas]}", "no test pkg/a.TestWas"},
		"case":        {"- {id: a, row: x, tests: [pkg/a.TestIs/a_case]}", ""},
		"case gone":   {"- {id: a, row: x, tests: [pkg/a.TestIs/b_case]}", "no test pkg/a.TestIs/b_case"},
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
		"pkg/a/a_test.go":               "package a_test\nfunc TestOne() { _ = \"a case\" }\nfunc TestMain() {}\nfunc (x T) TestNot() {}\n",
		"pkg/a/a.go":                    "package a\nfunc TestInNoTestFile() {}\n",
		"pkg/a/testdata/valid/g.txtar":  "",
		"pkg/a/testdata/src/b_test.go":  "not Go\n",
		"pkg/.hidden/testdata/no.txtar": "",
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
	in, err := takeStock(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"pkg/a.TestOne": true, "pkg/a.TestOne/a_case": true, "pkg/a.TestOne/g": true, "pkg/a.TestOne/other": false,
		"pkg/a.TestMain": false, "pkg/a.TestNot": false, "pkg/a.TestInNoTestFile": false, "pkg/b.TestOne": false, "nothing": false,
	} {
		if in.has(name) != want {
			t.Errorf("has(%q) = %v, want %v", name, !want, want)
		}
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

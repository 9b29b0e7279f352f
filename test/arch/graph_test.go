// Package arch holds the import walls of the house as tests, each with its
// reason: which room may know which, how packages are named and documented,
// and what may stand at the top of the repository.
//
// It reads the sources with go/parser. A test that asks "go list" instead is
// cached by "go test" and keeps passing after a violation; files that a test
// opens itself are seen by the cache.
package arch

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is the module path; rooms are named by their directory below it.
const module = "github.com/agentformation/service"

// edge is one import, at the place where it is written.
type edge struct {
	to   string // a room ("pkg/fault") or, outside the module, an import path
	file string
	line int
	test bool // written in a _test.go file
}

// room is one package directory.
type room struct {
	dir     string
	name    string
	tests   bool // holds nothing but _test.go files
	imports []edge
	docs    []string // files that carry a package comment
}

// house is every room of a source tree, by directory.
type house map[string]*room

// readHouse parses the imports and package clauses of all Go files below root.
func readHouse(root string) (house, error) {
	h := house{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		return h.addFile(root, rel)
	})
	return h, err
}

func (h house) addFile(root, rel string) error {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, filepath.Join(root, rel), nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse %s: %w", rel, err)
	}
	dir, test := path.Dir(rel), strings.HasSuffix(rel, "_test.go")
	r := h[dir]
	if r == nil {
		r = &room{dir: dir, tests: true}
		h[dir] = r
	}
	if !test || r.name == "" {
		r.name = strings.TrimSuffix(f.Name.Name, "_test")
	}
	r.tests = r.tests && test
	if f.Doc != nil && isPackageComment(f) {
		r.docs = append(r.docs, rel)
	}
	for _, spec := range f.Imports {
		to := strings.Trim(spec.Path.Value, `"`)
		if rest, ok := strings.CutPrefix(to, module+"/"); ok {
			to = rest
		}
		r.imports = append(r.imports, edge{to: to, file: rel, line: set.Position(spec.Pos()).Line, test: test})
	}
	return nil
}

// isPackageComment tells the comment of a package from directives and from
// the header of generated code, which also stand over the package clause.
func isPackageComment(f *ast.File) bool {
	return strings.TrimSpace(f.Doc.Text()) != "" && !ast.IsGenerated(f)
}

// path returns the shortest chain of non-test imports from one room to another
// that match accepts, as the edges walked; nil when there is none.
func (h house) path(from string, match func(dir string) bool) []edge {
	type step struct {
		dir  string
		walk []edge
	}
	seen := map[string]bool{from: true}
	for queue := []step{{dir: from}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		r := h[at.dir]
		if r == nil {
			continue
		}
		for _, e := range r.imports {
			if (e.test && at.dir != from) || seen[e.to] {
				continue
			}
			walk := append(slices.Clone(at.walk), e)
			if match(e.to) {
				return walk
			}
			seen[e.to] = true
			queue = append(queue, step{dir: e.to, walk: walk})
		}
	}
	return nil
}

// show writes a chain of imports, one per line, with the place of each.
func show(from string, walk []edge) string {
	var b strings.Builder
	b.WriteString("  " + from)
	for _, e := range walk {
		fmt.Fprintf(&b, "\n    -> %s  (%s:%d)", e.to, e.file, e.line)
	}
	return b.String()
}

// within says whether dir is base or lies below it.
func within(dir, base string) bool {
	return dir == base || strings.HasPrefix(dir, base+"/")
}

// repository returns the root of the repository, found by its go.mod.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod in this directory or above it")
		}
		dir = parent
	}
}

func readRepository(t *testing.T) house {
	t.Helper()
	h, err := readHouse(repository(t))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

package arch

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// topLevel is all that may stand at the top of the repository beside files
// that begin with a dot. Notes live with the nearest package.
var topLevel = []string{
	"cmd", "pkg", "proto", "deploy", "scripts", "test",
	"go.mod", "go.sum", "Makefile", "README.md", "LICENSE", "CHANGELOG.md",
	"bin", // built, not committed
}

// leftovers end the names of files that tools leave and git ignores.
var leftovers = []string{".test", ".out", ".prof"}

// programs is all that may stand in cmd.
var programs = []string{"supervisor", "formation-runtime"}

// noNames are package names that say nothing about what a package knows.
var noNames = []string{
	"util", "utils", "common", "helper", "helpers", "types", "models", "interfaces",
	"base", "core", "manager", "shared", "misc",
}

func TestTree_TopLevelIsFixed(t *testing.T) {
	t.Parallel()
	root := repository(t)
	for dir, allowed := range map[string][]string{".": topLevel, "cmd": programs} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || slices.Contains(leftovers, path.Ext(e.Name())) {
				continue
			}
			if !slices.Contains(allowed, e.Name()) {
				t.Errorf("%s: not one of %v", path.Join(dir, e.Name()), allowed)
			}
		}
	}
}

// checkPackages returns one text per package that has a name which says
// nothing, or not exactly one package comment.
func checkPackages(h house) []string {
	var faults []string
	for _, dir := range h.dirs() {
		r := h[dir]
		if slices.Contains(noNames, r.name) || slices.Contains(noNames, path.Base(dir)) {
			faults = append(faults, fmt.Sprintf("%s: package %s: name it for the one thing it knows", dir, r.name))
		}
		if within(dir, "proto") {
			continue // generated; the .proto file carries the words
		}
		docs := slices.DeleteFunc(slices.Clone(r.docs), func(file string) bool {
			return !r.tests && strings.HasSuffix(file, "_test.go")
		})
		if len(docs) != 1 {
			faults = append(faults, fmt.Sprintf("%s: %d package comments %v; exactly one file says purpose, promise and who imports it",
				dir, len(docs), docs))
		}
	}
	return faults
}

func TestTree_PackagesAreNamedAndDocumentedOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range checkPackages(readRepository(t)) {
		t.Error(fault)
	}
}

// roomLine matches the lines of pkg/README.md that describe a room: a list
// item that begins with the room's path below pkg in backquotes.
var roomLine = regexp.MustCompile("(?m)^- `([a-z0-9/]+)` ")

// checkMap compares the rooms below pkg with the text of pkg/README.md.
func checkMap(h house, readme string) []string {
	var faults []string
	var listed []string
	for _, m := range roomLine.FindAllStringSubmatch(readme, -1) {
		dir := path.Join("pkg", m[1])
		if slices.Contains(listed, dir) {
			faults = append(faults, "pkg/README.md describes "+dir+" twice")
		}
		listed = append(listed, dir)
		if h[dir] == nil {
			faults = append(faults, "pkg/README.md describes "+dir+", which does not exist")
		}
	}
	for _, dir := range h.dirs() {
		if within(dir, "pkg") && !slices.Contains(listed, dir) {
			faults = append(faults, fmt.Sprintf("pkg/README.md has no line \"- `%s` ...\"", strings.TrimPrefix(dir, "pkg/")))
		}
	}
	return faults
}

func TestTree_TheMapShowsEveryRoom(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository(t), "pkg", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range checkMap(readRepository(t), string(text)) {
		t.Error(fault)
	}
}

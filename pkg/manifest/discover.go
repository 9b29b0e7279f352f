package manifest

import (
	"bytes"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxWalkDepth bounds how deep directories are searched.
const maxWalkDepth = 16

// found is one entry of a directory.
type found struct {
	name string
	dir  bool
}

// list returns the files and directories of a directory by name, without
// hidden ones; links are followed only to files. A directory that is absent or
// can't be read is empty.
func (b *bundle) list(dir string) []found {
	if b.root == nil {
		return nil
	}
	f, err := b.root.Open(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(maxFiles)
	if err != nil && err != io.EOF { //nolint:errorlint // ReadDir returns io.EOF itself
		return nil
	}
	var out []found
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, found{name: e.Name(), dir: e.IsDir()})
		}
	}
	slices.SortFunc(out, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return out
}

// walk returns the files below dir by their path, at most maxFiles.
func (b *bundle) walk(dir string) []string {
	var out []string
	var down func(dir string, depth int)
	down = func(dir string, depth int) {
		if depth > maxWalkDepth {
			return
		}
		for _, e := range b.list(dir) {
			switch at := path.Join(dir, e.name); {
			case len(out) >= maxFiles:
				return
			case e.dir:
				down(at, depth+1)
			default:
				out = append(out, at)
			}
		}
	}
	down(dir, 0)
	return out
}

// discovered reads everything that is found rather than listed.
func (l *loader) discovered() {
	if !slices.Contains(manifestNames(), l.manifest) {
		return // a single file of another name owns nothing beside it
	}
	l.skills()
	l.sops()
	l.transformers()
	l.groups()
	l.triggers()
	l.routingExamples()
	l.laterFiles()
}

// markdown is a file with front matter.
type markdown struct {
	name string
	// front is nil when there is none.
	front *node
	body  string
	// bodyLine is the line that body starts at.
	bodyLine int
	refs     []Ref // of the front matter
}

// markdown reads a file with front matter. What is wrong with it is returned,
// not reported: such files are skipped with a warning.
func (b *bundle) markdown(name string) (*markdown, []Fault) {
	data, f := b.read(name)
	if f != nil {
		return nil, []Fault{*f}
	}
	src, f := newSource(name, data)
	if f != nil {
		return nil, []Fault{*f}
	}
	return src.markdown()
}

// hasFrontMatter tells whether a file begins with a line ---, without reading
// the rest.
func (b *bundle) hasFrontMatter(name string) bool {
	f, err := b.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 6)
	n, _ := io.ReadFull(f, head)
	return bytes.HasPrefix(bytes.TrimPrefix(head[:n], []byte("\ufeff")), []byte("---"))
}

// markdown splits off the front matter: the lines between a first line --- and
// the next one. Without the second all is body.
func (s *source) markdown() (*markdown, []Fault) {
	m := &markdown{name: s.name, body: s.text, bodyLine: 1}
	if strings.TrimRight(s.lines[0], " \t") != "---" {
		return m, nil
	}
	end := slices.IndexFunc(s.lines[1:], func(line string) bool { return strings.TrimRight(line, " \t") == "---" })
	if end < 0 {
		return m, nil
	}
	end++
	m.body, m.bodyLine = strings.Join(s.lines[end+1:], "\n"), end+2
	// An empty first line keeps the places those of the whole file.
	front := &source{name: s.name, text: "\n" + strings.Join(s.lines[1:end], "\n") + "\n"}
	front.lines = append([]string{""}, s.lines[1:end]...)
	ast, f := front.parse()
	if f != nil {
		return m, []Fault{*f}
	}
	if ast == nil {
		m.front = &node{kind: kindMap, file: s.name, at: place{1, 1}, size: 1, height: 1}
		return m, nil
	}
	t := treeBuilder{src: front, anchors: map[string]*node{}}
	m.front = t.build(ast, "", 1)
	m.refs = t.refs
	if m.front.kind != kindMap && len(t.faults) == 0 {
		t.faults = append(t.faults, bad(m.front, "", RuleType, "front matter is a block of keys, not %s", m.front.kind))
	}
	return m, t.faults
}

// skip warns that a file is left out, and why.
func (l *loader) skip(faults []Fault) {
	for _, f := range faults {
		f.Message += "; the file is skipped"
		l.d.warnings = append(l.d.warnings, Warning(f))
	}
}

// columns turns byte offsets of a line into columns. It moves forward only, so
// that a line is counted once.
type columns struct {
	line        string
	offset, col int
}

func (c *columns) at(offset int) int {
	c.col += utf8.RuneCountInString(c.line[c.offset:offset])
	c.offset = offset
	return c.col + 1
}

// lateRefs notes the placeholders of texts that are resolved when they are
// used. Malformed ones stay text: they may be written about.
func (l *loader) lateRefs(m *markdown) {
	for i, line := range strings.Split(m.body, "\n") {
		count := columns{line: line}
		for offset := 0; ; {
			at := strings.Index(line[offset:], "${{")
			if at < 0 {
				break
			}
			offset += at
			if kind, name, size, err := cutPlaceholder(line[offset:]); err == nil {
				l.f.late = append(l.f.late, Ref{Kind: kind, Name: name, File: m.name, Line: m.bodyLine + i, Col: count.at(offset)})
				offset += size
				continue
			}
			offset += len("${{")
		}
	}
	l.f.late = append(l.f.late, m.refs...)
}

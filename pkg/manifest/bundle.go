package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// The limits of one formation's files together.
const (
	maxFiles      = 2000
	maxTotalBytes = 16 << 20
)

// bundle reads the files of one formation, each at most once, never outside
// its directory.
type bundle struct {
	root *os.Root // nil: the manifest stands alone
	// docs holds the tree of each file read so far, nil for a broken one.
	docs    map[string]*node
	loading map[string]bool
	files   []string
	bytes   int              // read so far
	refs    map[string][]Ref // by file
	faults  []Fault
	// measured are the nodes of the files read so far: an included one is whole.
	measured map[*node]bool
	// variables are those that the files read next may hold besides
	// placeholders; see treeBuilder.
	variables func(inner string) string
}

func newBundle(root *os.Root) *bundle {
	return &bundle{root: root, docs: map[string]*node{}, loading: map[string]bool{}, refs: map[string][]Ref{}, measured: map[*node]bool{}}
}

// read returns the content of a file and records that it was read.
func (b *bundle) read(name string) ([]byte, *Fault) {
	bad := func(rule RuleID, message string) *Fault { return &Fault{File: name, Rule: rule, Message: message} }
	if b.root == nil {
		return nil, bad(RuleFileMissing, "the manifest stands alone, so it can't refer to other files")
	}
	if len(b.files) >= maxFiles {
		return nil, bad(RuleFileCount, fmt.Sprintf("the formation reads more than %d files", maxFiles))
	}
	// Not blocking, so that a named pipe can't hold us up.
	f, err := b.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad(RuleFileMissing, "the file does not exist")
	}
	if err != nil {
		return nil, bad(RuleFileKind, "the file can't be opened: "+reason(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, bad(RuleFileKind, "it is no regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, bad(RuleFileKind, "the file can't be read: "+reason(err))
	}
	b.files = append(b.files, name)
	if b.bytes += len(data); b.bytes > maxTotalBytes {
		return nil, bad(RuleFileSize, "the files of the formation have more than 16 MiB together")
	}
	return data, nil
}

// reason returns the last cause of a file error, which names no path.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return "unreadable"
}

// doc returns the tree of a file with its includes resolved, nil when the file
// has faults that leave no tree. A file that can't be read is reported at from.
func (b *bundle) doc(name string, from Fault) *node {
	if n, ok := b.docs[name]; ok {
		return n
	}
	data, f := b.read(name)
	if f != nil {
		b.docs[name] = nil
		if from.File != "" {
			from.Rule, from.Message = f.Rule, fmt.Sprintf("%s: %s", name, f.Message)
			f = &from
		}
		b.faults = append(b.faults, *f)
		return nil
	}
	return b.parse(name, data)
}

// parse builds the tree of a file's content.
func (b *bundle) parse(name string, data []byte) *node {
	b.docs[name] = nil
	src, f := newSource(name, data)
	if f != nil {
		b.faults = append(b.faults, *f)
		return nil
	}
	ast, f := src.parse()
	if f != nil {
		b.faults = append(b.faults, *f)
		return nil
	}
	if ast == nil {
		b.faults = append(b.faults, *src.fault(place{1, 1}, RuleRequired, "the file is empty"))
		return nil
	}
	t := treeBuilder{src: src, anchors: map[string]*node{}, variables: b.variables}
	n := t.build(ast, "", 1)
	b.faults = append(b.faults, t.faults...)
	if n.kind == kindNull && len(t.faults) == 0 {
		b.faults = append(b.faults, *src.fault(n.at, RuleRequired, "the file holds nothing"))
	}
	b.refs[name] = t.refs
	b.loading[name] = true
	b.resolve(n, "", map[*node]bool{})
	delete(b.loading, name)
	size, height := measure(n, b.measured)
	if size > maxNodes || height > maxDepth {
		b.faults = append(b.faults, *src.fault(place{1, 1}, RuleYAMLSize, "the file with its includes has too many values or nests too deep"))
		return nil
	}
	b.docs[name] = n
	return n
}

// resolve replaces every {$include: path} below n by the tree of that file.
func (b *bundle) resolve(n *node, key string, seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	if n.kind == kindMap && n.get("$include") != nil {
		b.include(n, key)
		return
	}
	for _, e := range n.keys {
		b.resolve(e.value, join(key, e.key), seen)
	}
	for i, item := range n.items {
		b.resolve(item, fmt.Sprintf("%s[%d]", key, i), seen)
	}
}

// include turns n into the tree of the file it names, or into nothing.
func (b *bundle) include(n *node, key string) {
	target := n.get("$include")
	from := Fault{File: n.file, Line: target.at.line, Col: target.at.col, Key: join(key, "$include"), Text: shorten(target.text)}
	fail := func(rule RuleID, format string, args ...any) {
		from.Rule, from.Message = rule, fmt.Sprintf(format, args...)
		b.faults = append(b.faults, from)
		n.kind, n.keys, n.broken = kindNull, nil, true
	}
	switch {
	case target.kind != kindText:
		fail(RuleIncludeForm, "$include takes the path of a file, not %s", target.kind)
		return
	case len(n.keys) > 1:
		fail(RuleIncludeForm, "$include stands alone; move the other keys into the file")
		return
	}
	name := path.Join(path.Dir(n.file), target.text)
	if path.IsAbs(target.text) || strings.Contains(target.text, `\`) || !filepath.IsLocal(filepath.FromSlash(name)) {
		fail(RuleIncludePath, "%q leaves the bundle; write a path relative to this file", shorten(target.text))
		return
	}
	if b.loading[name] {
		fail(RuleIncludeCycle, "%s includes itself through this file", name)
		return
	}
	if doc := b.doc(name, from); doc != nil {
		*n = *doc
		return
	}
	n.kind, n.keys, n.broken = kindNull, nil, true
}

// measure counts the values and the depth below n with shared nodes counted at
// each place, and stores them; both stop growing above their limits.
func measure(n *node, done map[*node]bool) (size, height int) {
	if done[n] {
		return n.size, n.height
	}
	size, height = n.own(), 1
	below := func(v *node) {
		s, h := measure(v, done)
		size, height = min(size+s, maxNodes+1), min(max(height, h+1), maxDepth+1)
	}
	for _, e := range n.keys {
		below(e.value)
	}
	for _, item := range n.items {
		below(item)
	}
	n.size, n.height = size, height
	done[n] = true
	return size, height
}

// shorten cuts a text to what fits in a message.
func shorten(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

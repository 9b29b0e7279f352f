// Package manifest reads the files of a formation: the manifest, what it lists
// (agents, tool servers, services) and what is found in its directories
// (skills, procedures, triggers, transformers, groups, the soul). It checks
// them strictly, fills in the defaults and keeps the ${{ }} placeholders. The
// calls that read a kind of file also write its JSON Schema.
//
// One pass finds every fault, each with file, line, column, key and what would
// be right. Nothing is dropped silently: a key that is unknown or has no effect
// in this release is a Warning. Input may be hostile: sizes, depth and alias
// expansion are bounded, and no file outside the formation's directory is read.
//
// The supervisor reads it to check a deployment, the runtime to build the
// formation, the CLI to validate. It imports package fault only.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxReported bounds how many faults or warnings one pass returns.
const maxReported = 200

// manifestNames are the names of a manifest, in the order they are looked for.
func manifestNames() []string { return []string{"formation.afs", "formation.yaml", "formation.yml"} }

// Find returns the path of the manifest in dir. Without one the error is
// *Faults.
func Find(dir string) (string, error) {
	for _, name := range manifestNames() {
		at := filepath.Join(dir, name)
		if _, err := os.Lstat(at); err == nil {
			return at, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for the manifest: %w", err)
		}
	}
	return "", &Faults{{
		File: manifestNames()[0], Rule: RuleFileMissing,
		Message: "the formation has no manifest; it is " + strings.Join(manifestNames(), ", ") + elsewhere(dir),
	}}
}

// elsewhere tells where the manifest of a directory without one may be.
func elsewhere(dir string) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer func() { _ = root.Close() }()
	return manifestHint(newBundle(root).list("."), func(dir string) bool {
		return slices.ContainsFunc(manifestNames(), func(name string) bool {
			_, err := root.Lstat(filepath.Join(dir, name))
			return err == nil
		})
	})
}

// Load reads the formation in dir, or the one that stands in the single file
// dir (.afs, .yaml, .yml or .json). What is wrong with the formation is
// returned as *Faults, all of it; warnings are returned in both cases. Files
// are named by their slash-separated path inside dir.
func Load(dir string) (*Formation, []Warning, error) {
	name := dir
	info, err := os.Stat(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open formation: %w", err)
	}
	if info.IsDir() {
		if name, err = Find(dir); err != nil {
			return nil, nil, err
		}
	}
	parent, base := filepath.Split(name)
	root, err := os.OpenRoot(filepath.Clean(parent))
	if err != nil {
		return nil, nil, fmt.Errorf("open formation: %w", err)
	}
	defer func() { _ = root.Close() }()
	l := &loader{b: newBundle(root), d: &decoder{}, manifest: base}
	if info.IsDir() {
		l.shadowedManifests()
	}
	return l.load(l.b.doc(base, Fault{}))
}

// shadowedManifests warns about manifests behind the one that is read.
func (l *loader) shadowedManifests() {
	for _, name := range manifestNames() {
		if _, err := l.b.root.Lstat(name); err == nil && name != l.manifest {
			l.d.warnings = append(l.d.warnings, Warning{File: name, Rule: RuleShadowed, Message: "the file is ignored; " + l.manifest + " is used"})
		}
	}
}

// Parse reads a formation whose agents all stand in src, as Load does. The
// manifest is called name in faults; a reference to another file is a fault.
func Parse(name string, src []byte) (*Formation, []Warning, error) {
	l := &loader{b: newBundle(nil), d: &decoder{}, manifest: name}
	l.b.files = []string{name}
	return l.load(l.b.parse(name, src))
}

// loader reads one formation.
type loader struct {
	b        *bundle
	d        *decoder
	f        *Formation
	manifest string
	servers  []MCPServer    // inactive ones too
	sopFiles []string       // everything below sops/
	places   map[string]int // of files in the order of reading, once all are read
}

func (l *loader) load(root *node) (*Formation, []Warning, error) {
	f := defaults()
	l.f = &f
	if root != nil {
		o := l.d.object(root, "")
		l.d.formation(o, &f)
		f.Agents = l.agents(o)
		l.mcpServers(o)
		l.a2aServices(o)
		o.endOpen()
		l.soul(o)
		l.discovered()
		f.order()
		l.cross(o)
		if len(l.d.faults)+len(l.b.faults) == 0 {
			l.d.withoutModel(root, &f)
		}
	}
	slices.SortStableFunc(f.late, func(a, b Ref) int { return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line, a.Col-b.Col) })
	f.Files = l.b.files
	for _, name := range l.b.files {
		f.refs = append(f.refs, l.b.refs[name]...)
	}
	l.d.prompts(f.refs, l.inServer())
	f.literals = l.d.literals
	warnings := l.warnings()
	if faults := l.faults(); len(faults) > 0 {
		return nil, warnings, &faults
	}
	f.Raw, _ = root.plain().(map[string]any)
	return &f, warnings, nil
}

// soul replaces the manifest's soul by that of SOUL.md or soul.md.
func (l *loader) soul(o *object) {
	if l.b.root == nil {
		return
	}
	for _, name := range []string{"SOUL.md", "soul.md"} {
		if _, err := l.b.root.Lstat(name); err != nil {
			continue
		}
		data, f := l.b.read(name)
		var src *source
		if f == nil {
			src, f = newSource(name, data)
		}
		if f != nil {
			l.d.faults = append(l.d.faults, *f)
			return
		}
		if strings.TrimSpace(src.text) == "" {
			l.d.warn(&node{file: name, at: place{1, 1}}, "", RuleSoulEmpty, "the file is empty; it is read as absent")
			continue
		}
		if l.f.Soul != "" {
			l.shadowed(o, name)
		}
		l.f.Soul = strings.TrimSpace(src.text)
		return
	}
}

// shadowed warns that the file name replaces the manifest's own soul.
func (l *loader) shadowed(o *object, name string) {
	overlord := l.d.object(o.take("overlord"), "overlord")
	key := "soul"
	if overlord.take(key) == nil {
		key = "persona"
	}
	overlord.warnKey(key, RuleNoEffect, "has no effect; %s is used instead", name)
}

// faults returns everything that is wrong, in the order of files and lines.
func (l *loader) faults() Faults {
	all := slices.Concat(l.b.faults, l.d.faults)
	slices.SortStableFunc(all, l.compare)
	if more := len(all) - maxReported; more > 0 {
		all = append(all[:maxReported:maxReported], Fault{File: l.manifest, Message: fmt.Sprintf("%d more faults are not listed", more)})
	}
	return all
}

func (l *loader) warnings() []Warning {
	all := l.d.warnings
	slices.SortStableFunc(all, func(a, b Warning) int { return l.compare(Fault(a), Fault(b)) })
	if more := len(all) - maxReported; more > 0 {
		all = append(all[:maxReported:maxReported], Warning{File: l.manifest, Message: fmt.Sprintf("%d more warnings are not listed", more)})
	}
	return all
}

// compare orders faults by file in the order of reading, line and column.
func (l *loader) compare(a, b Fault) int {
	if a.File != b.File {
		return cmp.Or(l.place(a.File)-l.place(b.File), strings.Compare(a.File, b.File))
	}
	if a.Line != b.Line {
		return a.Line - b.Line
	}
	return a.Col - b.Col
}

// place returns when a file was read; files that never were come last.
func (l *loader) place(file string) int {
	if l.places == nil {
		l.places = make(map[string]int, len(l.b.files))
		for i, name := range l.b.files {
			l.places[name] = i
		}
	}
	if i, ok := l.places[file]; ok {
		return i
	}
	return len(l.b.files)
}

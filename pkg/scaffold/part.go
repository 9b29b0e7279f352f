package scaffold

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
	"github.com/agentformation/service/pkg/manifest"
)

// newPart adds a part to a formation.
func newPart(r Request, d data) (_ *Made, err error) {
	at, err := manifest.Find(r.Dir)
	if err != nil {
		return nil, fault.Wrap(fault.NotFound, "", r.Dir+" holds no formation: it has no formation.afs", err)
	}
	unlock, err := lock(r.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, before, wasBroken := manifest.Load(r.Dir)
	if known != nil && len(known.Agents) > 0 {
		d.Agent = known.Agents[0].ID
	}
	if err := free(r); err != nil {
		return nil, err
	}
	files, err := render(r, d)
	if err != nil {
		return nil, err
	}
	if err := readable(filepath.Base(at), wasBroken); err != nil && isListed(r.Kind) {
		return nil, err
	}
	made := &Made{Dir: r.Dir, Files: slices.SortedFunc(maps.Keys(files), byDepth)}
	if known != nil {
		made.Formation = known.ID
	}
	u := &undo{}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.run())
		}
	}()
	text, err := made.list(r, at)
	if err != nil {
		return nil, err
	}
	for _, name := range made.Files {
		if err := u.write(r.Dir, name, files[name]); err != nil {
			return nil, err
		}
	}
	// Last: before, the new files are just not listed.
	if text != nil {
		if err := u.replace(at, text); err != nil {
			return nil, err
		}
	}
	_, after, broken := manifest.Load(r.Dir)
	if broken != nil && wasBroken == nil {
		return nil, fmt.Errorf("the formation would not load any more: %w", broken)
	}
	made.Warnings = added(before, after)
	return made, nil
}

// isListed tells whether the manifest lists files of a kind; others are found
// by their place.
func isListed(kind string) bool { return kind == manifest.FileAgent || kind == manifest.FileMCP }

// readable refuses a manifest whose faults are those of the file itself: it may
// be large, deep or no YAML.
func readable(name string, broken error) error {
	faults, ok := errors.AsType[*manifest.Faults](broken)
	if !ok {
		return broken
	}
	for _, f := range *faults {
		rule := string(f.Rule)
		if f.File == name && (strings.HasPrefix(rule, "yaml.") || f.Rule == manifest.RuleFileSize || f.Rule == manifest.RuleFileKind || f.Rule == manifest.RuleFileEncoding) {
			return fault.Errorf(fault.Invalid, "", "the manifest must be mended first: %s", f)
		}
	}
	return nil
}

// added returns the warnings that were not there before, wherever they stood.
func added(before, after []manifest.Warning) []manifest.Warning {
	same := func(a, b manifest.Warning) bool {
		a.Line, a.Col, b.Line, b.Col = 0, 0, 0, 0
		return a == b
	}
	var out []manifest.Warning
	for _, w := range after {
		if !slices.ContainsFunc(before, func(b manifest.Warning) bool { return same(w, b) }) {
			out = append(out, w)
		}
	}
	return out
}

// list adds the part to the manifest's list and returns the manifest's new
// text, nil when it needs none.
func (m *Made) list(r Request, at string) ([]byte, error) {
	if !isListed(r.Kind) {
		return nil, nil
	}
	keys := []string{"agents"}
	if r.Kind == manifest.FileMCP {
		keys = []string{"mcp", "servers"}
	}
	info, err := os.Lstat(at)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	text, err := os.ReadFile(at)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	if r.Kind == manifest.FileMCP && older(text) {
		keys[0] = "mcps"
	}
	name := strings.Join(keys, ".")
	l, err := addItem(text, keys, r.Name)
	var own *ownWordsError
	switch {
	case errors.As(err, &own):
		return nil, fault.Errorf(fault.Conflict, "", "%s:%d has the %s %q in its own words; choose another name", filepath.Base(at), own.line, r.Kind, r.Name)
	case err == nil && !info.Mode().IsRegular():
		err = fmt.Errorf("it is a link: %w", errUnclear)
		fallthrough
	case err != nil:
		return nil, fault.Wrap(fault.Invalid, "", fmt.Sprintf("%s: %v; nothing was made. Add `- %s` to %s by hand, then call this again",
			filepath.Base(at), err, r.Name, name), err)
	case l.already:
		return nil, nil // somebody listed it before its file
	}
	m.Manifest, m.List, m.Line = filepath.Base(at), name, l.line
	return l.text, nil
}

// older tells whether a manifest lists its tool servers under the older key.
func older(text []byte) bool {
	e := &edit{}
	root, err := e.root(text)
	if err != nil {
		return false
	}
	has := func(key string) bool {
		for _, m := range entriesOf(root) {
			if m.Key.GetToken().Value == key {
				return true
			}
		}
		return false
	}
	return has("mcps") && !has("mcp")
}

// free refuses a name that a file has already, whatever its ending.
func free(r Request) error {
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return fmt.Errorf("open the formation: %w", err)
	}
	defer root.Close()
	if r.Agent != "" {
		if err := manifest.CheckName(manifest.FileAgent, r.Agent); err != nil {
			return err
		}
		if taken(root, []string{"agents/" + r.Agent}, ".afs", ".yaml", ".yml") == "" {
			return fault.Errorf(fault.NotFound, "", "there is no agent %q: agents/%s.afs does not exist", r.Agent, r.Agent)
		}
	}
	var at string
	switch r.Kind {
	case manifest.FileAgent:
		at = taken(root, []string{"agents/" + r.Name}, ".afs", ".yaml", ".yml")
	case manifest.FileMCP:
		at = taken(root, []string{"mcp/" + r.Name, "mcps/" + r.Name}, ".afs", ".yaml", ".yml", ".py")
	case manifest.FileTransformer:
		at = taken(root, []string{"transformers/" + r.Name}, ".yaml", ".yml", ".afs")
	default:
		for name := range layout(r) {
			if r.Kind == manifest.FileSkill {
				name, _, _ = strings.Cut(name, "/SKILL.md")
				name, _, _ = strings.Cut(name, "/scripts/")
			}
			if found := taken(root, []string{name}, ""); found != "" {
				at = found
			}
		}
	}
	if at != "" {
		return fault.Errorf(fault.Conflict, "", "%s is there already; choose another name", filepath.Join(r.Dir, at))
	}
	return nil
}

// taken returns the first of the names with one of the endings that is there.
func taken(root *os.Root, names []string, endings ...string) string {
	for _, name := range names {
		for _, ending := range endings {
			if _, err := root.Lstat(name + ending); !errors.Is(err, fs.ErrNotExist) {
				return name + ending
			}
		}
	}
	return ""
}

// lock lets one call at a time change a formation.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the formation: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the formation: %w", err), f.Close())
	}
	return func() { filelock.Release(f) }, nil
}

// maxArg bounds an argument of a command, in bytes.
const maxArg = 4096

// checkCommand refuses what is no command of a tool server.
func checkCommand(r Request) error {
	if len(r.Command) > 0 && (r.Kind != manifest.FileMCP || r.Template == templateHTTP) {
		return fault.New(fault.Invalid, "", "only a tool server that the formation starts has a command")
	}
	for i, arg := range r.Command {
		switch {
		case i == 0 && strings.TrimSpace(arg) == "":
			return fault.New(fault.Invalid, "", "the command is blank")
		case len(arg) > maxArg:
			return fault.Errorf(fault.Invalid, "", "argument %d of the command has more than %d bytes", i, maxArg)
		case strings.ContainsFunc(arg, unicode.IsControl) || !utf8.ValidString(arg):
			return fault.Errorf(fault.Invalid, "", "argument %d of the command has a control character", i)
		}
	}
	return nil
}

// checkURL refuses what is no address of a server; "" is none.
func checkURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Contains(s, "${{") {
		return fault.New(fault.Invalid, "", "the address is no URL like https://host/path; keys and passwords do not belong into it")
	}
	return nil
}

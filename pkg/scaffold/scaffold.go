// Package scaffold writes the first files of a formation and of its parts, for
// authors to go on from.
//
// It promises that what it writes loads without a fault and says in comments
// what else there is, that it overwrites nothing, that a manifest keeps every
// line that it has, and that nothing is left behind when it fails. cmd/supervisor
// imports it.
package scaffold

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

//go:embed templates
var templates embed.FS

// maxDescription bounds a description, in characters.
const maxDescription = 300

// Kinds returns the kinds of files that New writes, as manifest.Schemas calls
// them.
func Kinds() []string {
	return []string{
		manifest.FileFormation, manifest.FileAgent, manifest.FileMCP, manifest.FileSkill, manifest.FileSOP,
		manifest.FileTrigger, manifest.FileTransformer,
	}
}

// Request says what to make.
type Request struct {
	Kind     string // one of Kinds
	Name     string // the id, see manifest.CheckName
	Template string // one of Templates; "" is the default one
	// Dir is the formation's directory. A formation itself becomes Dir/Name.
	Dir         string
	Description string // one line; "" takes a general one
	Agent       string // of a skill: the agent that alone sees it; "" for all
	URL         string // of a tool server or transformer: its address
	// Command is the program of a tool server that is there already, with its
	// arguments; without it and an address, one is written.
	Command []string
}

// Made is what was made.
type Made struct {
	Dir   string   // the formation's directory
	Files []string // slash-separated paths in Dir
	// Formation is the id of the formation that got a part, "" when its files
	// can't be read.
	Formation string
	// Manifest is the name of the manifest when an item was added to one of its
	// lists, else ""; List and Line say where.
	Manifest string
	List     string // agents or mcp.servers
	Line     int
	// Warnings are those of the formation that it had not before.
	Warnings []manifest.Warning
	// Secrets tells that a new formation uses secrets, which have no values yet.
	Secrets bool
}

// New makes it. A bad name, template, description or address is fault.Invalid, a name that
// is taken fault.Conflict, a directory without a formation fault.NotFound.
func New(r Request) (*Made, error) {
	if !slices.Contains(Kinds(), r.Kind) {
		return nil, fault.Errorf(fault.Invalid, "", "%q is no kind of file to make (one of %s)", r.Kind, strings.Join(Kinds(), ", "))
	}
	if err := manifest.CheckName(r.Kind, r.Name); err != nil {
		return nil, err
	}
	if err := chooseTemplate(&r); err != nil {
		return nil, err
	}
	d, err := dataOf(r)
	if err != nil {
		return nil, err
	}
	if r.Kind == manifest.FileFormation {
		return newFormation(r, d)
	}
	return newPart(r, d)
}

// data fills the templates.
type data struct {
	Name, Title, Description, URL string
	Command                       []string
	Subject                       string // the title in lower case
	Secret                        string // the beginning of names of secrets
	Agent                         string // the formation's first agent, "" when none is known

	// Of a formation:

	Provider, Model, Key string // whose model, which one, the secret of its key; "" is the offline one
	Team                 bool
}

func dataOf(r Request) (data, error) {
	d := data{Name: r.Name, Title: title(r.Name), Description: strings.TrimRight(strings.TrimSpace(r.Description), "."), URL: r.URL, Command: r.Command}
	d.Subject = strings.ToLower(d.Title)
	d.fillTemplate(r)
	d.Secret = strings.ToUpper(strings.Map(func(c rune) rune {
		if c == '-' || c == '.' {
			return '_'
		}
		return c
	}, r.Name))
	if d.Description == "" {
		d.Description = describe(r.Kind, d.Subject)
	}
	switch {
	case utf8.RuneCountInString(d.Description) > maxDescription:
		return d, fault.Errorf(fault.Invalid, "", "the description has more than %d characters", maxDescription)
	case strings.ContainsFunc(d.Description, unicode.IsControl) || !utf8.ValidString(d.Description):
		return d, fault.New(fault.Invalid, "", "the description has more than one line")
	case strings.Contains(d.Description, "${{"):
		return d, fault.New(fault.Invalid, "", "the description has a placeholder; secrets are not for texts that a model reads")
	}
	if err := checkCommand(r); err != nil {
		return d, err
	}
	switch {
	case d.URL != "":
	case r.Kind == manifest.FileTransformer:
		d.URL = "https://example.com/hook"
	case r.Template == templateHTTP:
		d.URL = "https://example.com/mcp"
	}
	return d, checkURL(d.URL)
}

// title turns an id into words: tool_server-2 is Tool Server 2.
func title(name string) string {
	words := strings.FieldsFunc(name, func(c rune) bool { return strings.ContainsRune("-_.", c) })
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, " ")
}

// describe is a first description of what is about a subject.
func describe(kind, subject string) string {
	switch kind {
	case manifest.FileFormation:
		return "A small team that answers questions"
	case manifest.FileMCP:
		return "Tools for " + subject
	case manifest.FileSkill:
		return "Does " + subject + "; take it up when somebody asks for that"
	case manifest.FileSOP:
		return "What to do about " + subject
	}
	return "Answers what is asked about " + subject
}

// layout returns the template of each file, by its path in the formation's
// directory.
func layout(r Request) map[string]string {
	switch r.Kind {
	case manifest.FileFormation:
		files := map[string]string{
			"formation.afs": "formation/formation.afs", "agents/assistant.afs": "formation/agents/assistant.afs",
			"SOUL.md": "formation/SOUL.md", ".gitignore": "formation/gitignore",
		}
		if r.Template == templateTeam {
			for _, name := range []string{"agents/researcher.afs", "agents/writer.afs"} {
				files[name] = "formation/" + name
			}
		}
		return files
	case manifest.FileAgent:
		from := "agent/agents/agent.afs"
		if r.Template == templateSpecialist {
			from = "agent/agents/specialist.afs"
		}
		return map[string]string{"agents/" + r.Name + ".afs": from}
	case manifest.FileMCP:
		files := map[string]string{"mcp/" + r.Name + ".afs": "mcp/mcp/server.afs"}
		if r.Template != templateHTTP && len(r.Command) == 0 {
			files["mcp/"+r.Name+".py"] = "mcp/mcp/server.py"
		}
		return files
	case manifest.FileSkill:
		dir := path.Join("skills", r.Name)
		if r.Agent != "" {
			dir = path.Join("agents", r.Agent, dir)
		}
		return map[string]string{dir + "/SKILL.md": "skill/SKILL.md", dir + "/scripts/run.py": "skill/scripts/run.py"}
	case manifest.FileSOP:
		from := "sop/sop.md"
		if r.Template == templateStrict {
			from = "sop/strict.md"
		}
		return map[string]string{"sops/" + r.Name + ".md": from}
	case manifest.FileTrigger:
		from := "trigger/trigger.md"
		if r.Template == templateGitHub || r.Template == templateAlert {
			from = "trigger/" + r.Template + ".md"
		}
		return map[string]string{"triggers/" + r.Name + ".md": from}
	}
	return map[string]string{"transformers/" + r.Name + ".yaml": "transformer/transformer.yaml"}
}

// render writes the files of a request, by their path.
func render(r Request, d data) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, from := range layout(r) {
		source, err := templates.ReadFile("templates/" + from)
		if err != nil {
			return nil, fmt.Errorf("read the scaffold of a %s: %w", r.Kind, err)
		}
		// The usual braces are those of placeholders.
		t, err := template.New(from).Delims("<<", ">>").Funcs(template.FuncMap{"text": scalar, "quoted": strconv.Quote}).Parse(string(source))
		if err != nil {
			return nil, fmt.Errorf("read the scaffold of a %s: %w", r.Kind, err)
		}
		var b strings.Builder
		if err := t.Execute(&b, d); err != nil {
			return nil, fmt.Errorf("write the scaffold of a %s: %w", r.Kind, err)
		}
		out[name] = []byte(b.String())
	}
	return out, nil
}

// newFormation fills a directory and puts it in place by one rename.
func newFormation(r Request, d data) (_ *Made, err error) {
	files, err := render(r, d)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.Dir, r.Name)
	if _, err := os.Lstat(dir); err == nil {
		return nil, fault.Errorf(fault.Conflict, "", "%s is there already; choose another name, or another place with --path", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for %s: %w", dir, err)
	}
	parents := &undo{}
	defer func() {
		if err != nil {
			err = errors.Join(err, parents.run())
		}
	}()
	if err := parents.mkdirAll(r.Dir); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp(r.Dir, ".new-")
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	parents.add(func() error { return os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o755); err != nil { //nolint:gosec // a directory of sources, as mkdir makes it
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	made, err := fill(temp, files)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(temp, dir); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	made.Dir, made.Secrets = dir, d.Key != ""
	_, made.Warnings, err = manifest.Load(dir)
	return made, err
}

// fill writes all files into an empty directory.
func fill(dir string, files map[string][]byte) (*Made, error) {
	made := &Made{Dir: dir}
	u := &undo{} // the directory goes as a whole
	for name, text := range files {
		if err := u.write(dir, name, text); err != nil {
			return nil, err
		}
		made.Files = append(made.Files, name)
	}
	slices.SortFunc(made.Files, byDepth)
	return made, nil
}

// byDepth orders files as people list them: those of a directory before those
// of the directories in it.
func byDepth(a, b string) int {
	if d := strings.Count(a, "/") - strings.Count(b, "/"); d != 0 {
		return d
	}
	if hidden := strings.HasPrefix(a, "."); hidden != strings.HasPrefix(b, ".") {
		if hidden {
			return 1
		}
		return -1
	}
	return strings.Compare(strings.ToLower(a), strings.ToLower(b))
}

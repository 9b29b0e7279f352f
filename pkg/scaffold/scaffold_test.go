package scaffold_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/scaffold"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// formation makes one to add to and returns its directory.
func formation(t *testing.T) string {
	t.Helper()
	made, err := scaffold.New(scaffold.Request{Kind: manifest.FileFormation, Name: "hello", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return made.Dir
}

// files returns everything below dir by slash path.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if e.IsDir() {
			out[filepath.ToSlash(rel)+"/"] = ""
			return nil
		}
		if e.Type() == fs.ModeSymlink {
			out[filepath.ToSlash(rel)], err = os.Readlink(at)
			return err
		}
		text, err := os.ReadFile(at)
		out[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// requests has one of each kind, and of each of its forms.
func requests() map[string]scaffold.Request {
	return map[string]scaffold.Request{
		"formation":        {Kind: manifest.FileFormation, Name: "night-shift"},
		"agent":            {Kind: manifest.FileAgent, Name: "book_keeper"},
		"agent-123":        {Kind: manifest.FileAgent, Name: "123", Description: "Says: yes, no # or 'maybe'."},
		"mcp":              {Kind: manifest.FileMCP, Name: "word.tools"},
		"mcp-url":          {Kind: manifest.FileMCP, Name: "tickets", URL: "https://tickets.example.com/mcp"},
		"mcp-command":      {Kind: manifest.FileMCP, Name: "memory", Command: []string{"npx", "-y", "@scope/server", "a b", "[it's, \"\\ü\": #1]"}},
		"mcp-program":      {Kind: manifest.FileMCP, Name: "memory", Command: []string{"memory-server"}},
		"skill":            {Kind: manifest.FileSkill, Name: "pdf-forms"},
		"skill-of-agent":   {Kind: manifest.FileSkill, Name: "pdf-forms", Agent: "assistant"},
		"sop":              {Kind: manifest.FileSOP, Name: "refund"},
		"trigger":          {Kind: manifest.FileTrigger, Name: "new_order"},
		"formation-openai": {Kind: manifest.FileFormation, Name: "night-shift", Template: "openai"},
		"formation-ollama": {Kind: manifest.FileFormation, Name: "night-shift", Template: "ollama"},
		"formation-team":   {Kind: manifest.FileFormation, Name: "night-shift", Template: "team"},
		"agent-specialist": {Kind: manifest.FileAgent, Name: "book_keeper", Template: "specialist"},
		"mcp-http":         {Kind: manifest.FileMCP, Name: "tickets", Template: "http"},
		"sop-strict":       {Kind: manifest.FileSOP, Name: "refund", Template: "strict"},
		"trigger-github":   {Kind: manifest.FileTrigger, Name: "issue", Template: "github"},
		"trigger-alert":    {Kind: manifest.FileTrigger, Name: "alert", Template: "alert"},
		"transformer":      {Kind: manifest.FileTransformer, Name: "chat-room", URL: "https://rooms.example.com/hook"},
	}
}

func TestNew_WritesWhatIsGolden(t *testing.T) {
	t.Parallel()
	for name, r := range requests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.Dir = t.TempDir()
			before := map[string]string{}
			if r.Kind != manifest.FileFormation {
				r.Dir = formation(t)
				before = files(t, r.Dir)
			}
			made, err := scaffold.New(r)
			if err != nil {
				t.Fatal(err)
			}
			after := files(t, made.Dir)
			var wrote []string
			ar := &txtar.Archive{}
			for _, at := range slices.Sorted(maps.Keys(after)) {
				if old, had := before[at]; (!had || old != after[at]) && !strings.HasSuffix(at, "/") {
					ar.Files = append(ar.Files, txtar.File{Name: at, Data: []byte(after[at])})
					wrote = append(wrote, at)
				}
			}
			want := slices.Concat(made.Files)
			if made.Manifest != "" {
				want = append(want, made.Manifest)
			}
			if slices.Sort(want); !slices.Equal(want, wrote) {
				t.Errorf("says it wrote %v, wrote %v", want, wrote)
			}
			golden(t, filepath.Join("testdata", name+".txtar"), txtar.Format(ar))
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A scaffold loads, and what it is warned about is that this release does not
// use it yet.
func TestNew_WhatItWritesLoads(t *testing.T) {
	t.Parallel()
	for name, r := range requests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.Dir = t.TempDir()
			if r.Kind != manifest.FileFormation {
				r.Dir = formation(t)
			}
			made, err := scaffold.New(r)
			if err != nil {
				t.Fatal(err)
			}
			loads(t, made.Dir)
			_, warnings, _ := manifest.Load(made.Dir)
			if diff := cmp.Diff(warnings, made.Warnings); diff != "" {
				t.Errorf("told other warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func loads(t *testing.T, dir string) {
	t.Helper()
	_, warnings, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if w.Rule != manifest.RuleNoEffect {
			t.Errorf("warning: %s", w)
		}
	}
}

// What the comments offer is right too: without its comment sign it loads.
func TestNew_WhatItsCommentsOfferLoads(t *testing.T) {
	t.Parallel()
	offer := regexp.MustCompile(`(?m)^( *)# ( *(?:[a-z_]+:.*|- \S.*|[A-Z_]+: \S.*))$`)
	for name, r := range requests() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.Dir = t.TempDir()
			if r.Kind != manifest.FileFormation {
				r.Dir = formation(t)
			}
			made, err := scaffold.New(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range made.Files {
				at := filepath.Join(made.Dir, file)
				text, err := os.ReadFile(at)
				if err != nil {
					t.Fatal(err)
				}
				if filepath.Ext(file) == ".py" {
					continue
				}
				open := offer.ReplaceAll(text, []byte("$1$2"))
				if name == "mcp" && string(open) == string(text) {
					t.Error("no offer is found")
				}
				if err := os.WriteFile(at, open, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			loads(t, made.Dir)
		})
	}
}

func TestNew_AddsToListsAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	dir := formation(t)
	before := files(t, dir)["formation.afs"]
	for _, r := range []scaffold.Request{
		{Kind: manifest.FileAgent, Name: "zoe"},
		{Kind: manifest.FileAgent, Name: "anna"},
		{Kind: manifest.FileMCP, Name: "tools"},
		{Kind: manifest.FileMCP, Name: "more", URL: "http://127.0.0.1:9/mcp"},
	} {
		r.Dir = dir
		made, err := scaffold.New(r)
		if err != nil {
			t.Fatal(err)
		}
		if line := strings.Split(files(t, dir)["formation.afs"], "\n")[made.Line-1]; strings.TrimSpace(line) != "- "+r.Name {
			t.Errorf("line %d is %q", made.Line, line)
		}
	}
	want := before + "  - zoe\n  - anna\n\nmcp:\n  servers:\n    - tools\n    - more\n"
	if diff := cmp.Diff(want, files(t, dir)["formation.afs"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f, _, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f.Agent("zoe") == nil || f.Agent("anna") == nil || len(f.MCPServers) != 2 {
		t.Errorf("agents %v, servers %v", f.Agents, f.MCPServers)
	}
}

func TestNew_RefusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		r    scaffold.Request
		old  map[string]string // files that are there, beside a formation
		kind fault.Kind
		want string
	}{
		{"a taken name", scaffold.Request{Kind: "agent", Name: "assistant"}, nil, fault.Conflict, "agents/assistant.afs is there already"},
		{"of another ending", scaffold.Request{Kind: "agent", Name: "a"}, map[string]string{"agents/a.yml": "x"}, fault.Conflict, "agents/a.yml is there already"},
		{"in the older directory", scaffold.Request{Kind: "mcp", Name: "a"}, map[string]string{"mcps/a.yaml": "x"}, fault.Conflict, "mcps/a.yaml is there already"},
		{"of its program", scaffold.Request{Kind: "mcp", Name: "a"}, map[string]string{"mcp/a.py": "x"}, fault.Conflict, "mcp/a.py is there already"},
		{"of a skill", scaffold.Request{Kind: "skill", Name: "ab"}, map[string]string{"skills/ab/notes": "x"}, fault.Conflict, "skills/ab is there already"},
		{"of a procedure", scaffold.Request{Kind: "sop", Name: "ab"}, map[string]string{"sops/ab.md": "x"}, fault.Conflict, "sops/ab.md is there already"},
		{"in its own words", scaffold.Request{Kind: "agent", Name: "me"}, map[string]string{"formation.afs": manifestWith("agents: [{id: me, description: d}]")}, fault.Conflict, `formation.afs:5 has the agent "me" in its own words`},
		{"a bad name", scaffold.Request{Kind: "agent", Name: "../x"}, nil, fault.Invalid, "an agent id has at most 64 letters"},
		{"a bad name of a skill", scaffold.Request{Kind: "skill", Name: "X"}, nil, fault.Invalid, "the name of a skill has a-z, 0-9 and -"},
		{"a template that is none", scaffold.Request{Kind: "agent", Name: "x", Template: "specialst"}, nil, fault.Invalid, `agent has no template "specialst": did you mean specialist? It has generalist, specialist`},
		{"a template far from any", scaffold.Request{Kind: "trigger", Name: "x", Template: "zzz"}, nil, fault.Invalid, "one of event, github, alert"},
		{"a template where there is one form", scaffold.Request{Kind: "skill", Name: "ab", Template: "x"}, nil, fault.Invalid, "one form"},
		{"an address of a program", scaffold.Request{Kind: "mcp", Name: "x", Template: "command", URL: "https://h/"}, nil, fault.Invalid, "has no address"},
		{"a command and an address", scaffold.Request{Kind: "mcp", Name: "x", URL: "https://h/", Command: []string{"a"}}, nil, fault.Invalid, "only a tool server that the formation starts"},
		{"a command of an agent", scaffold.Request{Kind: "agent", Name: "x", Command: []string{"a"}}, nil, fault.Invalid, "only a tool server"},
		{"a blank command", scaffold.Request{Kind: "mcp", Name: "x", Command: []string{" ", "a"}}, nil, fault.Invalid, "the command is blank"},
		{"a command of two lines", scaffold.Request{Kind: "mcp", Name: "x", Command: []string{"a", "b\nc"}}, nil, fault.Invalid, "argument 1 of the command has a control character"},
		{"a long argument", scaffold.Request{Kind: "mcp", Name: "x", Command: []string{"a", strings.Repeat("b", 4097)}}, nil, fault.Invalid, "more than 4096 bytes"},
		{"no such kind", scaffold.Request{Kind: "group", Name: "x"}, nil, fault.Invalid, "one of formation, agent"},
		{"two lines", scaffold.Request{Kind: "agent", Name: "x", Description: "a\nb"}, nil, fault.Invalid, "more than one line"},
		{"a long description", scaffold.Request{Kind: "agent", Name: "x", Description: strings.Repeat("ä", 301)}, nil, fault.Invalid, "more than 300"},
		{"a placeholder", scaffold.Request{Kind: "agent", Name: "x", Description: "${{ secrets.A }}"}, nil, fault.Invalid, "placeholder"},
		{"no address", scaffold.Request{Kind: "mcp", Name: "x", URL: "file:///etc/passwd"}, nil, fault.Invalid, "no URL like https://"},
		{"an address with a key", scaffold.Request{Kind: "mcp", Name: "x", URL: "https://me:hunter2@host/"}, nil, fault.Invalid, "keys and passwords"},
		{"a skill of nobody", scaffold.Request{Kind: "skill", Name: "ab", Agent: "nobody"}, nil, fault.NotFound, `no agent "nobody"`},
		{"a skill of a path", scaffold.Request{Kind: "skill", Name: "ab", Agent: "../.."}, nil, fault.Invalid, "an agent id has"},
		{"an included list", scaffold.Request{Kind: "agent", Name: "x"}, map[string]string{"formation.afs": manifestWith("agents: {$include: list.yaml}"), "list.yaml": "[assistant]"}, fault.Invalid, "Add `- x` to agents by hand"},
		{"no YAML", scaffold.Request{Kind: "agent", Name: "x"}, map[string]string{"formation.afs": manifestWith("agents: [a")}, fault.Invalid, "the manifest must be mended first: formation.afs:"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.r.Dir = formation(t)
			for name, text := range c.old {
				at := filepath.Join(c.r.Dir, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			before := files(t, c.r.Dir)
			_, err := scaffold.New(c.r)
			if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != c.kind {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the password is told")
			}
			if diff := cmp.Diff(before, files(t, c.r.Dir)); diff != "" {
				t.Errorf("it left something (-before +after):\n%s", diff)
			}
		})
	}
}

// A command is read as it was given, whatever is in it.
func TestNew_ACommandStaysAsItIs(t *testing.T) {
	t.Parallel()
	command := []string{"a program", "-y", "", "a, b", "{c: d}", `"e"`, `\f`, "#g", "${{ secrets.H }}", "ü", "'i'", "- j", "null", "1"}
	dir := formation(t)
	if _, err := scaffold.New(scaffold.Request{Kind: manifest.FileMCP, Name: "x", Dir: dir, Command: command}); err != nil {
		t.Fatal(err)
	}
	f, _, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(command, append([]string{f.MCPServers[0].Command}, f.MCPServers[0].Args...)); diff != "" {
		t.Error(diff)
	}
}

func manifestWith(line string) string {
	return "schema: \"1.0.0\"\nid: abc\ndescription: d\nllm: {models: [{text: demo/hello}]}\n" + line + "\n"
}

// A part that breaks the formation it was added to is taken back, as is
// everything when writing fails midway.
func TestNew_TakesBackWhatItBegan(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		r       scaffold.Request
		disturb func(dir string) error
	}{
		"no directory can be made": {scaffold.Request{Kind: "agent", Name: "x"}, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "agents")), os.WriteFile(filepath.Join(dir, "agents"), nil, 0o600))
		}},
		"the second file fails": {scaffold.Request{Kind: "skill", Name: "ab", Agent: "assistant"}, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "agents/assistant"), nil, 0o600)
		}},
		"a directory leads away": {scaffold.Request{Kind: "mcp", Name: "x"}, func(dir string) error {
			return os.Symlink("/tmp", filepath.Join(dir, "mcp"))
		}},
		"the manifest is a link": {scaffold.Request{Kind: "agent", Name: "x"}, func(dir string) error {
			at := filepath.Join(dir, "formation.afs")
			return errors.Join(os.Rename(at, filepath.Join(dir, "real")), os.Symlink("real", at))
		}},
		"the manifest cannot be replaced": {scaffold.Request{Kind: "mcp", Name: "x"}, func(dir string) error {
			// What a killed call leaves is removed, a directory of that name is not.
			return os.MkdirAll(filepath.Join(dir, ".new-formation.afs", "full"), 0o755)
		}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.r.Dir = formation(t)
			if err := c.disturb(c.r.Dir); err != nil {
				t.Fatal(err)
			}
			before := files(t, c.r.Dir)
			if _, err := scaffold.New(c.r); err == nil {
				t.Error("no error")
			}
			if diff := cmp.Diff(before, files(t, c.r.Dir)); diff != "" {
				t.Errorf("it left something (-before +after):\n%s", diff)
			}
		})
	}
}

func TestNew_AFormationIsMadeWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := scaffold.Request{Kind: manifest.FileFormation, Name: "hello", Dir: filepath.Join(dir, "a", "b")}
	if _, err := scaffold.New(r); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	if _, err := scaffold.New(r); fault.KindOf(err) != fault.Conflict {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.Dir = filepath.Join(dir, "file", "c")
	if _, err := scaffold.New(r); err == nil {
		t.Error("made below a file")
	}
	after := files(t, dir)
	delete(after, "file")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("it left something (-before +after):\n%s", diff)
	}
	if _, err := scaffold.New(scaffold.Request{Kind: "agent", Name: "x", Dir: dir}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestNew_ManyAtOnceAreAllListed(t *testing.T) {
	t.Parallel()
	dir := formation(t)
	var wg sync.WaitGroup
	const many = 12
	errs := make([]error, many)
	for i := range many {
		wg.Go(func() {
			_, errs[i] = scaffold.New(scaffold.Request{Kind: "agent", Name: fmt.Sprintf("a%d", i), Dir: dir})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	f, _, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Agents) != many+1 {
		t.Errorf("%d agents", len(f.Agents))
	}
}

func TestNew_WorksInABrokenFormation(t *testing.T) {
	t.Parallel()
	dir := formation(t)
	text := manifestWith("overlord: {response: {format: markdwon}}\nagents:\n  - assistant\n  - late")
	if err := os.WriteFile(filepath.Join(dir, "formation.afs"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range []scaffold.Request{{Kind: "agent", Name: "late"}, {Kind: "agent", Name: "next"}, {Kind: "sop", Name: "s"}} {
		r.Dir = dir
		made, err := scaffold.New(r)
		if err != nil {
			t.Fatal(err)
		}
		if listed := made.Manifest != ""; listed != (r.Name == "next") {
			t.Errorf("%s: listed is %v", r.Name, listed)
		}
	}
	if got := files(t, dir)["formation.afs"]; got != text+"  - next\n" {
		t.Errorf("got %s", got)
	}
}

// The tool server of the scaffold answers as the protocol says.
func TestNew_TheToolServerServes(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here")
	}
	dir := formation(t)
	if _, err := scaffold.New(scaffold.Request{Kind: "mcp", Name: "words", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	f, _, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := f.MCPServers[0]
	if s.Command != "python3" {
		t.Fatalf("command %q", s.Command)
	}
	cmd := exec.CommandContext(t.Context(), python, s.Args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"count_words","arguments":{"text":"one two three"}}}
{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"count_words","arguments":{"wrong":1}}}
{"jsonrpc":"2.0","id":5,"method":"resources/list"}
{"jsonrpc":"2.0","id":6,"method":"ping"}
`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var reply struct {
			ID     int
			Result struct {
				ProtocolVersion string
				Tools           []struct{ Name string }
				Content         []struct{ Text string }
				IsError         bool
			}
			Error *struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &reply); err != nil {
			t.Fatal(err)
		}
		code := 0
		if reply.Error != nil {
			code = reply.Error.Code
		}
		r := reply.Result
		got = append(got, fmt.Sprint(reply.ID, " ", r.ProtocolVersion, r.Tools, len(r.Content), r.IsError, code))
		if reply.ID == 3 && r.Content[0].Text != "3 words, 13 characters" {
			t.Errorf("got %q", r.Content[0].Text)
		}
	}
	want := []string{"1 2025-06-18[] 0 false 0", "2 [{count_words}] 0 false 0", "3 [] 1 false 0", "4 [] 1 true 0", "5 [] 0 false -32601", "6 [] 0 false 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

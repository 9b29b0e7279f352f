package main

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/scaffold"
)

func (a *app) newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Write the first files of a formation, or of a part of one",
		Long: `Write the first files of a formation, or of a part of one.

They are valid as they are and say in comments what else there is. An agent and
a tool server are also added to the manifest's list, which keeps everything else
in it; skills, procedures, triggers and transformers are found by their place.
Nothing is overwritten, and nothing is left behind when it fails.`,
		Example: `  supervisor new formation hello && supervisor deploy hello
  supervisor new formation desk --template anthropic
  cd hello && supervisor new agent writer --description "Writes and edits texts"
  supervisor new mcp memory -- npx -y @modelcontextprotocol/server-memory`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, kind := range scaffold.Kinds() {
		cmd.AddCommand(a.newKindCommand(kind))
	}
	return cmd
}

// newHelp is what a kind's command says of itself.
func newHelp(kind string) (short, long string) {
	switch kind {
	case manifest.FileFormation:
		return "Write a formation that answers at once, from an offline model",
			"It becomes the directory NAME. Its model is an offline demo without understanding;\nits manifest says how to take a real one."
	case manifest.FileAgent:
		return "Write an agent and list it in the manifest",
			"The description decides which messages the agent gets."
	case manifest.FileMCP:
		return "Write a tool server and list it in the manifest",
			"Without --url it is a program that the formation starts: the one after --, or one of\nyour own in Python, with one tool to go on from."
	case manifest.FileSkill:
		return "Write a skill: instructions that an agent takes up when it needs them",
			"It is a directory with SKILL.md and a script. Every agent sees it, or --agent alone."
	case manifest.FileSOP:
		return "Write a standard procedure that messages like its description follow", ""
	case manifest.FileTrigger:
		return "Write a trigger: the message that an outside event becomes", ""
	}
	return "Write a transformer: the form in which answers are sent on", ""
}

// templatesHelp lists the templates of a kind.
func templatesHelp(kind string) string {
	templates := scaffold.Templates(kind)
	if templates == nil {
		return ""
	}
	width := 0
	for _, t := range templates {
		width = max(width, len(t.Name))
	}
	var b strings.Builder
	b.WriteString("\n\nTemplates:\n")
	for _, t := range templates {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, t.Name, t.Description)
	}
	return b.String()
}

func (a *app) newKindCommand(kind string) *cobra.Command {
	r := scaffold.Request{Kind: kind}
	short, long := newHelp(kind)
	cmd := &cobra.Command{
		Use:   kind + " NAME",
		Short: short,
		Long:  strings.TrimSpace(short + ".\n\n" + long + templatesHelp(kind)),
		Args:  cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			r.Name, r.Command = args[0], args[1:]
			if err := manifest.CheckName(kind, r.Name); err != nil {
				return usagef("%v", err)
			}
			if err := scaffold.CheckTemplate(r); err != nil {
				return usagef("%v", err)
			}
			made, err := a.scaffold(r)
			if err != nil {
				return err
			}
			return a.printMade(r, made)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	if kind == manifest.FileFormation {
		flags.StringVar(&r.Dir, "path", ".", "directory to make it in")
	} else {
		flags.StringVar(&r.Dir, "path", "", "directory of the formation (default: the one that you are in)")
	}
	if templates := scaffold.Templates(kind); templates != nil {
		flags.StringVar(&r.Template, "template", "", "the form to begin with, see above (default: "+templates[0].Name+")")
		_ = cmd.RegisterFlagCompletionFunc("template", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var offers []string
			for _, t := range templates {
				offers = append(offers, t.Name+"\t"+t.Description)
			}
			return offers, cobra.ShellCompDirectiveNoFileComp
		}) // fails for a flag that is not there
	}
	switch kind {
	case manifest.FileTrigger, manifest.FileTransformer: // have no description
	default:
		flags.StringVar(&r.Description, "description", "", "one line: what it is for")
	}
	switch kind {
	case manifest.FileSkill:
		flags.StringVar(&r.Agent, "agent", "", "id of the agent that alone sees it")
	case manifest.FileMCP:
		cmd.Use += " [-- PROGRAM [ARG...]]"
		cmd.Args = oneThenCommand
		flags.StringVar(&r.URL, "url", "", "address of a server that others run")
	case manifest.FileTransformer:
		flags.StringVar(&r.URL, "url", "", "address of the receiver")
	}
	return cmd
}

// oneThenCommand takes a name and, after --, a command line.
func oneThenCommand(cmd *cobra.Command, args []string) error {
	if n := cmd.ArgsLenAtDash(); n >= 0 && len(args) > n {
		args = args[:n]
	}
	return cobra.ExactArgs(1)(cmd, args)
}

// scaffold makes it in the right place.
func (a *app) scaffold(r scaffold.Request) (*scaffold.Made, error) {
	if r.Dir == "" {
		dir, err := enclosing()
		if err != nil {
			return nil, err
		}
		r.Dir = dir
	}
	made, err := scaffold.New(r)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return nil, &client.Error{Status: http.StatusNotFound, Name: "NotFound", Message: err.Error()}
	case err != nil && fault.KindOf(err) == fault.Invalid && made == nil:
		return nil, fmt.Errorf("nothing was made: %w", err)
	}
	return made, err
}

// enclosing returns the directory of the formation that you are in, as seen from
// there.
func enclosing() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the formation: %w", err)
	}
	dir := "."
	for at := here; ; at = filepath.Dir(at) {
		if _, err := manifest.Find(at); err == nil {
			return dir, nil
		}
		if at == filepath.Dir(at) {
			return "", &client.Error{
				Status: http.StatusNotFound, Name: "NotFound",
				Message: "no directory from here up holds a formation: go to one, name one with --path, or make one with `supervisor new formation NAME`",
			}
		}
		dir = filepath.Join(dir, "..")
	}
}

// madeFiles is what was made, for programs.
type madeFiles struct {
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Dir      string   `json:"dir"`
	Files    []string `json:"files"`
	Manifest string   `json:"manifest,omitempty"` // that lists it now
	List     string   `json:"list,omitempty"`
	Line     int      `json:"line,omitempty"`
	Warnings []string `json:"warnings"`
	Next     []string `json:"next"`
}

func (a *app) printMade(r scaffold.Request, made *scaffold.Made) error {
	m := madeFiles{Kind: r.Kind, Name: r.Name, Dir: made.Dir, Files: []string{}, List: made.List, Line: made.Line, Warnings: []string{}, Next: nextSteps(r, made)}
	for _, file := range made.Files {
		m.Files = append(m.Files, filepath.Join(made.Dir, filepath.FromSlash(file)))
	}
	if made.Manifest != "" {
		m.Manifest = filepath.Join(made.Dir, made.Manifest)
	}
	for _, w := range made.Warnings {
		m.Warnings = append(m.Warnings, w.String())
	}
	if a.json() {
		return a.printJSON(m)
	}
	for _, w := range m.Warnings {
		a.say("warning: %s", w)
	}
	var b strings.Builder
	for _, file := range m.Files {
		b.WriteString("wrote " + file + "\n")
	}
	if m.Manifest != "" {
		fmt.Fprintf(&b, "added %s to %s, %s:%d\n", r.Name, m.List, m.Manifest, m.Line)
	}
	b.WriteString("\nnext:\n  " + strings.Join(m.Next, "\n  "))
	return a.result("%s", b.String())
}

// nextSteps are what an author does now.
func nextSteps(r scaffold.Request, made *scaffold.Made) []string {
	dir := shellWord(made.Dir)
	at := func(file string) string { return shellWord(filepath.Join(made.Dir, filepath.FromSlash(file))) }
	if r.Kind == manifest.FileFormation {
		steps := []string{
			"supervisor deploy " + dir,
			"supervisor chat " + r.Name + ` "What can you do?"`,
			"supervisor new agent NAME --path " + dir,
		}
		if made.Secrets {
			steps = append([]string{"supervisor secrets setup --path " + dir}, steps...)
		}
		return steps
	}
	steps := []string{"edit " + at(made.Files[0])}
	if r.Kind == manifest.FileMCP {
		steps[0] = "edit " + at(made.Files[len(made.Files)-1]) // the program, when there is one
		steps = append(steps, "give it to an agent, in its file: mcp_servers: ["+r.Name+"]")
	}
	steps = append(steps, "supervisor validate "+dir, "raise the version in the manifest, then: supervisor deploy "+dir)
	if r.Kind == manifest.FileMCP {
		steps = append(steps, "see how it is, and its tools: supervisor tools "+cmp.Or(made.Formation, "FORMATION")+" --server "+r.Name)
	}
	return steps
}

// shellWord writes a path so that a shell takes it as one word.
func shellWord(s string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-+,=@%:", c)
	}
	if s != "" && strings.IndexFunc(s, func(c rune) bool { return !plain(c) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

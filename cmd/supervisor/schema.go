package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/manifest"
)

const schemaHelp = `Print the JSON Schema of a kind of file, for editors.

Without a KIND it lists the kinds. A schema is made from the reader itself, so
it takes what "supervisor validate" takes; what one file says about another is
checked there only. Skills, procedures and triggers have one for the block of
keys between their --- lines.

In an editor with the YAML language server (VS Code with the YAML extension,
Neovim, Emacs, Helix), write the schemas beside your formation,

  supervisor schema --dir .schemas

and name one in the first line of a file, relative to the file:

  # yaml-language-server: $schema=.schemas/formation.json      formation.afs
  # yaml-language-server: $schema=../.schemas/agent.json       agents/NAME.afs

or for all files at once, in VS Code's .vscode/settings.json:

  "files.associations": {"*.afs": "yaml"},
  "yaml.schemas": {
    ".schemas/formation.json": "formation.afs",
    ".schemas/agent.json": "agents/*.afs",
    ".schemas/mcp.json": "mcp/*.afs",
    ".schemas/transformer.json": "transformers/*.yaml"
  }`

func (a *app) schemaCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:       "schema [KIND]",
		Short:     "Print the JSON Schema of a kind of file, for editors",
		Long:      schemaHelp,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: manifest.Schemas(),
		RunE: does(func(_ *cobra.Command, args []string) error {
			kinds := manifest.Schemas()
			if len(args) == 1 {
				kinds = args
			}
			if dir != "" {
				return a.saveSchemas(dir, kinds)
			}
			if len(args) == 0 {
				return a.listSchemas()
			}
			schema, err := schemaOf(args[0])
			if err != nil {
				return err
			}
			_, err = a.out.Write(schema)
			return err
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write KIND.json into this directory, without a KIND those of all kinds")
	return cmd
}

// schemaOf returns the schema of a kind; an unknown one is a fault of the
// command line.
func schemaOf(kind string) ([]byte, error) {
	schema, err := manifest.Schema(kind)
	if err != nil {
		if near := manifest.Nearest(kind, manifest.Schemas()); near != "" {
			return nil, usagef("%v; did you mean %q?", err, near)
		}
		return nil, usagef("%v", err)
	}
	return schema, nil
}

// schemaKind is a kind of file for programs.
type schemaKind struct {
	Kind  string `json:"kind"`
	Files string `json:"files"`
}

// placeOfKind tells where the files of a kind lie.
func placeOfKind(kind string) string {
	switch kind {
	case manifest.FileFormation:
		return "formation.afs"
	case manifest.FileSkill:
		return "skills/*/SKILL.md, agents/*/skills/*/SKILL.md"
	case manifest.FileSOP:
		return "sops/**/*.md"
	case manifest.FileTrigger:
		return "triggers/*.md"
	case manifest.FileTransformer, manifest.FileGroup:
		return kind + "s/*.yaml"
	case manifest.FileAgent:
		return "agents/*.afs"
	case manifest.FileExamples:
		return "routing/examples.yaml"
	}
	return kind + "/*.afs"
}

func (a *app) listSchemas() error {
	kinds := []schemaKind{}
	t := table{heading: []string{"KIND", "FILES"}}
	for _, kind := range manifest.Schemas() {
		kinds = append(kinds, schemaKind{kind, placeOfKind(kind)})
		t.add(kind, placeOfKind(kind))
	}
	if a.json() {
		return a.printJSON(map[string]any{"kinds": kinds})
	}
	return a.printTable(a.out, t)
}

// saveSchemas writes schemas as files; those of an older release are replaced.
func (a *app) saveSchemas(dir string, kinds []string) error {
	written := []string{}
	for _, kind := range kinds {
		schema, err := schemaOf(kind)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as mkdir makes it
			return fmt.Errorf("make the directory of the schemas: %w", err)
		}
		path := filepath.Join(dir, kind+".json")
		_, err = toFile(path, true, func(w io.Writer) (int64, error) {
			n, err := w.Write(schema)
			return int64(n), err
		})
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // a schema is no secret, and editors of others read it
			return fmt.Errorf("write %s: %w", path, err)
		}
		written = append(written, path)
	}
	if a.json() {
		return a.printJSON(map[string]any{"files": written})
	}
	return a.result("wrote %s", strings.Join(written, "\nwrote "))
}

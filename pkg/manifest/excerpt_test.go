package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/manifest"
)

// excerpt shows the line of a fault and underlines it.
func excerpt(t *testing.T, text string, f manifest.Fault) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "formation.afs", []byte(text))
	f.File = "formation.afs"
	x, err := manifest.OpenExcerpts(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	e, ok := x.Of(f)
	if !ok {
		return "none"
	}
	return e.Text + "\n" + strings.Repeat(" ", e.Col-1) + strings.Repeat("^", e.Width)
}

func TestExcerpt_UnderlinesTheOffendingText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		f          manifest.Fault
		want       string
	}{
		{"a value", "id: x\nport: many\n", manifest.Fault{Line: 2, Col: 7, Text: "many"}, "port: many\n      ^^^^"},
		{"in quotes", `port: "many" # why`, manifest.Fault{Line: 1, Col: 7, Text: "many"}, "port: \"many\" # why\n      ^^^^^^"},
		{"in quotes, escaped", `port: 'ma''ny'`, manifest.Fault{Line: 1, Col: 7, Text: "ma'ny"}, "port: 'ma''ny'\n      ^^^^"},
		{"a key", "prot: 1", manifest.Fault{Line: 1, Col: 1, Text: "1"}, "prot: 1\n^^^^"},
		{"a shortened one", "a: " + strings.Repeat("x", 70) + " ", manifest.Fault{Line: 1, Col: 4, Text: strings.Repeat("x", 60) + "…"}, "a: " + strings.Repeat("x", 70) + " \n   " + strings.Repeat("^", 70)},
		{"in characters", "größe: ärger", manifest.Fault{Line: 1, Col: 8, Text: "ärger"}, "größe: ärger\n       ^^^^^"},
		{"in a list", "[a, bb, c]", manifest.Fault{Line: 1, Col: 5}, "[a, bb, c]\n    ^^"},
		{"behind the end", "a: 1", manifest.Fault{Line: 1, Col: 99}, "a: 1\n    ^"},
		{"an empty line", "a: 1\n\nb: 2", manifest.Fault{Line: 2, Col: 1}, "\n^"},
		{"a file ending", "a: 1", manifest.Fault{Line: 3, Col: 1}, "none"},
		{"the whole file", "a: 1", manifest.Fault{Line: 1, Col: 1, Rule: manifest.RuleRequired}, "none"},
		{"no YAML", "a b: c: d", manifest.Fault{Line: 1, Col: 1, Rule: manifest.RuleYAMLSyntax}, "a b: c: d\n^"},
		{"no place", "a: 1", manifest.Fault{}, "none"},
		{"no text", "a: \xff\n", manifest.Fault{Line: 1, Col: 1}, "none"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, excerpt(t, c.text, c.f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestExcerpt_HidesWhatMayBeSecret(t *testing.T) {
	t.Parallel()
	const at = "llm:\n  api_keys:\n"
	tests := []struct {
		name, text string
		f          manifest.Fault
		want       string
	}{
		{"the value of a key", "token: hunter2", manifest.Fault{Line: 1, Col: 8, Text: "***"}, "token: ***\n       ^^^"},
		{"whatever the fault is", "token: hunter2 : x", manifest.Fault{Line: 1, Col: 1, Text: "token"}, "token: ***\n^^^^^"},
		{"below a key", at + "    openai: hunter2", manifest.Fault{Line: 3, Col: 13}, "    openai: ***\n            ^^^"},
		{"its name stays", at + "    opnai: hunter2", manifest.Fault{Line: 3, Col: 5, Text: "opnai"}, "    opnai: ***\n    ^^^^^"},
		{"in a list as deep as its key", "keys:\n- hunter2", manifest.Fault{Line: 2, Col: 3}, "- ***\n  ^^^"},
		{"in a list of blocks", "auth:\n  - type: bearer\n    value: hunter2", manifest.Fault{Line: 3, Col: 5}, "    value: ***\n    ^^^^^"},
		{"in a text of lines", "private_key: |\n  BEGIN\n  hunter2", manifest.Fault{Line: 3, Col: 3}, "  ***\n  ^^^"},
		{"not beside a key", "token: a\nport: x", manifest.Fault{Line: 2, Col: 7}, "port: x\n      ^"},
		{"not below another key", at + "    openai: a\n  models: x", manifest.Fault{Line: 4, Col: 11}, "  models: x\n          ^"},
		{"in braces", `server: {prot: 1, api_keys: {client_key: "hunter2"}}`, manifest.Fault{Line: 1, Col: 10}, `server: {prot: 1, api_keys: {***}}` + "\n         ^^^^"},
		{"behind what is hidden", "a: {token: hunter2, prot: 1}", manifest.Fault{Line: 1, Col: 21}, "a: {token: ***}\n           ^^^"},
		{"in an address", "db: postgres://me:hunter2@host/db", manifest.Fault{Line: 1, Col: 5, Text: "***"}, "db: ***\n    ^^^"},
		{"in an address of another fault", "bd: postgres://me:hunter2@host/db", manifest.Fault{Line: 1, Col: 1, Text: "bd"}, "bd: postgres://***@host/db\n^^"},
		{"references stay", at + "    openai: ${{ secret.X }}", manifest.Fault{Line: 3, Col: 13}, "    openai: ${{ secret.X }}\n            ^^^"},
		{"what stands beside them does not", "token: hunter2${{ secrets.X", manifest.Fault{Line: 1, Col: 15}, "token: ***${{ secrets.X\n          ^^^"},
		{"nor between two", "token: ${{ a }}hunter2${{ b }} hunter2", manifest.Fault{Line: 1, Col: 1, Text: "token"}, "token: ${{ a }}***${{ b }} ***\n^^^^^"},
		{"words that tell nothing", "auth: true\nkey: |\n", manifest.Fault{Line: 1, Col: 7, Text: "***"}, "auth: ***\n      ^^^"},
		{"nor does a sign", "auth: true\nkey: |\n", manifest.Fault{Line: 2, Col: 1}, "key: |\n^^^"},
		{"words that are none", "keywords: many\nmax_tokens: few", manifest.Fault{Line: 1, Col: 11}, "keywords: many\n          ^^^^"},
		{"in JSON", `{"token":"hunter2"}`, manifest.Fault{Line: 1, Col: 2}, `{"token":***}` + "\n " + "^^^^^^^"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := excerpt(t, c.text, c.f)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.Contains(got, "hunter2") {
				t.Error("the secret is shown")
			}
		})
	}
}

func TestExcerpt_ReadsNothingOutsideTheFormation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "secret", []byte("outside\n"))
	write(t, dir, "in/formation.afs", []byte("a: 1\n"))
	if err := os.Symlink("../secret", filepath.Join(dir, "in", "link")); err != nil {
		t.Fatal(err)
	}
	x, err := manifest.OpenExcerpts(filepath.Join(dir, "in", "formation.afs"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, name := range []string{"../secret", "link", filepath.Join(dir, "secret"), "none", "."} {
		if e, ok := x.Of(manifest.Fault{File: name, Line: 1, Col: 2}); ok {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, ok := x.Of(manifest.Fault{File: "formation.afs", Line: 1, Col: 4}); !ok {
		t.Error("the manifest itself is not shown")
	}
	if _, err := manifest.OpenExcerpts(filepath.Join(dir, "none")); err == nil {
		t.Error("what is not there was opened")
	}
}

// A hostile file is shown in the time that a person waits.
func TestExcerpt_StaysFastOnLongLinesAndFiles(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"- ", "a: ", "token: ", "${{ x }} token: ", "://a@", "'", "- - a\n", "  a: b\n", "token: ${{ x }} y\n"} {
		t.Run(unit, func(t *testing.T) {
			t.Parallel()
			text := strings.Repeat(unit, (1<<20)/len(unit)-1)
			dir := t.TempDir()
			write(t, dir, "formation.afs", []byte(text))
			x, err := manifest.OpenExcerpts(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			last := strings.Count(text, "\n") + 1
			d := processorTime(t, func() {
				for i := range 200 {
					x.Of(manifest.Fault{File: "formation.afs", Line: max(last-i, 1), Col: 1 << (i % 20), Text: "***"})
				}
			})
			if d > 30*time.Second {
				t.Errorf("took %s", d)
			}
		})
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add("token: hunter2\n", 1, 8, "***")
	f.Add("a: {b: c, d: ${{ x }}}\n- k: v", 2, 4, "")
	f.Add("größe: ://x@y", 1, 3, "…")
	f.Fuzz(func(t *testing.T, text string, line, col int, shown string) {
		dir := t.TempDir()
		write(t, dir, "formation.afs", []byte(text))
		x, err := manifest.OpenExcerpts(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		e, ok := x.Of(manifest.Fault{File: "formation.afs", Line: line, Col: col, Text: shown})
		if n := len([]rune(e.Text)); ok && (e.Col < 1 || e.Col > n+1 || e.Width < 1 || e.Col+e.Width > n+2) {
			t.Errorf("%+v is not within %d characters", e, n)
		}
	})
}

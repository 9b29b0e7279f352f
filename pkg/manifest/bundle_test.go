package manifest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

const head = "schema: \"1.0.0\"\nid: hello\ndescription: x\n"

// builtCase is a bundle that a text file can't show.
type builtCase struct {
	name  string
	rule  manifest.RuleID
	where string // what the fault's line starts with
	build func(t *testing.T, dir string)
}

func builtCases() []builtCase {
	return []builtCase{
		{"no manifest", manifest.RuleFileMissing, "formation.afs: ", func(*testing.T, string) {}},
		{"large file", manifest.RuleFileSize, "formation.afs: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte(head+"# "+strings.Repeat("x", 1<<20)))
		}},
		{"many bytes", manifest.RuleFileSize, "formation.afs:22:3: agents[17]: agents/a17.afs: ", func(t *testing.T, dir string) {
			agents(t, dir, 20, "#"+strings.Repeat("x", 1<<20-100)+"\n")
		}},
		{"many files", manifest.RuleFileCount, "formation.afs:2004:3: agents[1999]: agents/a1999.afs: ", func(t *testing.T, dir string) {
			agents(t, dir, 2001, "")
		}},
		{"invalid UTF-8", manifest.RuleFileEncoding, "formation.afs:2:6: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte("schema: \"1.0.0\"\nid: é\xff\n"))
		}},
		{"UTF-16", manifest.RuleFileEncoding, "formation.afs:1:1: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte{0xff, 0xfe, 'a', 0})
		}},
		{"control character", manifest.RuleFileEncoding, "formation.afs:1:3: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte("id\x00: x\n"))
		}},
		{"manifest is a directory", manifest.RuleFileKind, "formation.afs: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs/x", nil)
		}},
		{"agent is a named pipe", manifest.RuleFileKind, "formation.afs:5:3: agents[0]: agents/a0.afs: ", func(t *testing.T, dir string) {
			agents(t, dir, 1, "")
			pipe := filepath.Join(dir, "agents", "a0.afs")
			if err := errors.Join(os.Remove(pipe), syscall.Mkfifo(pipe, 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
		{"agent is a link to the outside", manifest.RuleFileKind, "formation.afs:5:3: agents[0]: agents/a0.afs: ", func(t *testing.T, dir string) {
			agents(t, dir, 1, "")
			outside := filepath.Join(t.TempDir(), "a0.afs")
			link := filepath.Join(dir, "agents", "a0.afs")
			if err := errors.Join(os.Rename(link, outside), os.Symlink(outside, link)); err != nil {
				t.Fatal(err)
			}
		}},
		{"deep brackets", manifest.RuleYAMLDepth, "formation.afs:4:67: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte(head+"a: "+strings.Repeat("[", 100)+strings.Repeat("]", 100)))
		}},
		{"many values", manifest.RuleYAMLSize, "formation.afs:", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte(head+"a:\n"+strings.Repeat("- x\n", 20_000)))
		}},
		{"anchors that double", manifest.RuleYAMLSize, "formation.afs:", func(t *testing.T, dir string) {
			var b strings.Builder
			b.WriteString(head + "a0: &a0 x\n")
			for i := 1; i < 40; i++ {
				fmt.Fprintf(&b, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
			}
			write(t, dir, "formation.afs", []byte(b.String()))
		}},
		{"includes that double", manifest.RuleYAMLSize, "p", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte(head+"a: {$include: p0.yaml}\n"))
			for i := range 40 {
				part := fmt.Sprintf("a: {$include: p%d.yaml}\nb: {$include: p%d.yaml}\n", i+1, i+1)
				write(t, dir, fmt.Sprintf("p%d.yaml", i), []byte(part))
			}
			write(t, dir, "p40.yaml", []byte("x: y\n"))
		}},
		{"a long key", manifest.RuleYAMLSize, "formation.afs:4:1: ", func(t *testing.T, dir string) {
			write(t, dir, "formation.afs", []byte(head+strings.Repeat("k", 300)+": 1\n"))
		}},
	}
}

// agents writes a formation of n agents whose files end with tail.
func agents(t *testing.T, dir string, n int, tail string) {
	t.Helper()
	list := head + "agents:\n"
	for i := range n {
		list += fmt.Sprintf("- a%d\n", i)
		write(t, dir, fmt.Sprintf("agents/a%d.afs", i), fmt.Appendf(nil, "schema: \"1.0.0\"\nid: a%d\nname: a\ndescription: x\n%s", i, tail))
	}
	write(t, dir, "formation.afs", []byte(list))
}

func TestLoad_RefusesBundlesThatTextCannotShow(t *testing.T) {
	t.Parallel()
	for _, c := range builtCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c.build(t, dir)
			_, _, err := manifest.Load(dir)
			var faults *manifest.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error is %T: %v", err, err)
			}
			for _, f := range *faults {
				if f.Rule == c.rule && strings.HasPrefix(f.String(), c.where) {
					return
				}
			}
			t.Errorf("no fault of rule %s at %q, but:\n%v", c.rule, c.where, err)
		})
	}
}

func TestFind_TellsWhereTheManifestMayBe(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{
		"desk/formation.afs": "there is one in desk",
		"formation.json":     "name the file formation.json itself",
		"manifest.yaml":      "rename manifest.yaml",
		"Formation.afs":      "rename Formation.afs",
		"formation.afs.txt":  "rename formation.afs.txt",
		"notes.txt":          "formation.yml",
	} {
		dir := t.TempDir()
		write(t, dir, at, []byte("x"))
		if _, err := manifest.Find(dir); err == nil || !strings.HasSuffix(strings.TrimSuffix(err.Error(), ", or rename it"), want) && !strings.Contains(err.Error(), want+" if") {
			t.Errorf("%s: %v, want %s", at, err, want)
		}
	}
}

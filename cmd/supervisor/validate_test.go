package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// validated checks a manifest and returns what is printed.
func validated(t *testing.T, s *session, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	text := "schema: \"1.0.0\"\nid: abc\ndescription: d\nllm: {models: [{text: demo/hello}]}\nagents: [{id: a, name: A, description: b}]\n"
	if err := os.WriteFile(filepath.Join(dir, "formation.afs"), []byte(text+strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := s.run(t.Context(), "validate", dir); code != exitFailed {
		t.Fatalf("exit code %d: %s%s", code, s.out.String(), s.er.String())
	}
	return strings.ReplaceAll(s.out.String(), dir+"/", "")
}

func TestValidate_MarksTheTextWhateverIsBeforeIt(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		line, want string
	}{
		"wide characters": {
			"memory: {漢字: 1, buffer: {size: many}}",
			"    6 | memory: {漢字: 1, buffer: {size: many}}\n      |                                  ^^^^\n",
		},
		"a tab": {
			"memory: {buffer:\t{size: many}}",
			"    6 | memory: {buffer:    {size: many}}\n      |                            ^^^^\n",
		},
		"a long line": {
			"memory: {buffer: {size: many}, x: " + strings.Repeat("y", 200) + "}",
			"    6 | memory: {buffer: {size: many}, x: " + strings.Repeat("y", 76) + "…\n      |                         ^^^^\n",
		},
		"a long line with the fault at its end": {
			"memory: {x: " + strings.Repeat("y", 200) + ", buffer: {size: many}}",
			"    6 | …" + strings.Repeat("y", 87) + ", buffer: {size: many}}\n      | " + strings.Repeat(" ", 105) + "^^^^\n",
		},
		"what a terminal would obey": {
			"memory: {\u009b2J: 1, buffer: {size: many}}",
			"    6 | memory: {2J: 1, buffer: {size: many}}\n      |                                ^^^^\n",
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := validated(t, &session{}, c.line)
			_, got, _ = strings.Cut(got, "takes a whole number, not text [value.type]\n")
			got = strings.Join(strings.SplitAfter(got, "\n")[:2], "")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidate_ColoursAtATerminalOnly(t *testing.T) {
	t.Parallel()
	const fault = "memory: {buffer: {size: many}}"
	bare := validated(t, &session{}, fault)
	coloured := validated(t, &session{outTTY: true}, fault)
	if !strings.Contains(coloured, "\x1b[31merror:\x1b[0m") || !strings.Contains(coloured, "\x1b[31m^^^^\x1b[0m") {
		t.Errorf("got %q", coloured)
	}
	if got := validated(t, &session{outTTY: true, noColour: true}, fault); got != bare {
		t.Errorf("got %q, want %q", got, bare)
	}
}

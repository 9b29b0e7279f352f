package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plant writes a source tree and reads it back as a house. Each value is the
// room's imports, separated by spaces; those of this module without its
// path.
func plant(t *testing.T, rooms map[string]string) house {
	t.Helper()
	root := t.TempDir()
	for file, imports := range rooms {
		var b strings.Builder
		b.WriteString("// Package x is planted.\npackage x\n")
		for to := range strings.FieldsSeq(imports) {
			if isRoom(to) {
				to = module + "/" + to
			}
			b.WriteString("import _ \"" + to + "\"\n")
		}
		name := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := readHouse(root)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestPlanted_ViolationsOfWallsAreCaught(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rooms map[string]string
		want  []string // in the faults; empty: no fault
		not   string   // not in the faults
	}{
		"clean": {
			rooms: map[string]string{
				"pkg/supervisor/deploy/a.go": "fmt pkg/control",
				"pkg/control/a.go":           "pkg/fault",
				"pkg/fault/a.go":             "errors",
			},
		},
		"direct": {
			rooms: map[string]string{"pkg/supervisor/deploy/a.go": "pkg/formation/chat", "pkg/formation/chat/a.go": ""},
			want:  []string{"pkg/supervisor/deploy must not reach pkg/formation/chat", "(pkg/supervisor/deploy/a.go:3)"},
		},
		"transitive": {
			rooms: map[string]string{
				"pkg/formation/overlord/a.go":      "pkg/formation/overlord/sop",
				"pkg/formation/overlord/sop/a.go":  "pkg/formation/llm",
				"pkg/formation/llm/a.go":           "pkg/formation/memory/facts",
				"pkg/formation/memory/facts/a.go":  "",
				"pkg/formation/overlord/b_test.go": "testing",
			},
			want: []string{
				"pkg/formation/overlord must not reach pkg/formation/memory/facts", "-> pkg/formation/overlord/sop ",
				"-> pkg/formation/llm ", "-> pkg/formation/memory/facts  (pkg/formation/llm/a.go:3)",
			},
		},
		"new directory": {
			rooms: map[string]string{"pkg/formation/memory/dreams/deep/a.go": "pkg/formation/turn", "pkg/formation/turn/a.go": ""},
			want:  []string{"pkg/formation/memory/dreams/deep must not reach pkg/formation/turn"},
		},
		"in a test": {
			rooms: map[string]string{"pkg/control/a.go": "", "pkg/control/a_test.go": "pkg/formation", "pkg/formation/a.go": ""},
			want:  []string{"pkg/control must not reach pkg/formation", "(pkg/control/a_test.go:3)"},
		},
		"a test's import is not passed on": {
			rooms: map[string]string{
				"pkg/control/a.go":        "pkg/httpx",
				"pkg/httpx/a.go":          "",
				"pkg/httpx/a_test.go":     "test/double",
				"test/double/a.go":        "pkg/formation/chat",
				"pkg/formation/chat/a.go": "",
			},
			want: []string{"pkg/httpx must not reach pkg/formation/chat"},
			not:  "pkg/control must",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := strings.Join(checkWalls(plant(t, tt.rooms), walls), "\n")
			if len(tt.want) == 0 && faults != "" {
				t.Errorf("faults in a clean house:\n%s", faults)
			}
			for _, part := range tt.want {
				if !strings.Contains(faults, part) {
					t.Errorf("no %q in:\n%s", part, faults)
				}
			}
			if tt.not != "" && strings.Contains(faults, tt.not) {
				t.Errorf("%q in:\n%s", tt.not, faults)
			}
		})
	}
}

func TestPlanted_ViolationsOfFloorsAreCaught(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rooms map[string]string
		want  string
	}{
		"downward": {
			rooms: map[string]string{"pkg/supervisor/process/a.go": "pkg/control pkg/fault github.com/rs/zerolog"},
		},
		"sideways": {
			rooms: map[string]string{"pkg/supervisor/ports/a.go": "pkg/supervisor/registry"},
			want:  "pkg/supervisor/ports/a.go:3: pkg/supervisor/ports imports pkg/supervisor/registry",
		},
		"upward": {
			rooms: map[string]string{"pkg/supervisor/process/a.go": "pkg/control pkg/supervisor/deploy"},
			want:  "pkg/supervisor/process/a.go:4: pkg/supervisor/process imports pkg/supervisor/deploy",
		},
		"new room": {
			rooms: map[string]string{"pkg/formation/memory/dreams/a.go": ""},
			want:  "pkg/formation/memory/dreams: give this room a floor",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := strings.Join(checkFloors(plant(t, tt.rooms), floors), "\n")
			if tt.want == "" && faults != "" || !strings.Contains(faults, tt.want) {
				t.Errorf("want %q, got %q", tt.want, faults)
			}
		})
	}
}

func TestPlanted_BadPackagesAreCaught(t *testing.T) {
	t.Parallel()
	h := plant(t, map[string]string{
		"pkg/fault/a.go":   "",
		"pkg/fault/b.go":   "",
		"pkg/helpers/a.go": "",
	})
	faults := strings.Join(checkPackages(h), "\n")
	for _, want := range []string{"pkg/fault: 2 package comments", "pkg/helpers: package x: name it"} {
		if !strings.Contains(faults, want) {
			t.Errorf("no %q in %q", want, faults)
		}
	}
}

func TestPlanted_GapsInTheMapAreCaught(t *testing.T) {
	t.Parallel()
	h := plant(t, map[string]string{"pkg/fault/a.go": "", "pkg/formation/turn/a.go": ""})
	faults := strings.Join(checkMap(h, "- `fault` the words\n- `attic` gone\n"), "\n")
	for _, want := range []string{"describes pkg/attic, which does not exist", "no line \"- `formation/turn` ...\""} {
		if !strings.Contains(faults, want) {
			t.Errorf("no %q in %q", want, faults)
		}
	}
	if strings.Contains(faults, "`fault`") {
		t.Errorf("pkg/fault is described, but: %q", faults)
	}
}

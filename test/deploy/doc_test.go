// Package deploy proves what an operator installs: the systemd unit, the
// installer, the image and the package, each against the programs that read
// them where those are there.
package deploy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/test/testprogram"
)

// repository returns the root of the repository, absolute.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); errors.Is(err, fs.ErrNotExist) {
		t.Fatal("test/deploy stands two directories below go.mod")
	}
	return root
}

// deployed is a file of the directory deploy.
func deployed(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(repository(t), "deploy", filepath.FromSlash(name))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = testprogram.Write(path, []byte(text))
	}
	if err == nil {
		err = os.Chmod(path, mode) // whatever the umask is
	}
	if err != nil {
		t.Fatal(err)
	}
}

// programs makes a directory with two files of the programs' names.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"supervisor", "formation-runtime"} {
		write(t, filepath.Join(dir, name), "#!/bin/sh\necho "+name+"\n", 0o755)
	}
	return dir
}

// unit is a systemd unit: values by "Section.Key", in the order of the file.
type unit map[string][]string

func parseUnit(t *testing.T, text string) unit {
	t.Helper()
	u, section := unit{}, ""
	for i, line := range strings.Split(text, "\n") {
		key, value, pair := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case !pair || section == "":
			t.Fatalf("line %d: %q", i+1, line)
		default:
			u[section+"."+key] = append(u[section+"."+key], value)
		}
	}
	return u
}

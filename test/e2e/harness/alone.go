package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Alone is a formation that runs without a supervisor.
type Alone struct {
	*Process

	URL       string
	ClientKey string
	AdminKey  string
}

// Alone serves files from a directory of their own with the state in another,
// and waits until it answers.
func (s *Suite) Alone(tb testing.TB, dir, state string) *Alone {
	tb.Helper()
	first, _ := s.claim(tb)
	a := &Alone{Process: s.Runtime(tb, "serve", "--dir", dir, "--state-dir", state, "--host", "127.0.0.1", "--port", strconv.Itoa(first))}
	a.URL = "http://127.0.0.1:" + strconv.Itoa(first)
	Until(tb, "the formation serves", func() bool {
		if a.Ended() {
			tb.Fatalf("it ended:\n%s", a.Out)
		}
		return strings.Contains(a.Out.String(), "serving on "+a.URL)
	})
	text, err := os.ReadFile(filepath.Join(state, "keys"))
	if err != nil {
		tb.Fatal(err)
	}
	keys := Reply{Body: text}
	a.ClientKey, a.AdminKey = keys.Text("client_key"), keys.Text("admin_key")
	return a
}

// Runtime starts formation-runtime, which is killed when the test ends first.
func (s *Suite) Runtime(tb testing.TB, args ...string) *Process {
	tb.Helper()
	p := run(tb, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tb.TempDir()}, s.Program("formation-runtime"), args...)
	tb.Cleanup(p.Kill)
	return p
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/test/npm"
)

// TestMain makes the test binary the client when the suite starts it.
func TestMain(m *testing.M) {
	if os.Getenv("MCP_CONFORMANCE_SCENARIO") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestClient_PassesTheSuite runs every scenario that applies. The others are of
// OAuth, which the files of tool servers have no words for.
func TestClient_PassesTheSuite(t *testing.T) {
	t.Parallel()
	node, suite := npm.Node22(t), npm.Module(t, "@modelcontextprotocol/conformance/dist/index.js")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), node, suite, "client", "--command", program, "--scenario", name, "-o", filepath.Join(dir, "results"))
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", lastLines(string(out), 6))
		})
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

// loadExamples loads a formation of one agent, a, with these examples.
func loadExamples(t *testing.T, examples string) (*manifest.Formation, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"formation.afs":         "schema: \"1.0.0\"\nid: hello\ndescription: Says hello\nagents:\n  - {id: a, name: A, description: Answers}\n",
		"routing/examples.yaml": examples,
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, _, err := manifest.Load(dir)
	return f, err
}

func TestLoad_TakesSoManyExamplesOfSuchLengthAndNoMore(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "- {message: \"question %d\", agent: a}\n", i)
		}
		return b.String()
	}
	f, err := loadExamples(t, many(2000))
	if err != nil || len(f.Overlord.Routing.Examples) != 2000 {
		t.Fatalf("2000 examples: %v", err)
	}
	if _, err := loadExamples(t, many(2003)); err == nil || strings.Count(err.Error(), "at most 2000") != 1 {
		t.Errorf("2003 examples: %v", err)
	}
	long := func(n int) string { return "- {message: " + strings.Repeat("ä", n) + ", agent: a}\n" }
	if _, err := loadExamples(t, long(2000)); err != nil {
		t.Errorf("a message of 2000 characters: %v", err)
	}
	if _, err := loadExamples(t, long(2001)); err == nil || !strings.Contains(err.Error(), "has 2001 characters; it has at most 2000") {
		t.Errorf("a message of 2001 characters: %v", err)
	}
}

func TestRouting_AsksAModelUnlessItIsOff(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		enabled bool
		method  string
		want    bool
	}{
		{true, manifest.RouteModel, true},
		{true, manifest.RouteHybrid, true},
		{true, manifest.RouteHeuristic, false},
		{false, manifest.RouteModel, false},
	} {
		if got := (manifest.Routing{Enabled: tt.enabled, Method: tt.method}).ByModel(); got != tt.want {
			t.Errorf("enabled %v, method %s: %v", tt.enabled, tt.method, got)
		}
	}
}

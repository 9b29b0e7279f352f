package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// TestCLI runs the scripts of testdata, each with a supervisor of its own on
// $SERVED, the pair formation in $WORK/pair and a user directory without files.
func TestCLI(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := suite.Start(t, harness.Options{Formations: fewRestarts})
			model := fakellm.Start(t, fakellm.Options{})
			model.Add(
				fakellm.Rule{Purpose: "agent", User: "recipe", Reply: fakellm.Reply{Text: "Boil water,\nadd salt."}},
				fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Roses are red."}},
			)
			pair := suite.Pair(t, "pair", model.URL())
			testscript.Run(t, testscript.Params{
				Files: []string{script},
				Setup: func(env *testscript.Env) error { return setUp(env, s, pair) },
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits,
					"capture": func(ts *testscript.TestScript, _ bool, args []string) {
						ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
					},
				},
			})
		})
	}
}

func setUp(env *testscript.Env, s *harness.Supervisor, pair harness.Files) error {
	for name, text := range pair {
		path := filepath.Join(env.WorkDir, "pair", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return err
		}
	}
	user := filepath.Join(env.WorkDir, "user")
	for name, value := range map[string]string{
		"SERVED": s.Home, "URL": s.URL, "KEY_ID": s.KeyID, "SECRET": s.Secret, "PORT": strconv.Itoa(s.FirstPort),
		"HOME": user, "REPO": suite.Root(),
		"PATH": filepath.Dir(suite.Program("supervisor")) + string(os.PathListSeparator) + os.Getenv("PATH"),
	} {
		env.Setenv(name, value)
	}
	return os.Mkdir(user, 0o755)
}

// exits runs a program and expects an exit code: "exits 3 supervisor status x".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%s: %v", args[1], err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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
			s := suite.Start(t, harness.Options{Formations: fewRestarts + quickUpdates})
			model := fakellm.Start(t, fakellm.Options{})
			model.Add(
				cliCall("count the words", "words__count_words", `{"text":"one two"}`),
				fakellm.Rule{Purpose: "agent", User: "count the words", Reply: fakellm.Reply{Text: "It has two words."}},
				cliCall("ask a colleague", "delegate_to_agent", `{"agent_id":"poet","reason":"It is a poem."}`),
				fakellm.Rule{Purpose: "agent", User: "recipe", Reply: fakellm.Reply{Text: "Boil water,\nadd salt."}},
				fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Roses are red."}},
			)
			pair := suite.Pair(t, "pair", model.URL())
			testscript.RunT(scriptTest{t}, testscript.Params{
				Files: []string{script},
				Setup: func(env *testscript.Env) error { return setUp(env, s, pair) },
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits,
					"until": until,
					"find":  find,
					"same":  same,
					"capture": func(ts *testscript.TestScript, _ bool, args []string) {
						ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
					},
				},
			})
		})
	}
}

// cliCall lets the model call a tool when it is told some words.
func cliCall(words, tool, args string) fakellm.Rule {
	return fakellm.Rule{Purpose: "agent", User: words, Times: 1, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{Name: tool, Args: args}}}}
}

// scriptTest is the test of one script. It holds a supervisor and must not wait
// for its turn once more.
type scriptTest struct{ *testing.T }

// Parallel does nothing: the test itself runs beside the others.
func (scriptTest) Parallel() {}

// Run runs the script in a test below this one.
func (s scriptTest) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(scriptTest{t}) })
}

// Verbose tells whether the whole course of the script is shown.
func (scriptTest) Verbose() bool { return testing.Verbose() }

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

// until runs a program again and again until it ends with an exit code:
// "until 5 supervisor list".
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until CODE PROGRAM [ARG...]")
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(harness.Patience)
	defer end.Stop()
	for {
		code := 0
		err := ts.Exec(args[1], args[2:]...)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = exit.ExitCode()
		} else if err != nil {
			ts.Fatalf("%s: %v", args[1], err)
		}
		if strconv.Itoa(code) == args[0] {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			ts.Fatalf("exit code %d, and never %s", code, args[0])
		}
	}
}

// find sets a variable to the first text in a file that an expression matches:
// "find KEY 'fmc_[^ ]+' stdout".
func find(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: find VARIABLE EXPRESSION FILE")
	}
	ts.Setenv(args[0], match(ts, args[1], args[2]))
}

// same expects that an expression finds the same text in two files.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: same EXPRESSION FILE FILE")
	}
	if a, b := match(ts, args[0], args[1]), match(ts, args[0], args[2]); a != b {
		ts.Fatalf("%s has %q, %s has %q", args[1], a, args[2], b)
	}
}

func match(ts *testscript.TestScript, expression, file string) string {
	re, err := regexp.Compile(expression)
	ts.Check(err)
	found := re.FindString(ts.ReadFile(file))
	if found == "" {
		ts.Fatalf("%s: nothing matches %s", file, expression)
	}
	return found
}

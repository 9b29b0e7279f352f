package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/limits"
)

// procFile returns the line of a /proc file of a process that begins with name.
func procFile(t *testing.T, pid int, file, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", itoa(pid), file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	t.Fatalf("/proc/%d/%s has no line %q", pid, file, name)
	return ""
}

// reachable copies the test binary to where a formation's own user may pass.
func reachable(t *testing.T, home string) string {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, "program")
	// Not written by this process: a child that is forked meanwhile would hold the
	// file open, and what is open for writing cannot be executed.
	if out, err := exec.CommandContext(t.Context(), "install", "-m", "755", binary, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestGuard_HoldsEachFormationInThePolicysLimitsAlsoThroughUpdates(t *testing.T) {
	t.Parallel()
	users := &limits.UserRange{First: 321000, Last: 321009}
	r := deploytest.New(t, nil)
	r.Shutdown(t)
	binary := reachable(t, r.Home)
	r.Start(t, func(c *deploy.Config) {
		c.Child.Binary = binary
		c.Guards = &deploy.Guards{
			Policy: limits.Policy{
				Default: limits.Limits{Files: 200}, ByID: map[string]limits.Limits{"hello": {Files: 300}},
				CgroupRoot: "none", Users: users,
			},
			Home: r.Home, FirstPort: r.First,
		}
	})
	hello, other := r.MustDeploy(t, "hello", nil), r.MustDeploy(t, "other", nil)
	updated := r.MustUpdate(t, "hello", version("2.0.0", nil))
	for name, tc := range map[string]struct {
		pid, port int
		files     string
	}{
		"own limits":     {updated.Process.PID, hello.Port, "300 300 files"},
		"default limits": {other.Process.PID, other.Port, "200 200 files"},
	} {
		if got := procFile(t, tc.pid, "limits", "Max open files"); got != tc.files {
			t.Errorf("%s: open files = %q, want %q", name, got, tc.files)
		}
		if got := procFile(t, tc.pid, "status", "NoNewPrivs:"); got != "1" {
			t.Errorf("%s: no_new_privs = %s", name, got)
		}
		want := itoa(os.Geteuid())
		if os.Geteuid() == 0 {
			want = itoa(users.First + tc.port - r.First)
		}
		if got := strings.Fields(procFile(t, tc.pid, "status", "Uid:"))[1]; got != want {
			t.Errorf("%s: runs as user %s, want %s", name, got, want)
		}
		if status, _ := deploytest.Ask(t, tc.port, "/"); status != 200 {
			t.Errorf("%s: answers %d", name, status)
		}
	}
	rollback(t, r, "", 1)
}

func TestGuard_RefusesAFormationThatCannotBeLimited(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy limits.Policy
		text   string
		root   bool // takes it
	}{
		"too little memory": {policy: limits.Policy{Default: limits.Limits{Memory: 1}}, text: "cannot be limited: limits of formation hello: memory"},
		"no user left":      {policy: limits.Policy{Users: &limits.UserRange{First: 5000, Last: 5000}}, text: "has no user to run as", root: true},
	} {
		if tc.root && os.Geteuid() != 0 {
			continue // users are root's to give
		}
		r := deploytest.New(t, func(c *deploy.Config) {
			c.Guards = &deploy.Guards{Policy: tc.policy}
		})
		_, err := r.Deploy(t, "hello", nil)
		t.Log(name)
		assertFault(t, err, fault.Failed, "SpawnError", tc.text)
		assertClean(t, r, "hello")
	}
}

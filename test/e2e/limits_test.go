package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// withTool makes every child start a tool process that does something as soon
// as a file is there, once.
func withTool(t *testing.T, bin, does string) (begin func()) {
	t.Helper()
	flag := filepath.Join(t.TempDir(), "go")
	// A launch is inside its limits from its first instruction on, so the tool is.
	script := "( while [ ! -e " + flag + " ]; do sleep 0.05; done; rm -f " + flag + "; " + does + " ) >/dev/null 2>&1 3<&- 4<&- 5<&- &\n" +
		"exec " + suite.Program("formation-runtime") + ` "$@"`
	replace(t, bin, func(path string) error { return writeScript(path, script) })
	return func() {
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLimits_AFormationThatAllocatesWithoutEndDiesAloneAndSaysSo(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	s := suite.Start(t, harness.Options{Bin: bin, Formations: fewRestarts + "  limits:\n    greedy:\n      memory: 512MiB\n  landlock: false\n"})
	model := fakellm.Start(t, fakellm.Options{})
	other := s.Deploy("modest", suite.Pair(t, "modest", model.URL()))
	// Once a file is there, the process of a launch is one that keeps all it reads.
	flag := filepath.Join(t.TempDir(), "go")
	real := suite.Program("formation-runtime")
	replace(t, bin, func(path string) error {
		return writeScript(path, "[ ! -e "+flag+" ] || exec tail /dev/zero\nexec "+real+` "$@"`)
	})
	f := s.Deploy("greedy", suite.Pair(t, "greedy", model.URL()))
	modest := other.PID()
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.Kill()
	crashed := f.UntilStatus("crashed")
	if reason := crashed.Text("data.last_exit.reason"); !strings.Contains(reason, "out of memory, limit 512 MiB") {
		t.Errorf("the reason is %q", reason)
	}
	if out := s.CLI("status"); !strings.Contains(out.Stdout, "out of memory, limit 512 MiB") {
		t.Errorf("status says:\n%s", out.Stdout)
	}
	other.Get().Want(t, http.StatusOK, "data.pid", strconv.Itoa(modest), "data.restart_count", "0")
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	s.RPC(http.MethodPost, "/rpc/formations/greedy/start").Want(t, http.StatusOK)
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
}

func TestLimits_AForkBombOfAToolStaysInside(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	const limit = 60
	s := suite.Start(t, harness.Options{
		Bin: bin, Formations: "  limits:\n    default:\n      pids: " + strconv.Itoa(limit) + "\n  landlock: false\n",
	})
	model := fakellm.Start(t, fakellm.Options{})
	begin := withTool(t, bin, "i=0; while [ $i -lt 400 ]; do sleep 5 & i=$((i+1)); done; wait") // bounded, should the limit fail
	f := s.Deploy("forks", suite.Pair(t, "forks", model.URL()))
	begin()
	harness.Until(t, "the tool has started processes", func() bool { return len(s.Children()) >= 5 })
	harness.Throughout(t, 2*time.Second, "the processes stay inside the limit", func() bool { return len(s.Children()) <= limit })
	f.UntilStatus("running")
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
}

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// As root a formation has a user of its own. What root writes for it, it must be
// able to read.
func TestKeys_RotatedWhileTheFormationRunsAndReadByItsOwnUser(t *testing.T) {
	t.Parallel()
	own := ""
	if os.Geteuid() == 0 {
		own = "  user_range: 231000-231010\n"
	}
	s := suite.Start(t, harness.Options{Formations: fewRestarts + own})
	for _, dir := range []string{filepath.Dir(s.Home), filepath.Dir(suite.Program("supervisor"))} {
		if err := os.Chmod(dir, 0o711); err != nil { // for users to pass through
			t.Fatal(err)
		}
	}
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("guarded", suite.Pair(t, "guarded", model.URL()))
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})

	rotated := s.CLI("keys", "rotate", "guarded")
	if rotated.Code != 0 || rotated.Stderr != "guarded accepts them\n" {
		t.Fatalf("exit code %d: %s", rotated.Code, rotated.Stderr)
	}
	before := f.ClientKey
	f.ClientKey = regexp.MustCompile(`fmc_[A-Za-z0-9_-]+`).FindString(rotated.Stdout)
	if f.ClientKey == before {
		t.Fatal("the key is the one before")
	}
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})

	// A new process reads them, too.
	f.Kill()
	f.UntilStatus("running")
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
	f.Get().Want(t, http.StatusOK, "data.restart_count", "1")
}

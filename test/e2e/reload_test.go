package e2e

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestReload_UnderLoadFailsNoRequest(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(steadyRule())
	one := s.Deploy("one", suite.Pair(t, "one", model.URL()))
	two := s.Deploy("two", suite.Pair(t, "two", model.URL()))
	pids := []int{one.PID(), two.PID()}
	self := s.PID()
	loads := []*steady{keepSteady(t, 16, one), keepSteady(t, 16, two)}
	for range 3 {
		for _, l := range loads {
			l.more(t, 16)
		}
		s.Reload()
	}
	for _, l := range loads {
		l.more(t, 16)
		l.check(t)
	}
	if s.Ended() || !harness.Alive(self) {
		t.Fatal("the supervisor's process is another one")
	}
	for i, f := range []*harness.Formation{one, two} {
		f.Get().Want(t, http.StatusOK, "data.status", "running", "data.pid", strconv.Itoa(pids[i]), "data.restart_count", "0")
	}
	// The new image supervises as the old one did, and it is still the parent.
	harness.KillProcess(t, one.PID())
	one.Say(harness.Chat{"message": "steady", "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", steadyText)
	one.UntilStatus("running").Want(t, http.StatusOK, "data.restart_count", "1")
	s.RPC(http.MethodGet, "/rpc/audit/verify").Want(t, http.StatusOK, "data.valid", "true")
}

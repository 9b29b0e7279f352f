package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestHang_AStoppedChildIsKilledReplacedAndFenced(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: "  health_check_interval: 12s\n  health_check_timeout: 1s\n"})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("hangs", suite.Pair(t, "hangs", model.URL()))
	f.Say(harness.Chat{"message": "before", "agent_id": "poet", "session_id": "s"})
	pid := f.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	harness.Until(t, "the process has stopped", func() bool { return harness.Halted(pid) })
	// A new connection waits in the socket's queue for the next child.
	harness.Fresh(t).Must(f.Request(harness.Chat{"message": "meanwhile", "agent_id": "poet", "session_id": "s"})).Want(t, http.StatusOK)
	reply := f.UntilStatus("running").Want(t, http.StatusOK, "data.restart_count", "1")
	if reason := reply.Text("data.last_exit.reason"); !strings.HasPrefix(reason, "hang: no heartbeat") {
		t.Errorf("the reason is %q", reason)
	}
	if harness.Alive(pid) || reply.Int("data.pid") == pid {
		t.Errorf("process %d is still there", pid)
	}
	s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.count", "4")
}

func TestStartStop_TwoHundredCyclesLeaveNoProcess(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	ids := []string{"a-one", "b-two", "c-three", "d-four"}
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	done := make(chan struct{})
	for _, id := range ids {
		s.Deploy(id, suite.Pair(t, id, model.URL()))
		go func() {
			defer func() { done <- struct{}{} }()
			for range 50 {
				s.RPC(http.MethodPost, "/rpc/formations/"+id+"/stop").Want(t, http.StatusOK)
				s.RPC(http.MethodPost, "/rpc/formations/"+id+"/start").Want(t, http.StatusOK)
			}
		}()
	}
	for range ids {
		<-done
	}
	if all := s.Children(); len(all) != len(ids) {
		t.Errorf("after 200 cycles the processes are %v, want one for each of %v", all, ids)
	}
	for _, id := range ids {
		s.RPC(http.MethodPost, "/rpc/formations/"+id+"/stop").Want(t, http.StatusOK)
	}
	if all := s.Children(); len(all) != 0 {
		t.Errorf("with all stopped, these processes are left: %v", all)
	}
}

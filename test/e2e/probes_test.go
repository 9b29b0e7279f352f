package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestModels_AreAskedOnceForAVersionBeforeAnybodyDependsOnThem(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: quickUpdates})
	model := fakellm.Start(t, fakellm.Options{})
	const name = "The model 'fake' does not exist"
	model.Add(
		fakellm.Rule{Purpose: "probe", Times: 1, Reply: fakellm.Reply{Status: http.StatusNotFound, Message: name}},
		fakellm.Rule{Purpose: "probe", Times: 1, Reply: fakellm.Reply{Text: "ok"}},
		fakellm.Rule{Purpose: "probe", Times: 1, Reply: fakellm.Reply{Status: http.StatusNotFound, Message: name}},
		fakellm.Rule{Purpose: "probe", Times: 1, Reply: fakellm.Reply{Status: http.StatusServiceUnavailable}},
	)
	files := suite.Pair(t, "sure", model.URL())
	refused := func(reply harness.Reply) {
		t.Helper()
		reply.Want(t, http.StatusBadRequest, "error", "HealthCheckFailed")
		if text := reply.Text("message"); !strings.Contains(text, name) || !strings.Contains(text, "HTTP 404") {
			t.Errorf("the message is %q", text)
		}
	}
	refused(s.HTTP.Must(s.DeployRequest("sure", files.Bundle(t, "sure"))))
	f := s.Deploy("sure", files)
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
	// A restart asks nobody.
	f.Kill()
	f.UntilStatus("running")
	if n := len(model.Probes()); n != 2 {
		t.Errorf("the model was asked %d times, want once by each load of a version", n)
	}
	// An update to a model that is not there leaves the version before in place.
	refused(s.Update("sure", files.Version("2.0.0")))
	f.Say(harness.Chat{"message": "hello again", "agent_id": "poet"})
	// A provider in trouble holds no update up.
	s.Update("sure", files.Version("3.0.0")).Want(t, http.StatusOK, "data.version", "3.0.0")
	if shown := f.Get().Want(t, http.StatusOK, "data.version.semantic", "3.0.0"); !strings.Contains(string(shown.Body), "it is asked again later") {
		t.Errorf("the formation says nothing of it: %s", shown.Body)
	}
}

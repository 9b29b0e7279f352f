package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// The whole way of a local model: the manifest names it, the formation asks the
// process that the supervisor keeps, which fetches it from the hub and computes.
// The response cache shows it: another wording of a question gets its answer.
func TestEmbed_FormationsShareTheProcessThatTheSupervisorKeeps(t *testing.T) {
	t.Parallel()
	hub := embedtest.NewHub(t)
	hub.Add("tests/tiny", embedtest.Files(embedtest.NewBert(embedtest.Tiny, 1)))
	s := suite.Start(t, harness.Options{Env: []string{"HF_ENDPOINT=" + hub.URL}})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "a cat"}})
	for _, id := range []string{"alpha", "beta"} {
		files := suite.Pair(t, id, model.URL())
		files["formation.afs"] = strings.NewReplacer(
			"    - text: openai/scripted\n", "    - text: openai/scripted\n    - embedding: local/tests/tiny\n",
			"caching: {enabled: false}", "caching: {p: 0.1}",
		).Replace(files["formation.afs"])
		f := s.Deploy(id, files)
		before, asked := model.Count(), 0
		harness.Until(t, "another wording is answered from the cache of "+id, func() bool {
			asked++
			f.Say(harness.Chat{"message": "what is a cat" + strings.Repeat(", please", asked), "agent_id": "poet"}).
				Want(t, http.StatusOK, "data.response", "a cat")
			return model.Count()-before < asked
		})
	}
	processes, err := embedders(s.Home)
	if err != nil || len(processes) != 1 {
		t.Errorf("embedding processes of this home: %v, %v", processes, err)
	}
}

// embedders returns the processes whose socket lies in a home.
func embedders(home string) ([]string, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) == "formation-runtime" && slices.Contains(args, "embed") && strings.Contains(string(text), home) {
			found = append(found, line)
		}
	}
	return found, nil
}

package e2e

import (
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// The short form of "make soak": turns with three calls each of a tool server
// leave nothing behind, neither in the formation nor beside it.
func TestSoak_TurnsWithToolsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const (
		warm  = 60
		turns = 240
		many  = 4 // at once
		slack = 3 // of what a formation holds, idle connections among them
	)
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	call := fakellm.ToolCall{Name: "words__word", Args: "{}"}
	model.Add(fakellm.Rule{User: "three", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{call, call, call}}})
	s := suite.Start(t, harness.Options{})
	f := s.Deploy("soaked", withTools(suite.Pair(t, "soaked", model.URL())))
	run := func(n int) {
		var group sync.WaitGroup
		for range many {
			group.Go(func() {
				for range n / many {
					r := f.Say(harness.Chat{"message": "three words", "agent_id": "poet"})
					if r.Status != http.StatusOK {
						t.Errorf("%d: %s", r.Status, r.Body)
						return
					}
				}
			})
		}
		group.Wait()
	}
	run(warm)
	before := holdings(t, f)
	run(turns)
	if t.Failed() {
		return
	}
	harness.Until(t, "the formation holds what it held before", func() bool {
		now := holdings(t, f)
		return now.goroutines <= before.goroutines+slack && now.files <= before.files+slack && now.tools == before.tools
	})
	if now := holdings(t, f); now.tools != 1 {
		t.Errorf("%d processes of one tool server", now.tools)
	}
}

// holding is what a formation holds.
type holding struct{ goroutines, files, tools int }

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func holdings(t *testing.T, f *harness.Formation) holding {
	t.Helper()
	pid := f.PID()
	open, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	req := f.Read("/metrics")
	req.Header["X-SVC-Admin-Key"] = f.AdminKey
	// A kept connection of each look would be among what is counted at the next one.
	found := goroutines.FindSubmatch(harness.Fresh(t).Must(req).Body)
	if found == nil {
		t.Fatal("the metrics tell of no goroutines")
	}
	n, _ := strconv.Atoi(string(found[1]))
	return holding{goroutines: n, files: len(open), tools: len(toolProcesses(pid))}
}

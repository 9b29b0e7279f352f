package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// usage reads GET /v1/usage.
func usage(t *testing.T, f *harness.Formation) harness.Reply {
	t.Helper()
	r := f.Read("/v1/usage?group_by=agent")
	r.Header["X-SVC-Admin-Key"] = f.AdminKey
	return harness.NewClient(t).Must(r).Want(t, http.StatusOK, "object", "usage")
}

func TestBudget_AHundredTurnsAtOnceNeverExceedTheOperatorsCap(t *testing.T) {
	t.Parallel()
	var notices atomic.Pointer[string]
	told := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text := string(body)
		if strings.Contains(text, `"budget"`) && notices.CompareAndSwap(nil, &text) {
			close(told)
		}
	}))
	defer hook.Close()
	const limit = 4000
	s := suite.Start(t, harness.Options{
		Formations: fmt.Sprintf("  budgets:\n    default: {formation: {tokens_per_day: %d}, warn_at: 0.1}\n", limit),
		Settings:   "notify:\n  webhook: " + hook.URL + "\n",
	})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "ten words that the model says to everybody who asks", DelayMS: 20}})
	// The author would allow more than the operator does.
	files := suite.Pair(t, "thrifty", model.URL()).With("budgets: {formation: {tokens_per_day: 1000000}}\n")
	files["formation.afs"] = strings.Replace(files["formation.afs"], "    max_retries: 1\n", "    max_retries: 1\n    max_tokens: 100\n", 1)
	f := s.Deploy("thrifty", files)
	var answered, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := f.Request(harness.Chat{"message": fmt.Sprint("hello ", i), "agent_id": "poet", "session_id": fmt.Sprint("s", i)})
			if i%2 == 1 {
				r.URL = f.Through() + "/v1/chat"
			}
			reply := harness.Fresh(t).Must(r)
			switch reply.Status {
			case http.StatusOK:
				answered.Add(1)
			default:
				refused.Add(1)
				reply.Want(t, http.StatusTooManyRequests, "error.code", "BUDGET_EXCEEDED", "type", "error.processing")
			}
		})
	}
	wg.Wait()
	if n := answered.Load(); n == 0 || refused.Load() == 0 || n != int64(model.Count()) {
		t.Errorf("%d turns were answered and %d refused; the model was asked %d times", n, refused.Load(), model.Count())
	}
	reply := usage(t, f)
	if used := reply.Int("data.budgets.0.tokens.used"); used == 0 || used > limit {
		t.Errorf("%d tokens were used, the limit is %d", used, limit)
	}
	reply.Want(t, http.StatusOK, "data.budgets.0.tokens.limit", fmt.Sprint(limit), "data.groups.1.key", "poet",
		"data.groups.1.model_calls", fmt.Sprint(model.Count()), "data.totals.cost", "null")
	// What the load asked the model is on nobody's account.
	reply.Want(t, http.StatusOK, "data.groups.0.key", "", "data.groups.0.model_calls", "1")
	select {
	case <-told:
	case <-harness.Context(t).Done():
		t.Fatal("the operator was not told that the budget is nearly used up")
	}
	if text := *notices.Load(); !strings.Contains(text, `"formation_id":"thrifty"`) || !strings.Contains(text, `tokens of 20`) {
		t.Errorf("the notice says %s", text)
	}
}

func TestBudget_WhatWasUsedSurvivesTheDeathOfTheProcess(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{User: "wait", Times: 1, Reply: fakellm.Reply{Text: "late", Gate: "late"}})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "fine"}})
	f := s.Deploy("thrifty", suite.Pair(t, "thrifty", model.URL()).With("budgets: {formation: {tokens_per_day: 20000}}\n"))
	for i := range 2 {
		f.Say(harness.Chat{"message": fmt.Sprint("hello ", i), "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", "fine")
	}
	before := usage(t, f).Int("data.budgets.0.tokens.used")
	wait := f.Request(harness.Chat{"message": "wait", "agent_id": "poet", "use_async": true, "request_id": "r-wait"})
	harness.NewClient(t).Must(wait).Want(t, http.StatusAccepted)
	if err := model.WaitCount(harness.Context(t), 3); err != nil {
		t.Fatal(err)
	}
	f.Kill()
	f.UntilStatus("running")
	f.UntilEnded(harness.Context(t), "r-wait").Want(t, http.StatusOK, "data.status", "completed", "data.result", "fine")
	reply := usage(t, f)
	// The interrupted call holds its reservation until room is needed.
	if after := reply.Int("data.budgets.0.tokens.used"); after <= before {
		t.Errorf("%d tokens are used, before the kill %d were", after, before)
	}
	reply.Want(t, http.StatusOK, "data.totals.requests", "3", "data.totals.model_calls", "4") // one at the first load
}

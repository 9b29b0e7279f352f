package deploy_test

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func audit(t *testing.T, r *deploytest.Rig) []registry.AuditEntry {
	t.Helper()
	all, err := r.Registry.Audit(t.Context(), registry.AuditFilter{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRecords_OfAFormationJoinTheAuditChainOnceAndAlert(t *testing.T) {
	t.Parallel()
	notices := &told{}
	r := deploytest.New(t, func(c *deploy.Config) { c.Alert = notices.add })
	r.MustDeploy(t, "hello", map[string]string{"behave": "records"})
	deploytest.Eventually(t, "the formation's records in the audit", func() bool { return len(audit(t, r)) == 2 })
	rec := audit(t, r)[1]
	if rec.Action != "keys.generated" || rec.Actor != "formation" || rec.ID != "hello" || rec.Result != "ok" || rec.RequestID != "hello-3" {
		t.Errorf("record = %+v", rec)
	}
	deploytest.Eventually(t, "the alert", func() bool { return len(notices.all()) == 1 })
	n := notices.all()[0]
	if n.Event != deploy.NoticeDeadLetter || n.FormationID != "hello" || n.Message != "a delivery was given up" || n.Detail["delivery"] != "d-1" || n.Time.IsZero() {
		t.Errorf("notice = %+v", n)
	}
	// The next version's process tells the same store's records again.
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", map[string]string{"behave": "records", "marker": "2"}))
	if _, err := r.UpdateBundle(t, deploy.UpdateRequest{ID: "hello"}, body, nil); err != nil {
		t.Fatal(err)
	}
	r.Shutdown(t) // waits for the followers of both
	r.Start(t, nil)
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
	seen := map[string]int{}
	for _, rec := range audit(t, r) {
		seen[rec.RequestID]++
	}
	// The new supervisor remembers nothing, and this child acknowledges nothing.
	if seen["hello-3"] > 2 || len(notices.all()) != 1 {
		t.Errorf("records = %v, notices = %+v; want each once for each supervisor", seen, notices.all())
	}
}

func TestRecords_AreFollowedFromTheProcessThatServesAfterAFailedUpdate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behave string
		kill   bool // the process that has come back, so that another one is followed
	}{
		"the new one died":       {"crash-after 50ms", false},
		"the new one was unwell": {"unready-after 50ms", false},
		"and was replaced":       {"crash-after 50ms", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) {
				c.Probation, c.Manager.HealthInterval = time.Minute, 20*time.Millisecond
			})
			v := r.MustDeploy(t, "hello", nil)
			if _, err := r.Update(t, "hello", version("2.0.0", map[string]string{"behave": c.behave})); err == nil {
				t.Fatal("an update that fails its probation succeeded")
			}
			if c.kill {
				deploytest.Ask(t, v.Port, "/exit")
				deploytest.Eventually(t, "the next process serves", restarted(t, r, 1))
			}
			told := func(seq string) func() bool {
				return func() bool {
					return slices.ContainsFunc(audit(t, r), func(e registry.AuditEntry) bool { return e.RequestID == "hello-"+seq })
				}
			}
			for _, seq := range []string{"7", "8"} {
				if code, text := deploytest.Ask(t, v.Port, "/record?"+seq); code != http.StatusOK {
					t.Fatalf("record %s: %d %s", seq, code, text)
				}
				deploytest.Eventually(t, "the record "+seq+" in the audit", told(seq))
			}
		})
	}
}

// told collects notices.
type told struct {
	mu   sync.Mutex
	list []deploy.Notice
}

func (n *told) add(notice deploy.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, notice)
}

func (n *told) all() []deploy.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]deploy.Notice(nil), n.list...)
}

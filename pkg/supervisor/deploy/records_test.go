package deploy_test

import (
	"testing"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func TestRecords_OfAFormationJoinTheAuditChain(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", map[string]string{"behave": "records"})
	deploytest.Eventually(t, "the formation's record in the audit", func() bool {
		last, err := r.Registry.Audit(t.Context(), registry.AuditFilter{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(last) == 0 {
			return false
		}
		rec := last[0]
		if rec.Action != "keys.generated" || rec.Actor != "formation" || rec.ID != "hello" || rec.Result != "ok" || rec.RequestID != "hello-3" {
			t.Fatalf("record = %+v", rec)
		}
		return true
	})
}

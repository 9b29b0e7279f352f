package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestShutdown_AnswersOperationsInProgressAndRefusesFurtherOnes(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	// Both new processes stay in Load, with progress, so for ever.
	wait := map[string]string{"behave": "wait"}
	inProgress := map[string]func() answer{
		"deploy": d.begin(t, d.bundled(t, "POST", "/rpc/formations", "fresh", wait)),
		"update": d.begin(t, d.bundled(t, "PUT", "/rpc/formations/hello", "hello", wait)),
	}
	deploytest.Eventually(t, "both operations are in progress", func() bool {
		return d.busy(t, "fresh") && d.busy(t, "hello")
	})
	if err := d.Service.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(what string, got answer) {
		t.Helper()
		if got.String() != "503 FormationUnavailable" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s %s, want 503 FormationUnavailable with Retry-After", what, got, got.body)
		}
	}
	for name, end := range inProgress {
		check("the "+name+" in progress", end())
	}
	for _, c := range []call{
		d.bundled(t, "POST", "/rpc/formations", "other", nil), d.bundled(t, "PUT", "/rpc/formations/hello", "hello", wait),
		{method: "POST", path: "/rpc/formations/hello/start"}, {method: "POST", path: "/rpc/formations/hello/restart"},
		{method: "POST", path: "/rpc/formations/hello/stop"}, {method: "POST", path: "/rpc/formations/hello/rollback"},
		{method: "DELETE", path: "/rpc/formations/hello"}, devRun(t, "hello", nil),
	} {
		check(c.method+" "+c.path, d.begin(t, c)())
	}
	if res := d.send(t, t.Context(), call{method: "GET", path: "/rpc/formations/hello"}); res.StatusCode != http.StatusOK {
		t.Errorf("a question during the shutdown: %d", res.StatusCode)
	} else {
		res.Body.Close()
	}
}

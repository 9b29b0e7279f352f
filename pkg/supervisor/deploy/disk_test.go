package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func TestDiskFull_IsSaidAndBreaksNothing(t *testing.T) {
	t.Parallel()
	home, done := deploytest.SmallDisk(t, 8<<20)
	if done {
		return
	}
	r := deploytest.NewAt(t, home, func(c *deploy.Config) { c.Limits.MaxRatio = 1 << 20 })
	before := r.MustDeploy(t, "hello", nil)

	// A small upload that is too large unpacked.
	large := map[string]string{"notes.txt": strings.Repeat("0", 16<<20)}
	_, err := r.Update(t, "hello", version("2.0.0", large))
	assertFault(t, err, fault.Failed, "DirectoryError", "the bundle cannot be unpacked: no space left on the device")
	assertUntouched(t, r, before)
	_, err = r.Deploy(t, "other", large)
	assertFault(t, err, fault.Failed, "DirectoryError", "no space left on the device")
	if _, err := os.Stat(filepath.Join(home, "formations/other")); !os.IsNotExist(err) {
		t.Errorf("a failed deploy left its directory: %v", err)
	}

	ready, err := r.Service.Receive(t.Context(), bytes.NewReader(deploytest.Bundle(t, "hello", deploytest.Files("hello", version("2.0.0", nil)))))
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Discard()
	free := deploytest.Fill(t, home)
	_, err = r.Update(t, "hello", version("2.0.0", nil))
	assertFault(t, err, fault.Failed, "DirectoryError", "the upload cannot be stored: no space left on the device")
	_, err = r.Service.Update(t.Context(), deploy.UpdateRequest{ID: "hello", Bundle: ready}, nil)
	assertFault(t, err, fault.Failed, "DirectoryError", "no space left on the device")
	_, err = r.Service.Stop(t.Context(), "hello")
	assertFault(t, err, fault.Failed, "RegisterError", "no space left on the device")
	if v := get(t, r, "hello"); v.Process.PID != before.Process.PID || v.Process.Status != process.StatusRunning || v.Desired != registry.Running {
		t.Errorf("after what could not be done: %+v, desired %s", v.Process, v.Desired)
	}
	if status, _ := deploytest.Ask(t, before.Port, "/log?a-line-that-has-no-room"); status != 200 {
		t.Errorf("a formation that cannot log answers %d", status)
	}
	// A process that ends now is replaced when there is room again.
	deploytest.Ask(t, before.Port, "/exit")
	deploytest.Eventually(t, "the end of the process is noticed", func() bool { return get(t, r, "hello").RestartCount > before.RestartCount })
	free()
	deploytest.Eventually(t, "the next process serves", func() bool {
		v := get(t, r, "hello")
		return v.Process.Status == process.StatusRunning && v.Process.PID != before.Process.PID
	})

	u, err := r.Service.Update(t.Context(), deploy.UpdateRequest{ID: "hello", Bundle: ready}, nil)
	if err != nil || u.Current.Semantic != "2.0.0" {
		t.Errorf("update with room again: %+v, %v", u.Current, err)
	}
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Errorf("stop with room again: %v", err)
	}
	r.Shutdown(t)
	r.Start(t, nil)
	if v := get(t, r, "hello"); v.Current.Semantic != "2.0.0" || v.Previous.Semantic != "1.2.3" || v.Desired != registry.Stopped {
		t.Errorf("after the supervisor's restart: %+v", v.Formation)
	}
	check, err := r.Registry.VerifyAudit(t.Context())
	if err != nil || !check.Valid {
		t.Errorf("audit chain: %+v, %v", check, err)
	}
}

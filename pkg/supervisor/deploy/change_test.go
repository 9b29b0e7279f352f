package deploy_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// updating starts an update of hello that waits in the new process's start, and
// returns when it does. The result comes on the channel.
func updating(t *testing.T, r *deploytest.Rig) <-chan error {
	t.Helper()
	return begin(t, r, "waiting", version("2.0.0", map[string]string{"behave": "wait"}))
}

// begin starts an update of hello and returns when its progress says message.
func begin(t *testing.T, r *deploytest.Rig, message string, files map[string]string) <-chan error {
	t.Helper()
	reached, result := make(chan struct{}, 1000), make(chan error, 1)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", files))
	go func() {
		_, err := r.UpdateBundle(t, deploy.UpdateRequest{ID: "hello"}, body, func(p deploy.Progress) {
			if strings.Contains(p.Message, message) {
				select {
				case reached <- struct{}{}:
				default:
				}
			}
		})
		result <- err
	}()
	select {
	case <-reached:
	case err := <-result:
		t.Fatalf("the update ended early: %v", err)
	}
	return result
}

func TestChange_OneAtATime(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	result := updating(t, r)
	if v := get(t, r, "hello"); v.Process.Status != process.StatusRunning || v.Process.PID != before.Process.PID {
		t.Errorf("during the update: %+v, want the old process", v.Process)
	}
	_, uerr := r.Update(t, "hello", version("3.0.0", nil))
	for name, err := range map[string]error{
		"update":   uerr,
		"check":    r.Service.CheckUpdate("hello"),
		"rollback": second(r.Service.Rollback(t.Context(), "hello", "", nil)),
		"start":    second(r.Service.Start(t.Context(), "hello", nil)),
		"restart":  second(r.Service.Restart(t.Context(), "hello", nil)),
	} {
		t.Log(name)
		assertFault(t, err, fault.Conflict, "UpdateInProgress", "Formation 'hello' has an update in progress")
	}
	if err := os.WriteFile(filepath.Join(r.Home, "formations/hello/state/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the update: %v", err)
	}
	if v := get(t, r, "hello"); v.Current.Semantic != "2.0.0" {
		t.Errorf("current = %+v", v.Current)
	}
}

func TestCancelUpdate_LeavesTheOldVersionAndNothingOfTheNew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		message string
		files   map[string]string
	}{
		"before the switch":    {"waiting", version("2.0.0", map[string]string{"behave": "wait"})},
		"during the probation": {"on probation", version("2.0.0", nil)},
		"during init":          {"init command", initVersion("2.0.0", "exec tail -f /dev/null")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) { c.Probation = time.Minute })
			before := r.MustDeploy(t, "hello", nil)
			_, _, err := r.Service.CancelUpdate(t.Context(), "hello")
			assertFault(t, err, fault.Invalid, "NoUpdateInProgress", "has no update in progress")
			result := begin(t, r, tc.message, tc.files)
			port, status, err := r.Service.CancelUpdate(t.Context(), "hello")
			if err != nil || port != before.Port || status != process.StatusRunning {
				t.Errorf("cancel: port %d, %s, %v", port, status, err)
			}
			assertFault(t, <-result, fault.Conflict, "DeployConflict", "was cancelled")
			assertUntouched(t, r, before)
		})
	}
}

func TestCancelUpdate_IsTooLateOnceTheNewVersionIsCurrent(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", map[string]string{"behave": "linger"})
	result := begin(t, r, "old process finishes", version("2.0.0", nil))
	if v := get(t, r, "hello"); v.Current.Semantic != "2.0.0" {
		t.Errorf("while the old process finishes, current is %+v", v.Current)
	}
	_, _, err := r.Service.CancelUpdate(t.Context(), "hello")
	assertFault(t, err, fault.Invalid, "NoUpdateInProgress", "roll back instead")
	if err := os.WriteFile(filepath.Join(r.Home, "formations/hello/state/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the update: %v", err)
	}
}

func TestStop_EndsAnUpdateInProgress(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	result := updating(t, r)
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Errorf("stop: %v", err)
	}
	assertFault(t, <-result, fault.Conflict, "DeployConflict", "was stopped during its update")
	v := get(t, r, "hello")
	if v.Process.Status != process.StatusStopped || v.Desired != registry.Stopped || v.Current.Serial != 1 {
		t.Errorf("afterwards: %+v", v)
	}
	assertGone(t, before.Process.PID)
	if dirs := versionDirs(t, r); len(dirs) != 1 {
		t.Errorf("version directories: %v", dirs)
	}
}

func TestDelete_EndsAnUpdateInProgressAndLeavesNothing(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	result := updating(t, r)
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Errorf("delete: %v", err)
	}
	assertFault(t, <-result, fault.Conflict, "DeployConflict", "was deleted during its update")
	assertClean(t, r, "hello")
	assertGone(t, before.Process.PID)
}

func TestShutdown_EndsAnUpdateInProgress(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	result := updating(t, r)
	r.Shutdown(t)
	assertFault(t, <-result, fault.Unavailable, "FormationUnavailable", "shutting down")
	r.Start(t, nil)
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
	if v := get(t, r, "hello"); v.Current.Serial != 1 {
		t.Errorf("current = %+v", v.Current)
	}
	if dirs := versionDirs(t, r); len(dirs) != 1 {
		t.Errorf("version directories: %v", dirs)
	}
}

func TestUpdate_GoesOnWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	ctx, cancel := context.WithCancel(t.Context())
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", version("2.0.0", nil)))
	b, err := r.Service.Receive(ctx, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Discard()
	if err := r.Service.CheckBundle(ctx, "hello", b); err != nil {
		t.Errorf("check: %v", err)
	}
	u, err := r.Service.Update(ctx, deploy.UpdateRequest{ID: "hello", Bundle: b}, func(deploy.Progress) { cancel() })
	if err != nil || u.Current.Semantic != "2.0.0" {
		t.Errorf("update = %+v, %v", u.Current, err)
	}
	assertFault(t, r.Service.CheckBundle(t.Context(), "hello", b), fault.Conflict, "NoChange", "(version 2.0.0)")
}

func TestUpdate_IsRefusedDuringTheFirstDeploy(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	waiting, result := make(chan struct{}, 1000), make(chan error, 1)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", map[string]string{"behave": "wait"}))
	go func() {
		_, err := r.DeployBundle(t, deploy.Request{ID: "hello"}, body, func(p deploy.Progress) {
			if p.Message == "waiting" {
				select {
				case waiting <- struct{}{}:
				default:
				}
			}
		})
		result <- err
	}()
	<-waiting
	_, err := r.Update(t, "hello", version("2.0.0", nil))
	assertFault(t, err, fault.Conflict, "UpdateInProgress", "is being deployed for the first time")
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Error(err)
	}
	assertFault(t, <-result, fault.Conflict, "DeployConflict", "was deleted during its deploy")
}

func TestCancelUpdate_OfAFormationThatWasStoppedLeavesItStopped(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	result := updating(t, r)
	port, status, err := r.Service.CancelUpdate(t.Context(), "hello")
	if err != nil || port != before.Port || status != process.StatusStopped {
		t.Errorf("cancel: port %d, %s, %v", port, status, err)
	}
	assertFault(t, <-result, fault.Conflict, "DeployConflict", "was cancelled")
	if v := get(t, r, "hello"); v.Process.Status != process.StatusStopped || v.Desired != registry.Stopped || v.Current.Serial != 1 {
		t.Errorf("afterwards: %+v", v)
	}
	if _, answer := deploytest.Ask(t, before.Port, "/"); !strings.Contains(answer, "refused") {
		t.Errorf("the port answers %q", answer)
	}
}

func TestUpdate_EndsACrashLoop(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) {
		c.Probation = 300 * time.Millisecond
		c.Manager.Policy = process.DefaultPolicy()
		c.Manager.Policy.Max = 1000
		c.Manager.Policy.MaxDelay = 200 * time.Millisecond
	})
	before := r.MustDeploy(t, "hello", map[string]string{"behave": "crash-after 1ms"})
	deploytest.Eventually(t, "the formation crashes again and again", func() bool { return get(t, r, "hello").RestartCount > 2 })
	u, err := r.Update(t, "hello", version("2.0.0", nil))
	if err != nil || u.Process.Status != process.StatusRunning || u.Current.Semantic != "2.0.0" || u.Port != before.Port {
		t.Fatalf("update: %+v, %v", u, err)
	}
	if _, pid := deploytest.Ask(t, u.Port, "/"); pid != itoa(u.Process.PID) {
		t.Errorf("the port is answered by %q, want %d", pid, u.Process.PID)
	}
}

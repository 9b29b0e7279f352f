package deploy_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// rollback must succeed and arrive at the version with that serial.
func rollback(t *testing.T, r *deploytest.Rig, version string, serial int) deploy.Updated {
	t.Helper()
	u, err := r.Service.Rollback(t.Context(), "hello", version, nil)
	if err != nil {
		t.Fatalf("rollback to %q: %v", version, err)
	}
	if u.Current.Serial != serial || u.Process.Status != process.StatusRunning {
		t.Errorf("rollback to %q: version %d is %s, want %d", version, u.Current.Serial, u.Process.Status, serial)
	}
	if _, dir := deploytest.Ask(t, u.Port, "/dir"); dir != itoa(serial) {
		t.Errorf("rollback to %q: the port is answered from version directory %q, want %d", version, dir, serial)
	}
	return u
}

func TestRollback_GoesToThePreviousVersionAndBack(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	_, err := r.Service.Rollback(t.Context(), "hello", "", nil)
	assertFault(t, err, fault.Invalid, "NoPreviousVersion", "has no previous version")
	u := r.MustUpdate(t, "hello", version("2.0.0", nil))
	var c collector
	back, err := r.Service.Rollback(t.Context(), "hello", "", c.sink)
	if err != nil || back.Current.Semantic != "1.2.3" || back.Previous.Semantic != "2.0.0" || back.PreviousVersion != "2.0.0" ||
		back.Port != before.Port || back.Name != "Name of hello" {
		t.Fatalf("rollback: %+v, %v", back, err)
	}
	want := []deploy.Stage{
		deploy.StageValidating, deploy.StageResolving, deploy.StageSpawningPrevious, deploy.StageHealth,
		deploy.StageSwapping, deploy.StageStoppingCurrent,
	}
	if diff := cmp.Diff(want, c.stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	assertGone(t, u.Process.PID)
	rollback(t, r, "", 2)
	rollback(t, r, "", 1)
}

func TestRollback_ToAnyKeptVersion(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	first := r.MustDeploy(t, "hello", nil)
	r.MustUpdate(t, "hello", version("2.0.0", map[string]string{"marker": "a"}))
	r.MustUpdate(t, "hello", version("2.0.0", map[string]string{"marker": "b"}))
	r.MustUpdate(t, "hello", version("3.0.0", nil))
	rollback(t, r, "2.0.0", 3) // the newest of two
	rollback(t, r, "2.0.0", 2) // the newest that is not current
	u := rollback(t, r, first.Current.SHA256, 1)
	if u.Previous.Serial != 2 {
		t.Errorf("previous = %+v, want the one just left", u.Previous)
	}
	for name, tc := range map[string]struct {
		version string
		kind    fault.Kind
		fault   string
		text    string
	}{
		"current by version": {"1.2.3", fault.Conflict, "NoChange", "has version 1.2.3 already"},
		"current by sum":     {first.Current.SHA256, fault.Conflict, "NoChange", "already"},
		"unknown":            {"7.7.7", fault.NotFound, "VersionNotFound", "keeps no version 7.7.7"},
	} {
		_, err := r.Service.Rollback(t.Context(), "hello", tc.version, nil)
		t.Log(name)
		assertFault(t, err, tc.kind, tc.fault, tc.text)
		var f *deploy.StageError
		if !errors.As(err, &f) || f.Rollback != deploy.RollbackNotNeeded {
			t.Errorf("stage error = %+v", f)
		}
	}
}

func TestRollback_ThatFailsLeavesTheCurrentVersionServing(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	u := r.MustUpdate(t, "hello", version("2.0.0", nil))
	behave(t, r, "hello", "crash")
	_, err := r.Service.Rollback(t.Context(), "hello", "", nil)
	assertFault(t, err, fault.Failed, "HealthCheckFailed", "Formation crashed during startup: the disk is on fire")
	v := get(t, r, "hello")
	if v.Process.PID != u.Process.PID || v.Process.Status != process.StatusRunning || v.Current.Serial != 2 || v.Previous.Serial != 1 {
		t.Errorf("after a failed rollback: %+v, current %+v", v.Process, v.Current)
	}
	if diff := cmp.Diff([]string{"1", "2"}, versionDirs(t, r)); diff != "" {
		t.Errorf("version directories (-want +got):\n%s", diff)
	}
	if _, pid := deploytest.Ask(t, v.Port, "/"); pid != itoa(u.Process.PID) {
		t.Errorf("the port is answered by %q, want %d", pid, u.Process.PID)
	}
}

func TestRollback_OfAStoppedFormationStartsIt(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	r.MustUpdate(t, "hello", version("2.0.0", nil))
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	rollback(t, r, "", 1)
}

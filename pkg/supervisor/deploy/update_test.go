package deploy_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// version are the files of "hello" in another version; extra adds to them.
func version(semantic string, extra map[string]string) map[string]string {
	files := map[string]string{
		"formation.afs": strings.NewReplacer("version: 1.2.3", "version: "+semantic, "Name of hello", "Hello "+semantic).
			Replace(deploytest.Files("hello", nil)["formation.afs"]),
	}
	maps.Copy(files, extra)
	return files
}

// versionDirs lists the directories of hello's versions.
func versionDirs(t *testing.T, r *deploytest.Rig) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.Home, "formations/hello/versions"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// collector keeps each stage once in a row.
type collector struct{ stages []deploy.Stage }

func (c *collector) sink(p deploy.Progress) {
	if len(c.stages) == 0 || c.stages[len(c.stages)-1] != p.Stage {
		c.stages = append(c.stages, p.Stage)
	}
}

func TestUpdate_TakesThePortOverAndKeepsTheOldVersion(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Probation = 50 * time.Millisecond })
	before := r.MustDeploy(t, "hello", nil)
	var c collector
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", version("2.0.0", nil)))
	u, err := r.UpdateBundle(t, deploy.UpdateRequest{ID: "hello", Version: "2.0.0"}, body, c.sink)
	if err != nil {
		t.Fatal(err)
	}
	if u.Port != before.Port || u.Process.PID == before.Process.PID || u.Process.Status != process.StatusRunning ||
		u.PreviousVersion != "1.2.3" || u.Name != "Hello 2.0.0" || u.RestartCount != 0 {
		t.Errorf("updated = %+v", u)
	}
	if u.Current.Semantic != "2.0.0" || u.Current.Serial != 2 || !u.Current.InitDone || u.Previous.Semantic != "1.2.3" || u.Previous.Serial != 1 {
		t.Errorf("current %+v, previous %+v", u.Current, u.Previous)
	}
	want := []deploy.Stage{
		deploy.StageExtracting, deploy.StageValidating, deploy.StageResolving,
		deploy.StageSpawningStaging, deploy.StageHealth, deploy.StageSwapping, deploy.StageStoppingOld,
	}
	if diff := cmp.Diff(want, c.stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	if _, dir := deploytest.Ask(t, u.Port, "/dir"); dir != "2" {
		t.Errorf("the port is answered from version directory %q", dir)
	}
	assertGone(t, before.Process.PID)
	if diff := cmp.Diff([]string{"1", "2"}, versionDirs(t, r)); diff != "" {
		t.Errorf("version directories (-want +got):\n%s", diff)
	}
	if left, _ := os.ReadDir(filepath.Join(r.Home, "formations/.staging")); len(left) != 0 {
		t.Errorf("left in staging: %v", left)
	}
	// It is supervised as before: a crash brings the new version back.
	deploytest.Ask(t, u.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", func() bool {
		v := get(t, r, "hello")
		return v.Process.Status == process.StatusRunning && v.Process.PID != u.Process.PID
	})
	if _, dir := deploytest.Ask(t, u.Port, "/dir"); dir != "2" {
		t.Errorf("after a crash the port is answered from version directory %q", dir)
	}
}

// assertUntouched checks that hello is as it was before a failed change: the
// same process, version and files.
func assertUntouched(t *testing.T, r *deploytest.Rig, before deploy.View) {
	t.Helper()
	v := get(t, r, "hello")
	if v.Process.PID != before.Process.PID || v.Process.Status != process.StatusRunning || v.RestartCount != before.RestartCount {
		t.Errorf("process = %+v, want %d running", v.Process, before.Process.PID)
	}
	if diff := cmp.Diff(before.Formation, v.Formation); diff != "" {
		t.Errorf("row (-before +after):\n%s", diff)
	}
	if _, pid := deploytest.Ask(t, v.Port, "/"); pid != itoa(before.Process.PID) {
		t.Errorf("the port is answered by %q, want %d", pid, before.Process.PID)
	}
	if diff := cmp.Diff([]string{"1"}, versionDirs(t, r)); diff != "" {
		t.Errorf("version directories (-want +got):\n%s", diff)
	}
	for _, dir := range []string{"formations/.staging", "formations/.trash", "tmp"} {
		if left, _ := os.ReadDir(filepath.Join(r.Home, dir)); len(left) != 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
	if err := r.Service.CheckUpdate("hello"); err != nil {
		t.Errorf("the next update is refused: %v", err)
	}
}

func TestUpdate_ThatIsBadNeverTakesTheRunningVersionDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		id, version string
		body        []byte // instead of files
		files       map[string]string
		change      func(*deploy.Config)
		kind        fault.Kind
		fault       string
		text        string
		stage       deploy.Stage
		rollback    deploy.Rollback
	}{
		"the same bundle": {
			kind: fault.Conflict, fault: "NoChange", text: "has this very bundle already (version 1.2.3)",
			stage: deploy.StageExtracting, rollback: deploy.RollbackNotNeeded,
		},
		"no archive": {
			body: []byte("not gzip"),
			kind: fault.Invalid, fault: "ExtractError", stage: deploy.StageExtracting, rollback: deploy.RollbackDone,
		},
		"a fault in the manifest": {
			files: map[string]string{"formation.afs": "schema: \"1.0.0\"\nid: [x]\n"},
			kind:  fault.Invalid, fault: "ParseError", text: "formation.afs:2:", stage: deploy.StageValidating, rollback: deploy.RollbackDone,
		},
		"another id": {
			files: map[string]string{"formation.afs": deploytest.Files("other", nil)["formation.afs"]},
			kind:  fault.Invalid, fault: "IDMismatch", text: `"other" and the request "hello"`, stage: deploy.StageValidating, rollback: deploy.RollbackDone,
		},
		"another version": {
			version: "3.0.0", files: version("2.0.0", nil),
			kind: fault.Invalid, fault: "VersionMismatch", text: `"2.0.0" and the request "3.0.0"`, stage: deploy.StageValidating, rollback: deploy.RollbackDone,
		},
		"a runtime without sense": {
			files: map[string]string{"formation.afs": deploytest.Files("hello", nil)["formation.afs"] + "svc_runtime: \"1.0:tpu\"\n"},
			kind:  fault.Invalid, fault: "InvalidRuntime", text: "cpu, gpu or cuda", stage: deploy.StageValidating, rollback: deploy.RollbackDone,
		},
		"missing secrets": {
			files: version("2.0.0", map[string]string{"behave": "secrets"}),
			kind:  fault.Invalid, fault: "SecretsError", text: "API_KEY", stage: deploy.StageValidating, rollback: deploy.RollbackDone,
		},
		"an init that fails": {
			files: initVersion("2.0.0", "echo 'no such table' >&2; exit 3"),
			kind:  fault.Failed, fault: "SpawnError", text: "init failed (exit 3): no such table", stage: deploy.StageSpawningStaging, rollback: deploy.RollbackDone,
		},
		"a crash at the start": {
			files: version("2.0.0", map[string]string{"behave": "crash"}),
			kind:  fault.Invalid, fault: "HealthCheckFailed", text: "Formation crashed during startup: the disk is on fire",
			stage: deploy.StageHealth, rollback: deploy.RollbackDone,
		},
		"never ready": {
			files:  version("2.0.0", map[string]string{"behave": "never"}),
			change: func(c *deploy.Config) { c.Child.ReadyTimeout = 5 * time.Second }, // of the good ones, too
			kind:   fault.Invalid, fault: "HealthCheckFailed", text: "did not become ready within 5s", stage: deploy.StageHealth, rollback: deploy.RollbackDone,
		},
		"a crash after the switch": {
			files: version("2.0.0", map[string]string{"behave": "crash-after 200ms"}),
			kind:  fault.Invalid, fault: "HealthCheckFailed", text: "the roof fell in", stage: deploy.StageSwapping, rollback: deploy.RollbackDone,
		},
		"unready after the switch": {
			files:  version("2.0.0", map[string]string{"behave": "unready-after 100ms"}),
			change: func(c *deploy.Config) { c.Manager.HealthInterval = 50 * time.Millisecond },
			kind:   fault.Invalid, fault: "HealthCheckFailed", text: "after the switch", stage: deploy.StageSwapping, rollback: deploy.RollbackDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) {
				c.Probation = 700 * time.Millisecond
				if tc.change != nil {
					tc.change(c)
				}
			})
			before := r.MustDeploy(t, "hello", nil)
			body := tc.body
			if body == nil {
				body = deploytest.Bundle(t, "hello", deploytest.Files("hello", tc.files))
			}
			_, err := r.UpdateBundle(t, deploy.UpdateRequest{ID: "hello", Version: tc.version}, body, nil)
			assertFault(t, err, tc.kind, tc.fault, tc.text)
			var f *deploy.StageError
			if !errors.As(err, &f) || f.Stage != tc.stage || f.Rollback != tc.rollback {
				t.Errorf("stage error = %+v, want stage %s, rollback %s", f, tc.stage, tc.rollback)
			}
			assertUntouched(t, r, before)
			// The next good one is taken.
			if u, err := r.Update(t, "hello", version("9.0.0", nil)); err != nil || u.Current.Semantic != "9.0.0" {
				t.Errorf("the next good update: %+v, %v", u.Current, err)
			}
		})
	}
}

// initVersion is a version with an init command.
func initVersion(semantic, command string) map[string]string {
	files := version(semantic, nil)
	files["formation.afs"] += "init: |\n  " + command + "\n"
	return files
}

func TestUpdate_OfAnUnknownFormationIsNotFound(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	_, err := r.Update(t, "nobody", nil)
	for name, err := range map[string]error{
		"update":   err,
		"check":    r.Service.CheckUpdate("nobody"),
		"rollback": second(r.Service.Rollback(t.Context(), "nobody", "", nil)),
		"exits":    second(r.Service.Exits(t.Context(), "nobody")),
		"cancel":   third(r.Service.CancelUpdate(t.Context(), "nobody")),
	} {
		if fault.NameOf(err) != "FormationNotFound" || err.Error() != "No formation with id 'nobody'" {
			t.Errorf("%s of an unknown formation: %v", name, err)
		}
	}
}

func third[T, U any](_ T, _ U, err error) error { return err }

func TestInit_RunsOnceForEachDeployedVersion(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	inits := func() string {
		text, err := os.ReadFile(filepath.Join(r.Home, "formations/hello/state/inits"))
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	before := r.MustDeploy(t, "hello", initVersion("1.0.0", `echo one >> "$HOME/inits"; echo made > here`))
	if inits() != "one\n" {
		t.Errorf("after the deploy: %q", inits())
	}
	if text, err := os.ReadFile(filepath.Join(r.Home, "formations/hello/versions/1/here")); err != nil || string(text) != "made\n" {
		t.Errorf("init did not run in the version's directory: %q, %v", text, err)
	}
	if _, err := r.Service.Restart(t.Context(), "hello", nil); err != nil {
		t.Fatal(err)
	}
	deploytest.Ask(t, before.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", func() bool {
		v := get(t, r, "hello")
		return v.RestartCount == 2 && v.Process.Status == process.StatusRunning
	})
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Service.Start(t.Context(), "hello", nil); err != nil {
		t.Fatal(err)
	}
	if inits() != "one\n" {
		t.Errorf("after restart, crash, stop and start: %q", inits())
	}
	if _, err := r.Update(t, "hello", initVersion("2.0.0", `echo two >> "$HOME/inits"`)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Service.Rollback(t.Context(), "hello", "", nil); err != nil {
		t.Fatal(err)
	}
	r.Shutdown(t)
	r.Start(t, nil)
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
	if inits() != "one\ntwo\n" {
		t.Errorf("after an update, a rollback and a start of the supervisor: %q", inits())
	}
}

func TestInit_ThatFailsFailsTheDeploy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		command, text string
		limit         time.Duration
	}{
		"exit code": {"echo 'cannot reach the mirror' >&2; exit 4", "init failed (exit 4): cannot reach the mirror", 0},
		"time over": {"echo still busy >&2; exec tail -f /dev/null", "still busy", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) { c.InitTimeout = tc.limit })
			_, err := r.Deploy(t, "hello", initVersion("1.0.0", tc.command))
			assertFault(t, err, fault.Failed, "SpawnError", tc.text)
			var f *deploy.StageError
			if !errors.As(err, &f) || f.Stage != deploy.StageSpawning || f.Rollback != deploy.RollbackDone {
				t.Errorf("stage error = %+v", f)
			}
			assertClean(t, r, "hello")
		})
	}
}

func TestUpdate_KeepsAsManyVersionsAsAllowed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keep int
		want []string
	}{
		"only the current": {1, []string{"5"}},
		"the previous too": {2, []string{"1", "5"}},
		"three":            {3, []string{"1", "4", "5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) { c.KeepVersions = 4 })
			r.MustDeploy(t, "hello", nil)
			for _, v := range []string{"2.0.0", "3.0.0", "4.0.0"} {
				r.MustUpdate(t, "hello", version(v, nil))
			}
			if _, err := r.Service.Rollback(t.Context(), "hello", "1.2.3", nil); err != nil {
				t.Fatal(err)
			}
			r.Shutdown(t)
			r.Start(t, func(c *deploy.Config) { c.KeepVersions = tc.keep })
			deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
			r.MustUpdate(t, "hello", version("5.0.0", nil))
			if diff := cmp.Diff(tc.want, versionDirs(t, r)); diff != "" {
				t.Errorf("version directories (-want +got):\n%s", diff)
			}
			all, err := r.Registry.Versions(t.Context(), "hello")
			if err != nil || len(all) != len(tc.want) {
				t.Errorf("%d versions in the registry, %v; want %v", len(all), err, tc.want)
			}
			_, err = r.Service.Rollback(t.Context(), "hello", "", nil)
			if tc.keep == 1 {
				assertFault(t, err, fault.Invalid, "NoPreviousVersion", "has no previous version")
			} else if err != nil || get(t, r, "hello").Current.Serial != 1 {
				t.Errorf("rollback: %v to %+v, want version 1", err, get(t, r, "hello").Current)
			}
		})
	}
}

func TestUpdate_OfAFormationThatIsDownStartsItOrLeavesItDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		down   func(*testing.T, *deploytest.Rig)
		status process.Status
	}{
		"stopped": {func(t *testing.T, r *deploytest.Rig) {
			if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
				t.Fatal(err)
			}
		}, process.StatusStopped},
		"crashed": {func(t *testing.T, r *deploytest.Rig) {
			behave(t, r, "hello", "crash")
			if _, err := r.Service.Restart(t.Context(), "hello", nil); err == nil {
				t.Fatal("a restart that crashes succeeded")
			}
			behave(t, r, "hello", "")
			if err := os.Remove(filepath.Join(r.Home, "formations/hello/state/behave")); err != nil {
				t.Fatal(err)
			}
		}, process.StatusCrashed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, func(c *deploy.Config) { c.Probation = 300 * time.Millisecond })
			before := r.MustDeploy(t, "hello", nil)
			tc.down(t, r)
			desired := get(t, r, "hello").Desired
			_, err := r.Update(t, "hello", version("2.0.0", map[string]string{"behave": "crash"}))
			assertFault(t, err, fault.Invalid, "HealthCheckFailed", "the disk is on fire")
			v := get(t, r, "hello")
			if v.Process.Status != tc.status || v.Desired != desired || v.Current.Serial != 1 || v.Previous != nil {
				t.Errorf("after a failed update: %s, desired %s, current %+v; want %s", v.Process.Status, v.Desired, v.Current, tc.status)
			}
			status, answer := deploytest.Ask(t, before.Port, "/")
			if tc.status == process.StatusCrashed && status != 503 || tc.status == process.StatusStopped && !strings.Contains(answer, "refused") {
				t.Errorf("the port answers %d %q", status, answer)
			}
			if diff := cmp.Diff([]string{"1"}, versionDirs(t, r)); diff != "" {
				t.Errorf("version directories (-want +got):\n%s", diff)
			}
			u, err := r.Update(t, "hello", version("3.0.0", nil))
			if err != nil || u.Process.Status != process.StatusRunning || u.Desired != registry.Running || u.Current.Semantic != "3.0.0" ||
				u.Previous.Semantic != "1.2.3" || u.Port != before.Port {
				t.Errorf("a good update: %+v, %v", u, err)
			}
			if _, dir := deploytest.Ask(t, u.Port, "/dir"); dir != itoa(u.Current.Serial) {
				t.Errorf("the port is answered from version directory %q, want %d", dir, u.Current.Serial)
			}
		})
	}
}

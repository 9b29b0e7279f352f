package deploy_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// childOf tells the process that runs hello in a version directory, by its
// working directory; 0 when there is none. (One that ended may stay a zombie: its
// parent, the killed supervisor, did not wait for it.)
func childOf(t *testing.T, r *deploytest.Rig, version string) int {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(r.Home, "formations/hello/versions", version)
	for _, link := range procs {
		if dir, err := os.Readlink(link); err == nil && strings.TrimSuffix(dir, " (deleted)") == want {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	return 0
}

func TestRestore_AfterAnUpdateThatDiedWithItsSupervisorTheOldVersionServes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reach string // where in the update the supervisor dies
		files map[string]string
	}{
		"during init":          {"init command", initVersion("2.0.0", "exec tail -f /dev/null")},
		"during the start":     {"waiting", version("2.0.0", map[string]string{"behave": "wait"})},
		"during the probation": {"on probation", version("2.0.0", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, nil)
			before := r.MustDeploy(t, "hello", nil)
			r.Abandon(t)
			s := r.Elsewhere(t, time.Minute)
			s.Update(t, "hello", deploytest.Bundle(t, "hello", deploytest.Files("hello", tc.files)), tc.reach)
			deploytest.Eventually(t, "a process runs in the new version's directory", func() bool { return childOf(t, r, "2") != 0 })
			s.Kill()
			if status, _ := deploytest.Ask(t, before.Port, "/"); status != http.StatusOK {
				t.Errorf("without a supervisor the port answers %d", status)
			}

			r.Start(t, nil)
			v := get(t, r, "hello")
			if v.Process.PID != before.Process.PID || v.Process.Status != process.StatusRunning || v.Current.Serial != 1 || v.Previous != nil {
				t.Errorf("after the restart: %+v, current %+v; want process %d", v.Process, v.Current, before.Process.PID)
			}
			deploytest.Eventually(t, "the new version's process and files are gone", func() bool {
				return childOf(t, r, "2") == 0 && cmp.Equal(versionDirs(t, r), []string{"1"})
			})
			if _, pid := deploytest.Ask(t, before.Port, "/"); pid != itoa(before.Process.PID) {
				t.Errorf("the port is answered by %q, want %d", pid, before.Process.PID)
			}
			if u := r.MustUpdate(t, "hello", version("3.0.0", nil)); u.Current.Serial != 3 || u.Previous.Serial != 1 {
				t.Errorf("the next update: current %+v, previous %+v", u.Current, u.Previous)
			}
		})
	}
}

func TestRestore_AfterTheCommitOfAnUpdateTheNewVersionServes(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", map[string]string{"behave": "linger"})
	r.Abandon(t)
	s := r.Elsewhere(t, 0)
	s.Update(t, "hello", deploytest.Bundle(t, "hello", deploytest.Files("hello", version("2.0.0", nil))), "stopping_old")
	next := childOf(t, r, "2")
	s.Kill()
	r.Start(t, nil)
	v := get(t, r, "hello")
	if v.Process.PID != next || v.Process.Status != process.StatusRunning || v.Current.Serial != 2 || v.Previous.Serial != 1 {
		t.Errorf("after the restart: %+v, current %+v; want process %d", v.Process, v.Current, next)
	}
	if _, err := os.Stat("/proc/" + itoa(before.Process.PID)); err != nil {
		t.Errorf("the old process, which has open work, was ended: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.Home, "formations/hello/state/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "the old process has ended", func() bool { return childOf(t, r, "1") == 0 })
	if diff := cmp.Diff([]string{"1", "2"}, versionDirs(t, r)); diff != "" {
		t.Errorf("version directories (-want +got):\n%s", diff)
	}
	rollback(t, r, "", 1)
}

func TestRestore_SweepsVersionsThatNoRowNames(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	v, err := r.Registry.Stage(t.Context(), "hello", registry.NewVersion{Semantic: "2.0.0", SHA256: "x", Name: "y"})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{v.Dir, "versions/77"} {
		if err := os.MkdirAll(filepath.Join(r.Home, "formations/hello", dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.Abandon(t)
	r.Start(t, nil)
	deploytest.Eventually(t, "what no row names is gone", func() bool { return cmp.Equal(versionDirs(t, r), []string{"1"}) })
	if n, err := r.Registry.DropStaged(t.Context(), "hello"); err != nil || n != 0 {
		t.Errorf("%d staged versions were left, %v", n, err)
	}
}

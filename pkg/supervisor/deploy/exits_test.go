package deploy_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func exits(t *testing.T, r *deploytest.Rig) []registry.Exit {
	t.Helper()
	all, err := r.Service.Exits(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// restarted tells whether hello runs after that many restarts.
func restarted(t *testing.T, r *deploytest.Rig, count int) func() bool {
	return func() bool {
		v := get(t, r, "hello")
		return v.Process.Status == process.StatusRunning && v.RestartCount == count
	}
}

func TestExits_TellHowEachProcessEndedAlsoAfterTheSupervisorDid(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Probation = time.Minute })
	first := r.MustDeploy(t, "hello", nil)
	if len(exits(t, r)) != 0 || first.LastExit != "" {
		t.Errorf("a new formation has exits: %+v, %q", exits(t, r), first.LastExit)
	}
	deploytest.Ask(t, first.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", restarted(t, r, 1))
	e := exits(t, r)
	if len(e) != 1 || e[0].Code != 3 || e[0].Reason != "exit code 3" || e[0].Launch != first.Process.LaunchID || e[0].Served <= 0 || e[0].Time.IsZero() {
		t.Fatalf("exits = %+v", e)
	}
	if v := get(t, r, "hello"); v.LastExit != "exit code 3" || v.RestartCount != 1 {
		t.Errorf("view = %q, %d", v.LastExit, v.RestartCount)
	}
	if err := syscall.Kill(get(t, r, "hello").Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "the next process serves", restarted(t, r, 2))
	if e := exits(t, r); len(e) != 2 || e[0].Signal != "killed" || e[0].Code != -1 {
		t.Fatalf("exits = %+v", e)
	}
	_, err := r.Update(t, "hello", version("2.0.0", map[string]string{"behave": "crash-after 50ms"}))
	if err == nil {
		t.Error("an update that crashes succeeded")
	}
	if e := exits(t, r); len(e) != 3 || e[0].Code != 9 || len(e[0].Stderr) == 0 || e[0].Stderr[0] != "the roof fell in" {
		t.Fatalf("exits = %+v", e)
	} else if e[0].Launch == "" || e[0].Launch == get(t, r, "hello").Process.LaunchID || e[0].Launch == e[1].Launch {
		t.Errorf("the launch that failed is told to be %q, running is %q", e[0].Launch, get(t, r, "hello").Process.LaunchID)
	}
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	want := exits(t, r)
	if len(want) != 4 || want[0].Reason != "stopped" {
		t.Fatalf("exits = %+v", want)
	}
	r.Shutdown(t)
	r.Start(t, nil)
	v := get(t, r, "hello")
	if len(exits(t, r)) != 4 || v.LastExit != "stopped" || v.Process.LastExit == nil || !v.Process.LastExit.Time.Equal(want[0].Time.Truncate(time.Millisecond)) {
		t.Errorf("after the supervisor's restart: %d exits, %q, %+v", len(exits(t, r)), v.LastExit, v.Process.LastExit)
	}
}

func TestExits_TellThatAnUpdateReplacedAProcess(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Probation = 50 * time.Millisecond })
	first := r.MustDeploy(t, "hello", nil)
	deploytest.Ask(t, first.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", restarted(t, r, 1))
	old := get(t, r, "hello").Process.LaunchID
	r.MustUpdate(t, "hello", version("2.0.0", nil))
	e := exits(t, r) // the answer of an update comes after the end of the old process
	if len(e) != 2 || e[0].Reason != "replaced" || e[0].Code != 0 || e[0].Launch != old || e[0].Served <= 0 || e[0].Time.IsZero() {
		t.Fatalf("exits = %+v, want the end of launch %s first", e, old)
	}
	if v := get(t, r, "hello"); v.LastExit != "exit code 3" {
		t.Errorf("the last exit is %q; a process that was replaced had not failed", v.LastExit)
	}
	r.Shutdown(t)
	r.Start(t, nil)
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
	if e := exits(t, r); len(e) != 3 || e[0].Reason != "stopped" || e[1].Reason != "replaced" {
		t.Errorf("after the supervisor's restart: %+v", e)
	}
}

func TestExits_OfAReplacedProcessAreNotTheLastOneAfterARestart(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Probation = 50 * time.Millisecond })
	first := r.MustDeploy(t, "hello", nil)
	deploytest.Ask(t, first.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", restarted(t, r, 1))
	r.MustUpdate(t, "hello", version("2.0.0", nil))
	r.Abandon(t)
	r.Start(t, nil)
	if v := get(t, r, "hello"); v.LastExit != "exit code 3" || v.Process.LastExit == nil || v.Process.LastExit.Code != 3 {
		t.Errorf("the last exit is %q, %+v", v.LastExit, v.Process.LastExit)
	}
}

func TestAlert_TellsOfACrashAndAHangButNotOfAFailedDeploy(t *testing.T) {
	t.Parallel()
	notices := &told{}
	r := deploytest.New(t, func(c *deploy.Config) {
		c.Alert, c.Probation = notices.add, time.Minute
		// A child that is well has to keep this, too.
		c.Manager.HealthInterval, c.Manager.HealthTimeout = time.Second, 4*time.Second
		c.Manager.Policy = process.DefaultPolicy()
		c.Manager.Policy.Max, c.Manager.Policy.Window, c.Manager.Policy.Healthy = 2, time.Hour, time.Hour
	})
	if _, err := r.Deploy(t, "broken", map[string]string{"behave": "crash"}); err == nil {
		t.Error("a deploy that crashes succeeded")
	}
	v := r.MustDeploy(t, "hello", nil)
	if _, err := r.Update(t, "hello", version("2.0.0", map[string]string{"behave": "crash"})); err == nil {
		t.Error("an update that crashes succeeded")
	}
	if n := notices.all(); len(n) != 0 {
		t.Errorf("what was answered was told as well: %+v", n)
	}
	if err := syscall.Kill(v.Process.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "the hang is told", func() bool { return len(notices.all()) == 1 })
	if n := notices.all()[0]; n.Event != deploy.NoticeHung || n.FormationID != "hello" || n.Time.IsZero() || n.Message == "" {
		t.Errorf("notice = %+v", n)
	}
	deploytest.Eventually(t, "the next process serves", restarted(t, r, 1))
	deploytest.Ask(t, v.Port, "/exit") // the second failure within the window
	deploytest.Eventually(t, "the crash is told", func() bool { return len(notices.all()) == 2 })
	if n := notices.all()[1]; n.Event != deploy.NoticeCrashed || n.Detail["exit_code"] != 3 || n.Detail["reason"] != "exit code 3" {
		t.Errorf("notice = %+v", n)
	}
}

package deploy_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func itoa(n int) string { return strconv.Itoa(n) }

func behave(t *testing.T, r *deploytest.Rig, id, mode string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.Home, "formations", id, "state", "behave"), []byte(mode), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStopAndStart_KeepThePortAndRecordWhatShouldBe(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	_, err := r.Service.Start(t.Context(), "hello", nil)
	assertFault(t, err, fault.Conflict, "AlreadyRunning", "already running")

	v, err := r.Service.Stop(t.Context(), "hello")
	if err != nil || v.Process.Status != process.StatusStopped || v.Desired != registry.Stopped || v.Process.PID != 0 || v.Uptime != 0 {
		t.Fatalf("stop: %+v, %v", v, err)
	}
	if _, answer := deploytest.Ask(t, before.Port, "/"); !strings.Contains(answer, "refused") {
		t.Errorf("a stopped formation's port answers %q", answer)
	}
	_, err = r.Service.Stop(t.Context(), "hello")
	assertFault(t, err, fault.Conflict, "AlreadyStopped", "already stopped")

	v, err = r.Service.Start(t.Context(), "hello", nil)
	if err != nil || v.Process.Status != process.StatusRunning || v.Desired != registry.Running || v.Port != before.Port || v.RestartCount != 0 {
		t.Fatalf("start: %+v, %v", v, err)
	}
	if !v.UpdatedAt.After(before.CreatedAt) && v.UpdatedAt != before.CreatedAt {
		t.Errorf("last start %v is before the deploy %v", v.UpdatedAt, before.CreatedAt)
	}
}

func TestRestart_ReplacesTheProcessAndCounts(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	var stages []string
	v, err := r.Service.Restart(t.Context(), "hello", func(p deploy.Progress) { stages = append(stages, string(p.Stage)) })
	if err != nil || v.Process.PID == before.Process.PID || v.RestartCount != 1 || v.Port != before.Port {
		t.Fatalf("restart: %+v, %v", v, err)
	}
	if got := strings.Join(stages, " "); !strings.Contains(got, "validating resolving_runtime stopping spawning health_check") {
		t.Errorf("stages = %s", got)
	}
	row, err := r.Registry.Get(t.Context(), "hello")
	if err != nil || row.RestartCount != 1 {
		t.Errorf("recorded: %+v, %v", row, err)
	}
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if v, err = r.Service.Restart(t.Context(), "hello", nil); err != nil || v.Desired != registry.Running || v.Process.Status != process.StatusRunning {
		t.Errorf("restart of a stopped formation: %+v, %v", v, err)
	}
}

func TestStart_ThatCrashesLeavesTheStatusCrashedAndAnswersOnThePort(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	behave(t, r, "hello", "crash")
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	_, err := r.Service.Start(t.Context(), "hello", nil)
	assertFault(t, err, fault.Failed, "HealthCheckFailed", "the disk is on fire")
	got, err := r.Service.Get(t.Context(), "hello")
	if err != nil || got.Process.Status != process.StatusCrashed || got.Process.LastExit == nil || got.Process.LastExit.Code != 7 {
		t.Fatalf("after the crash: %+v, %v", got.Process, err)
	}
	if status, _ := deploytest.Ask(t, v.Port, "/"); status != 503 {
		t.Errorf("the port answers %d, want 503", status)
	}
	_, err = r.Service.Target(t.Context(), "hello")
	assertFault(t, err, fault.Unavailable, "FormationUnavailable", "is crashed")
	behave(t, r, "hello", "")
	if v, err := r.Service.Start(t.Context(), "hello", nil); err != nil || v.Process.Status != process.StatusRunning {
		t.Errorf("start after the cause is gone: %+v, %v", v.Process, err)
	}
}

func TestStart_RefusesAndSaysWhy(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+itoa(v.Port))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Service.Start(t.Context(), "hello", nil)
	assertFault(t, err, fault.Failed, "SpawnError", "port "+itoa(v.Port)+" is in use by process "+itoa(os.Getpid()))
	l.Close()
	manifest := filepath.Join(r.Home, "formations/hello/versions/1/formation.afs")
	if err := os.WriteFile(manifest, []byte("id: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = r.Service.Start(t.Context(), "hello", nil)
	assertFault(t, err, fault.Failed, "ParseError", "formation.afs:1:")
	for name, err := range map[string]error{
		"start":   second(r.Service.Start(t.Context(), "nobody", nil)),
		"restart": second(r.Service.Restart(t.Context(), "nobody", nil)),
		"stop":    second(r.Service.Stop(t.Context(), "nobody")),
		"delete":  r.Service.Delete(t.Context(), "nobody"),
		"get":     second(r.Service.Get(t.Context(), "nobody")),
		"target":  second(r.Service.Target(t.Context(), "nobody")),
		"logs":    second(r.Service.TailLog(t.Context(), "nobody", deploy.Stdout, 1)),
	} {
		if fault.NameOf(err) != "FormationNotFound" || err.Error() != "No formation with id 'nobody'" {
			t.Errorf("%s of an unknown formation: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestStop_GivesUpAStartInProgress(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	behave(t, r, "hello", "wait")
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	waiting, result := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		_, err := r.Service.Start(t.Context(), "hello", func(p deploy.Progress) {
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
	_, err := r.Service.Start(t.Context(), "hello", nil)
	assertFault(t, err, fault.Conflict, "AlreadyRunning", "already running")
	_, err = r.Service.Stop(t.Context(), "hello")
	if serr := <-result; serr == nil {
		t.Error("the start succeeded although it was stopped")
	}
	// The stop that only gave the start up may find it stopped: both are right.
	if err != nil && fault.NameOf(err) != "AlreadyStopped" {
		t.Errorf("stop: %v", err)
	}
	if v, err := r.Service.Get(t.Context(), "hello"); err != nil || v.Process.Status != process.StatusStopped || v.Desired != registry.Stopped {
		t.Errorf("afterwards: %+v, %v", v, err)
	}
}

// waits is a context that tells when somebody waits for its end.
type waits struct {
	context.Context //nolint:containedctx // it is one
	told            func()
}

// Done implements context.Context.
func (w waits) Done() <-chan struct{} {
	w.told()
	return w.Context.Done()
}

// A start that is given up ends without an event of the process.
func TestTarget_IsToldWhenTheStartIsGivenUp(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	behave(t, r, "hello", "wait")
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	waiting, result := make(chan struct{}), make(chan error, 1)
	loads := sync.OnceFunc(func() { close(waiting) })
	go func() {
		_, err := r.Service.Start(t.Context(), "hello", func(p deploy.Progress) {
			if p.Message == "waiting" {
				loads()
			}
		})
		result <- err
	}()
	<-waiting
	asked, answered := make(chan struct{}), make(chan error, 1)
	ctx := waits{t.Context(), sync.OnceFunc(func() { close(asked) })}
	go func() {
		_, err := r.Service.Target(ctx, "hello")
		answered <- err
	}()
	<-asked
	began := time.Now()
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil && fault.NameOf(err) != "AlreadyStopped" {
		t.Errorf("stop: %v", err)
	}
	if err := <-result; err == nil {
		t.Error("the start succeeded although it was stopped")
	}
	assertFault(t, <-answered, fault.Unavailable, "FormationUnavailable", "is stop")
	if took := time.Since(began); took > 20*time.Second { // it waits for half a minute
		t.Errorf("the request was told after %s", took)
	}
}

func TestDelete_LeavesNothing(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	assertClean(t, r, "hello")
	assertGone(t, v.Process.PID)
}

// assertGone fails while the process lives.
func assertGone(t *testing.T, pid int) {
	t.Helper()
	if _, err := os.Stat("/proc/" + itoa(pid)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %d still lives", pid)
	}
}

func TestProcess_ThatDiesIsReplacedAndCounted(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	deploytest.Ask(t, before.Port, "/exit")
	deploytest.Eventually(t, "the next process serves", func() bool {
		v, err := r.Service.Get(t.Context(), "hello")
		return err == nil && v.Process.Status == process.StatusRunning && v.Process.PID != before.Process.PID
	})
	row, err := r.Registry.Get(t.Context(), "hello")
	if err != nil || row.RestartCount != 1 {
		t.Errorf("recorded: %+v, %v", row, err)
	}
}

func TestTarget_WaitsForAProcessThatIsReplaced(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	first, err := r.Service.Target(t.Context(), "hello")
	if err != nil || first.Port != before.Port {
		t.Fatalf("target = %+v, %v", first, err)
	}
	behave(t, r, "hello", "wait")
	deploytest.Ask(t, before.Port, "/exit")
	deploytest.Eventually(t, "the process is being replaced", func() bool {
		v, err := r.Service.Get(t.Context(), "hello")
		return err == nil && v.Process.Status == process.StatusRestarting
	})
	type answer struct {
		target deploy.Target
		err    error
	}
	// The next process stays in Load until the file is there: an answer that
	// did not wait could only be a refusal or the old process.
	got := make(chan answer, 1)
	go func() {
		target, err := r.Service.Target(t.Context(), "hello")
		got <- answer{target, err}
	}()
	if err := os.WriteFile(filepath.Join(r.Home, "formations/hello/state/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.err != nil || a.target.Port != before.Port || a.target.Launch == first.Launch {
		t.Errorf("target = %+v, want the next launch on the same port", a)
	}
}

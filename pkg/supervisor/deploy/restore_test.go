package deploy_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func get(t *testing.T, r *deploytest.Rig, id string) deploy.View {
	t.Helper()
	v, err := r.Service.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("get %s: %v", id, err)
	}
	return v
}

func running(t *testing.T, r *deploytest.Rig, id string) func() bool {
	return func() bool { return get(t, r, id).Process.Status == process.StatusRunning }
}

func TestRestore_AdoptsTheLivingLaunchesTheDeadAndLeavesTheStopped(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	living, stopped := r.MustDeploy(t, "living", nil), r.MustDeploy(t, "stopped", nil)
	r.MustDeploy(t, "dead", nil)
	dead, err := r.Service.Restart(t.Context(), "dead", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Service.Stop(t.Context(), "stopped"); err != nil {
		t.Fatal(err)
	}
	r.Abandon(t)
	if err := syscall.Kill(dead.Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status, _ := deploytest.Ask(t, living.Port, "/"); status != 200 {
		t.Errorf("without a supervisor the formation answers %d", status)
	}

	r.Start(t, nil)
	if v := get(t, r, "living"); v.Process.PID != living.Process.PID || !v.Process.Adopted || v.Process.Status != process.StatusRunning {
		t.Errorf("living: %+v, want process %d adopted", v.Process, living.Process.PID)
	}
	if s := get(t, r, "dead").Process.Status; s != process.StatusStarting && s != process.StatusRunning {
		t.Errorf("dead is %s right after the start, want starting", s)
	}
	deploytest.Eventually(t, "the dead formation runs", running(t, r, "dead"))
	if v := get(t, r, "dead"); v.Port != dead.Port || v.RestartCount != 1 || v.Process.PID == dead.Process.PID {
		t.Errorf("dead: %+v, want port %d and the restart count kept", v, dead.Port)
	}
	if v := get(t, r, "stopped"); v.Process.Status != process.StatusStopped || v.Port != stopped.Port {
		t.Errorf("stopped: %+v", v)
	}
	if v, err := r.Service.Start(t.Context(), "stopped", nil); err != nil || v.Port != stopped.Port {
		t.Errorf("start of the stopped one: %+v, %v", v, err)
	}
}

func TestRestore_TargetWaitsForALaunchThatIsToCome(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	r.Shutdown(t)
	assertGone(t, v.Process.PID)
	r.Start(t, nil)
	if target, err := r.Service.Target(t.Context(), "hello"); err != nil || target.Port != v.Port {
		t.Errorf("target = %+v, %v", target, err)
	}
}

func TestRestore_FinishesWhatWasInterrupted(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	deleting := r.MustDeploy(t, "deleting", nil)
	if err := r.Registry.SetDeleting(t.Context(), "deleting"); err != nil {
		t.Fatal(err)
	}
	// A deploy that got as far as its row and directory.
	err := r.Registry.Begin(t.Context(), registry.NewFormation{ID: "deploying", Name: "x", Port: r.First + 5, Serial: 1, Dir: "versions/1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"formations/deploying/versions/1", "formations/.staging/half-1", "formations/.trash/old-2"} {
		if err := os.MkdirAll(filepath.Join(r.Home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.Home, "tmp", "bundle-1"), []byte("half an upload"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Abandon(t)
	r.Start(t, nil)
	for _, id := range []string{"deleting", "deploying"} {
		if _, err := r.Service.Get(t.Context(), id); fault.NameOf(err) != "FormationNotFound" {
			t.Errorf("%s: %v, want FormationNotFound", id, err)
		}
	}
	if rows, err := r.Registry.List(t.Context()); err != nil || len(rows) != 0 {
		t.Errorf("rows left: %+v, %v", rows, err)
	}
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
	assertGone(t, deleting.Process.PID)
}

func TestRestore_EndsALivingChildThatShouldBeStopped(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	r.Abandon(t)
	reg, err := registry.Open(t.Context(), registry.Config{Path: filepath.Join(r.Home, "registry.db")})
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.SetDesired(t.Context(), "hello", registry.Stopped); err != nil {
		t.Fatal(err)
	}
	if err := reg.Close(); err != nil {
		t.Fatal(err)
	}
	r.Start(t, nil)
	if got := get(t, r, "hello").Process.Status; got != process.StatusStopped {
		t.Errorf("status = %s, want stopped", got)
	}
	assertGone(t, v.Process.PID)
}

func TestRestore_ToleratesAFormationWithoutItsDirectory(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "broken", nil)
	good := r.MustDeploy(t, "good", nil)
	r.Shutdown(t)
	if err := os.RemoveAll(filepath.Join(r.Home, "formations/broken")); err != nil {
		t.Fatal(err)
	}
	r.Start(t, nil)
	deploytest.Eventually(t, "the good formation runs", running(t, r, "good"))
	_, err := r.Service.Start(t.Context(), "broken", nil)
	deploytest.Eventually(t, "the start of the broken one is refused", func() bool {
		_, err = r.Service.Start(t.Context(), "broken", nil)
		return fault.NameOf(err) == "ParseError"
	})
	if v := get(t, r, "good"); v.Port != good.Port {
		t.Errorf("good moved from port %d to %d", good.Port, v.Port)
	}
	if err := r.Service.Delete(t.Context(), "broken"); err != nil {
		t.Errorf("delete of the broken one: %v", err)
	}
}

func TestRestore_TriesALaunchThatFailsAgain(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	r.Shutdown(t)
	behave(t, r, "hello", "crash")
	r.Start(t, nil)
	deploytest.Eventually(t, "the first launch fails", func() bool {
		exit := get(t, r, "hello").Process.LastExit // the one before was a stop
		return exit != nil && exit.Code == 7
	})
	behave(t, r, "hello", "")
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
}

// Before there is a process, too: somebody else has the port for a while.
func TestRestore_SaysWhyALaunchCannotBeginAndTriesAgain(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	port := r.MustDeploy(t, "hello", nil).Port
	r.Shutdown(t)
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r.Start(t, nil)
	deploytest.Eventually(t, "the launch is refused", func() bool {
		p := get(t, r, "hello").Process
		return p.Status == process.StatusCrashed && p.LastExit != nil && strings.Contains(p.LastExit.Reason, "is in use")
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "the formation runs", running(t, r, "hello"))
}

func TestRestore_WhatCannotBeLaunchedCanBeStopped(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	r.Shutdown(t)
	if err := os.RemoveAll(filepath.Join(r.Home, "formations/hello")); err != nil {
		t.Fatal(err)
	}
	r.Start(t, nil)
	deploytest.Eventually(t, "the launch is refused", func() bool { return get(t, r, "hello").Process.Status == process.StatusCrashed })
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, r, "hello").Process.Status; got != process.StatusStopped {
		t.Errorf("it is %s", got)
	}
}

func TestRestore_BringsBackMoreThanALoweredLimitAllows(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "first", nil)
	r.MustDeploy(t, "second", nil)
	r.Abandon(t)
	r.Start(t, func(c *deploy.Config) { c.MaxFormations = 1 })
	for _, id := range []string{"first", "second"} {
		if s := get(t, r, id).Process.Status; s != process.StatusRunning {
			t.Errorf("%s is %s", id, s)
		}
	}
	_, err := r.Deploy(t, "third", nil)
	assertFault(t, err, fault.Failed, "PortAllocationError", "at most 1 formations")
}

func TestShutdown_EndsADeployInProgressAndRefusesOthers(t *testing.T) {
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
	service := r.Service
	r.Shutdown(t)
	assertFault(t, <-result, fault.Unavailable, "FormationUnavailable", "shutting down")
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
	b, err := service.Receive(t.Context(), os.Stdin)
	if err == nil {
		defer b.Discard()
		_, err = service.Deploy(t.Context(), deploy.Request{ID: "other", Bundle: b}, nil)
		assertFault(t, err, fault.Unavailable, "FormationUnavailable", "shutting down")
	}
}

// A start that has its turn and has not come to the process yet: the stop finds
// nothing to stop.
func TestShutdown_LeavesNoProcessOfAStartThatHadJustBegun(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	r.MustDeploy(t, "witness", nil)
	if _, err := r.Service.Stop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	service := r.Service
	began, on, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	hold := sync.OnceFunc(func() {
		close(began)
		<-on
	})
	go func() {
		_, err := service.Start(t.Context(), "hello", func(deploy.Progress) { hold() })
		result <- err
	}()
	<-began
	down := make(chan struct{})
	go func() {
		defer close(down)
		r.Shutdown(t)
	}()
	deploytest.Eventually(t, "the others are stopped", func() bool {
		v, err := service.Get(t.Context(), "witness")
		return err == nil && v.Process.Status == process.StatusStopped
	})
	close(on)
	assertFault(t, <-result, fault.Unavailable, "FormationUnavailable", "shutting down")
	<-down
	// A launch that was given up has left a record, for the next start to fence.
	records, err := filepath.Glob(filepath.Join(r.Home, "run/*/launch-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		var launch struct{ PID int }
		if err == nil {
			err = json.Unmarshal(text, &launch)
		}
		if err != nil {
			t.Fatal(err)
		}
		assertGone(t, launch.PID)
	}
}

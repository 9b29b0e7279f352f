package server_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/server"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
	"github.com/agentformation/service/test/testprogram"
)

func TestEmbed_FetchesLoadsAndGivesThePlainVectors(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{server.EngineORT, server.EngineGo} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.env = append(r.env, hub.LibraryEnv+"="+embedtest.Library(t))
			c := r.client(t, "-engine", engine)
			r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 50_000, Times: 1})
			info, err := c.Info(t.Context(), tiny)
			if err != nil {
				t.Fatal(err)
			}
			if info.Dimension != embedtest.Tiny.Hidden || info.Revision != embedtest.Commit || !strings.HasPrefix(info.Engine, engine) {
				t.Errorf("info %+v", info)
			}
			r.right(t, c, "the quick brown fox", "cat", "hello world")
		})
	}
}

func TestEmbed_ManyStartOneProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	for range 8 {
		c := r.client(t)
		wg.Go(func() { r.right(t, c, "cat", "dog") })
	}
	wg.Wait()
	if n := len(r.starts(t)); n != 1 {
		t.Errorf("%d processes were started, want 1", n)
	}
}

func TestEmbed_ACrashIsMendedByTheNextCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.client(t)
	for range 3 {
		r.right(t, c, "cat")
		r.kill(t)
	}
	r.right(t, c, "cat")
	if n := len(r.starts(t)); n != 4 {
		t.Errorf("%d processes, want 4", n)
	}
}

func TestEmbed_AProcessThatDiesInTheCallIsReplacedWithinIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stall := make(chan struct{})
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 50_000, Stall: stall, Times: 1})
	c := r.client(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.right(t, c, "cat")
	}()
	awaitCall(t, r, "/storage/"+repo+"/onnx/model.onnx")
	r.kill(t)
	<-done
	close(stall)
	if n := len(r.starts(t)); n != 2 {
		t.Errorf("%d processes, want 2", n)
	}
}

// awaitCall waits until the hub has been asked for a path.
func awaitCall(t *testing.T, r *rig, path string) {
	t.Helper()
	until(t, "the hub is asked for "+path, func() bool {
		return slices.ContainsFunc(r.Calls(), func(c embedtest.Call) bool { return c.Path == path })
	})
}

func TestEmbed_AnIdleProcessEndsAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.client(t, "-idle", "100ms")
	r.right(t, c, "cat")
	c.Close()
	r.gone(t, r.starts(t)[0])
	if _, err := os.Stat(embedder.SocketPath(r.dir)); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	r.right(t, c, "cat")
}

func TestEmbed_WithoutAProcessIsUnavailable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.clientOf(t, embedder.Config{}).Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "supervisor")
}

func TestEmbed_AProcessThatNeverStartsIsNotTriedWithEachCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.client(t, "-broken")
	begin := time.Now()
	for range 5 {
		_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
		wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "this one never starts")
	}
	// The pause after a failed start is a second or more; five calls take no
	// second, unless the machine stands still.
	n := len(r.starts(t))
	if most := 1 + int(time.Since(begin)/time.Second); n < 1 || n > most {
		t.Errorf("%d starts, want 1 to %d", n, most)
	}
	_, err := r.clientOf(t, embedder.Config{Command: []string{"/nowhere"}}).Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "/nowhere")
}

func TestEmbed_AHungStartEndsInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.clientOf(t, embedder.Config{Command: []string{"/bin/sh", "-c", "sleep 60"}, StartTimeout: 50 * time.Millisecond})
	_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "not ready in time")
}

func TestEmbed_RefusesADirectoryThatOthersMayWriteIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := os.Chmod(r.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := r.client(t).Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "only this user")
	if n := len(r.starts(t)); n != 0 {
		t.Errorf("%d starts, want none", n)
	}
}

func TestEnviron_KeepsKeysFromTheProcess(t *testing.T) {
	t.Parallel()
	got := embedder.Environ([]string{"PATH=/bin", "OPENAI_API_KEY=x", "SVC_SECRETS_KEY=y", "HF_HOME=/c", "PATHX=1"})
	got = slices.DeleteFunc(got, func(kv string) bool { return strings.HasPrefix(kv, "MALLOC_") })
	if want := []string{"PATH=/bin", "HF_HOME=/c"}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// keep runs a keeper until the end of the test, and returns its processes, which
// are idle after a while.
func keep(t *testing.T, r *rig, idle time.Duration, users *embedder.UIDRange) <-chan int {
	t.Helper()
	k, err := embedder.NewKeeper(embedder.KeeperConfig{
		Config: embedder.Config{Dir: r.dir, Env: r.env, Command: []string{os.Args[0], "-idle", idle.String()}, StartTimeout: patience}, Users: users,
	})
	if err != nil {
		t.Fatal(err)
	}
	pids := make(chan int, 10)
	k.Started = func(pid int) { pids <- pid }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, pid := range r.starts(t) {
			if isChild(pid) {
				t.Errorf("process %d outlived its keeper", pid)
			}
		}
	})
	until(t, "the keeper has its socket", func() bool {
		info, err := os.Stat(r.dir)
		if err != nil || users != nil && info.Mode().Perm() != 0o711 {
			return false
		}
		_, err = os.Stat(embedder.SocketPath(r.dir))
		return err == nil
	})
	return pids
}

func TestKeeper_RunsAProcessWhenSomebodyCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pids := keep(t, r, 200*time.Millisecond, nil)
	c := r.clientOf(t, embedder.Config{}) // it may not start anything
	if n := len(r.starts(t)); n != 0 {
		t.Fatalf("%d processes before anybody called", n)
	}
	r.right(t, c, "cat")
	c.Close()
	r.gone(t, <-pids) // idle
	r.right(t, c, "dog")
}

func TestKeeper_ReplacesAProcessThatDied(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keep(t, r, patience, nil)
	c := r.clientOf(t, embedder.Config{})
	r.right(t, c, "dog")
	r.kill(t)
	// The call that finds the process dead waits for the next one, or is told
	// that the connection broke, and then the one after it succeeds.
	if _, err := c.Embed(t.Context(), tiny, []string{"cat"}, ""); err != nil && fault.NameOf(err) != embedder.NameUnavailable {
		t.Error(err)
	}
	r.right(t, c, "hello world")
}

func TestKeeper_ItsEndIsThatOfTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.clientOf(t, embedder.Config{})
	for i := range 2 {
		k := exec.CommandContext(t.Context(), os.Args[0])
		k.Env, k.Stderr = append(slices.Clone(r.env), beKeeper+"="+r.dir), os.Stderr
		if err := k.Start(); err != nil {
			t.Fatal(err)
		}
		awaitVectors(t, r, c)
		_ = k.Process.Kill()
		_ = k.Wait()
		// An orphan is reaped by whoever runs first here, at some time; that it
		// no longer holds the lock is what the next keeper needs.
		unlock, err := filelock.Take(t.Context(), filepath.Join(r.dir, embedder.ServeLock), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		if n := len(r.starts(t)); n != i+1 {
			t.Errorf("%d processes, want %d", n, i+1)
		}
	}
}

// awaitVectors asks until the socket is there.
func awaitVectors(t *testing.T, r *rig, c *embedder.Client) {
	t.Helper()
	until(t, "somebody answers", func() bool {
		_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
		if err != nil && fault.NameOf(err) != embedder.NameUnavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	r.right(t, c, "cat")
}

func TestKeeper_LetsInWhomItIsTold(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	r := newRig(t)
	keep(t, r, patience, &embedder.UIDRange{First: 61_000, Last: 61_009})
	exe := filepath.Join(r.dir, "caller") // where those users reach it
	if err := testprogram.Copy(self(), exe); err != nil {
		t.Fatal(err)
	}
	call := func(uid uint32) (string, error) {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env, cmd.Dir = []string{beCaller + "=" + r.dir}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := call(61_005); err != nil {
		t.Errorf("user 61005: %v: %s", err, out)
	}
	if out, err := call(61_010); err == nil || !strings.Contains(out, "takes no calls of user 61010") {
		t.Errorf("user 61010: %v: %s", err, out)
	}
}

func wantFault(t *testing.T, err error, kind fault.Kind, name string, words ...string) {
	t.Helper()
	if fault.KindOf(err) != kind || fault.NameOf(err) != name {
		t.Fatalf("got %v %s, want %v %s: %v", fault.KindOf(err), fault.NameOf(err), kind, name, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the message lacks %q: %v", w, err)
		}
	}
	if errors.Is(err, context.Canceled) {
		t.Errorf("%v looks like the caller's own end", err)
	}
}

package mcpclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
)

// quick sets limits; to connect may take long unless they say how long.
func quick(l mcpclient.Limits) func(*mcpclient.Config) {
	return func(cfg *mcpclient.Config) {
		if l.Connect == 0 {
			l.Connect = cfg.Limits.Connect
		}
		cfg.Limits = l
	}
}

func TestDiscover_ServersThatFailAreToldAndTheOthersWork(t *testing.T) {
	t.Parallel()
	silent := self(t, "silent", "silent")
	silent.Timeout = 300 * time.Millisecond
	late := open(t, quick(mcpclient.Limits{Connect: 300 * time.Millisecond, Grace: 100 * time.Millisecond}), silent)
	c := open(t, nil, self(t, "dies", "dies"), command("missing", "no-such-program"), self(t, "babble", "babble"), self(t, "fine", "works"))
	warnings := strings.Join(append(late.Discover(t.Context()), c.Discover(t.Context())...), "\n")
	for _, want := range []string{
		"tool server dies: its tools are not known yet: ", "no configuration found", "exit status 1",
		"silent: its tools are not known yet: it did not answer within 300ms",
		"missing: its tools are not known yet: ", "executable file not found",
		"babble: its tools are not known yet: ",
	} {
		if !strings.Contains(warnings, want) {
			t.Errorf("%q is not told:\n%s", want, warnings)
		}
	}
	if res := call(t, c, "count", "{}"); res.Content != "1" {
		t.Errorf("%+v", res)
	}
	status := map[string]mcpclient.ServerStatus{}
	for _, s := range c.Servers() {
		status[s.ID] = s
	}
	if s := status["dies"]; s.Status != mcpclient.StatusError || !strings.Contains(s.LastError, "giving up") || s.Tools != 0 {
		t.Errorf("%+v", s)
	}
	if s := status["fine"]; s.Status != mcpclient.StatusConnected || s.Tools != 9 || s.LastError != "" || s.Name != "tester" {
		t.Errorf("%+v", s)
	}
}

func TestDiscover_TheCauseInTheWordsOfADeadProcessIsToldFirstAndOnce(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "index", "throws"), self(t, "dies", "dies"))
	warnings := c.Discover(t.Context())
	said := []string{
		"exit status 1; its last words: Error: Cannot find module '/outside/index.js' | requireStack: [] | } | Node.js v20.20.2",
		"exit status 1; its last words: no configuration found | giving up",
	}
	for i, s := range c.Servers() {
		for _, text := range []string{warnings[i], s.LastError} {
			if !strings.HasSuffix(text, said[i]) || strings.Count(text, "its last words") != 1 {
				t.Errorf("%s: %q, want %q once at its end", s.ID, text, said[i])
			}
		}
	}
}

func TestProcess_LinesThatAreNoMessagesAreSkipped(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "chatty", "chatty"))
	discover(t, c)
	if res := call(t, c, "count", "{}"); res.Content != "1" {
		t.Errorf("%+v", res)
	}
}

func TestProcess_AbsurdMessageEndsTheSessionOnly(t *testing.T) {
	t.Parallel()
	c := open(t, quick(mcpclient.Limits{Message: 4 << 20}), self(t, "huge", "huge"))
	discover(t, c)
	_, err := tool(t, c, "big").Call(t.Context(), chat.Invocation{})
	if err == nil || !strings.Contains(err.Error(), "ended during the call") {
		t.Errorf("%v", err)
	}
}

func TestProcess_StartsInTheVersionsDirectoryWithFewVariables(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := self(t, "tester", "works")
	s.Cwd, s.Env = "sub", map[string]string{"PLAIN": "p"}
	s.Auth = manifest.Auth{Type: manifest.AuthEnv, Values: map[string]string{"TOKEN": "${{ secrets.T }}"}}
	var launch string
	c := open(t, func(cfg *mcpclient.Config) {
		cfg.Dir, cfg.Resolve, launch = dir, secretsOf(map[string]string{"T": "hidden"}), cfg.Launch
	}, s)
	discover(t, c)
	a := aboutOf(t, c)
	if real, _ := filepath.EvalSymlinks(filepath.Join(dir, "sub")); a.Dir != real {
		t.Errorf("it runs in %s", a.Dir)
	}
	names := make([]string, 0, len(a.Env))
	for _, entry := range a.Env {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"HOME", "PATH", "PLAIN", mcpclient.EnvLaunch, "TOKEN"}; !slices.Equal(names, slices.Sorted(slices.Values(want))) {
		t.Errorf("its variables are %v", names)
	}
	if !slices.Contains(a.Env, "TOKEN=hidden") || !slices.Contains(a.Env, mcpclient.EnvLaunch+"="+launch) {
		t.Errorf("%v", a.Env)
	}
}

func secretsOf(values map[string]string) func(context.Context, string, string) (string, error) {
	return func(_ context.Context, text, user string) (string, error) {
		return manifest.Expand(text, func(kind, name string) (string, bool) {
			if kind == manifest.KindUser {
				v, ok := values[user+"."+name]
				return v, ok
			}
			v, ok := values[name]
			return v, ok
		})
	}
}

func TestClose_EndsStubbornProcessesAndWhatTheyStarted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	c := open(t, quick(mcpclient.Limits{Grace: 50 * time.Millisecond}), self(t, "stubborn", "stubborn"), self(t, "parent", "parent", file))
	discover(t, c)
	for _, name := range []string{"stubborn", "parent"} {
		res, err := c.For("a", []manifest.MCPUse{{ID: name}}).Tools(t.Context(), chat.Invocation{})[1].Call(t.Context(), chat.Invocation{})
		if err != nil {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for pid := range strings.FieldsSeq(string(data)) {
		n, _ := strconv.Atoi(pid)
		eventually(t, "the end of process "+pid, func() bool { return dead(n) })
	}
}

// dead tells that a process is gone or waits for a parent that never asks.
func dead(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestSweep_KillsTheProcessesOfADeadLaunch(t *testing.T) {
	t.Parallel()
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, self(t, "tester", "works"))
	discover(t, c)
	pid := aboutOf(t, c).PID
	if n := mcpclient.Sweep(func(string) bool { return false }); n != 0 {
		t.Errorf("%d killed", n)
	}
	if n := mcpclient.Sweep(func(l string) bool { return l == launch }); n < 1 { // the one that was asked for the list may be ending
		t.Errorf("%d killed", n)
	}
	eventually(t, "its end", func() bool { return dead(pid) })
}

func TestCall_ProcessDiesWhileIdle_TheNextCallStartsAnother(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "tester", "works"))
	discover(t, c)
	pid := aboutOf(t, c).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Whether the end is known by now or not, the call reaches a server that was
	// not there before, unless it was written to the dead one.
	res, err := tool(t, c, "count").Call(t.Context(), chat.Invocation{})
	if e, ok := errors.AsType[*mcpclient.Error](err); ok && e.Begun() {
		res, err = tool(t, c, "count").Call(t.Context(), chat.Invocation{})
	}
	if err != nil || res.Content != "1" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestCall_ServerThatDoesNotReadDoesNotHoldTheCaller(t *testing.T) {
	t.Parallel()
	s := self(t, "deaf", "deaf")
	s.Timeout = 6 * time.Second // by then its message is being written
	lists := &memoryLists{}
	// What it offers is known from an earlier life.
	known := open(t, func(cfg *mcpclient.Config) { cfg.Lists = lists }, self(t, "tester", "works"))
	discover(t, known)
	for key, data := range lists.all() {
		lists.fake = data
		_ = key
	}
	c := open(t, func(cfg *mcpclient.Config) {
		cfg.Lists, cfg.Limits.Grace = lists, 100*time.Millisecond
	}, s)
	discover(t, c)
	big, err := json.Marshal(map[string]string{"x": strings.Repeat("y", 128<<10)}) // more than a pipe takes
	if err != nil {
		t.Fatal(err)
	}
	_, err = tool(t, c, "args").Call(t.Context(), chat.Invocation{Args: big})
	e, ok := errors.AsType[*mcpclient.Error](err)
	if !ok || !e.Begun() || !strings.Contains(err.Error(), "in time") {
		t.Errorf("%v", err)
	}
}

func TestCall_ProgressPutsTheEndOff(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works")
	s.Timeout = 5 * time.Second
	c := open(t, nil, s)
	discover(t, c)
	if res := call(t, c, "sleep", `{"millis":7000,"steps":140}`); res.Content != "slept" {
		t.Errorf("a call that reports progress: %+v", res)
	}
}

func TestCall_TimeoutCancels(t *testing.T) {
	t.Parallel()
	note := filepath.Join(t.TempDir(), "note")
	for name, tc := range map[string]struct {
		timeout, most time.Duration
		args          string
	}{
		"of a silent call":              {3 * time.Second, patience, `{"millis":60000,"note":"` + note + `"}`},
		"of one that reports all along": {patience, 3 * time.Second, `{"millis":60000,"steps":600}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := self(t, "tester", "works")
			s.Timeout = tc.timeout
			c := open(t, quick(mcpclient.Limits{Call: tc.most}), s)
			discover(t, c)
			_, err := tool(t, c, "sleep").Call(t.Context(), chat.Invocation{Args: json.RawMessage(tc.args)})
			e, ok := errors.AsType[*mcpclient.Error](err)
			if !ok || !e.Begun() || !strings.Contains(err.Error(), "did not answer the call of sleep in time") {
				t.Errorf("%v", err)
			}
			if strings.Contains(tc.args, note) {
				eventually(t, "the server hears that the call was cancelled", func() bool { _, err := os.Stat(note); return err == nil })
			}
		})
	}
}

func TestCall_CancelIsToldToTheServer(t *testing.T) {
	t.Parallel()
	note := filepath.Join(t.TempDir(), "note")
	c := open(t, nil, self(t, "tester", "works"))
	discover(t, c)
	call(t, c, "count", "{}")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := tool(t, c, "sleep").Call(ctx, chat.Invocation{ // once it is known to be at work
		Args: json.RawMessage(`{"millis":60000,"steps":600,"note":"` + note + `"}`), Progress: func(chat.ToolProgress) { cancel() },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	eventually(t, "the server hears it", func() bool { _, err := os.Stat(note); return err == nil })
	if res := call(t, c, "count", "{}"); res.Content != "2" {
		t.Errorf("the session did not go on: %+v", res)
	}
}

func TestTTL_ZeroEndsTheProcessAfterEachCall(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works")
	s.ConnectionTTL = 0
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, s)
	discover(t, c)
	for range 2 {
		if res := call(t, c, "count", "{}"); res.Content != "1" {
			t.Errorf("%+v", res)
		}
	}
	eventually(t, "no process is left", func() bool { return len(running(launch)) == 0 })
}

func TestTTL_IdleProcessEndsAndTheNextCallStartsAnother(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works")
	s.ConnectionTTL = 100 * time.Millisecond
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, s)
	discover(t, c)
	call(t, c, "count", "{}")
	eventually(t, "no process is left", func() bool { return len(running(launch)) == 0 })
	if res := call(t, c, "count", "{}"); res.Content != "1" {
		t.Errorf("%+v", res)
	}
}

func TestLife_EndEndsProcesses(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	launch := "life-test-" + strconv.Itoa(os.Getpid())
	c := mcpclient.New(ctx, mcpclient.Config{Servers: []mcpclient.Server{self(t, "tester", "works")}, Dir: t.TempDir(), Launch: launch})
	discover(t, c)
	call(t, c, "count", "{}")
	cancel()
	eventually(t, "no process is left", func() bool { return len(running(launch)) == 0 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestCall_ManyAtOnceShareOneProcess(t *testing.T) {
	t.Parallel()
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, self(t, "tester", "works"))
	discover(t, c)
	count := tool(t, c, "count")
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			if _, err := count.Call(t.Context(), chat.Invocation{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if res := call(t, c, "count", "{}"); res.Content != "51" {
		t.Errorf("%+v", res)
	}
	eventually(t, "one process is left", func() bool { return len(running(launch)) == 1 })
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// quickUpdates keeps the waits of an update short; their order is the same.
const quickUpdates = "  deployment:\n    probation: 300ms\n"

// steady is a load in which nothing may fail: chats in JSON and as streams of a
// model that speaks slowly, on fresh connections and on kept ones, through the
// supervisor and on the formation's own port.
type steady struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex // guards what follows
	done     int
	failures []string
}

// steadyText is what the slow model says; each stream must deliver all of it.
const steadyText = "one two three four five six seven eight nine ten"

// steadyRule speaks steadyText in about half a second.
func steadyRule() fakellm.Rule {
	return fakellm.Rule{User: "^steady", Reply: fakellm.Reply{Text: steadyText, Chunks: 10, ChunkDelayMS: 50}}
}

// keepSteady starts connections workers over f.
func keepSteady(t *testing.T, connections int, f *harness.Formation) *steady {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &steady{cancel: cancel}
	for i := range connections {
		client := harness.Fresh(t)
		if i%4 >= 2 {
			client = harness.NewClient(t) // one for each worker: its connection is kept
		}
		r := f.Request(harness.Chat{"message": fmt.Sprintf("steady %d", i), "agent_id": "poet"})
		if i%8 >= 4 {
			r.URL = f.Through() + "/v1/chat"
		}
		ask := askWholeJSON
		if i%2 == 1 {
			r.Header["Accept"] = "text/event-stream"
			ask = askWholeStream
		}
		name := fmt.Sprintf("connection %d of %s", i, r.URL)
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.note(name, ask(context.WithoutCancel(ctx), client, r))
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *steady) note(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("request %d, %s: %v", l.done, name, err))
	}
}

func (l *steady) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// more waits for n further requests to end.
func (l *steady) more(t *testing.T, n int) {
	t.Helper()
	from := l.count()
	harness.Until(t, fmt.Sprintf("%d more requests of the load have ended", n), func() bool { return l.count() >= from+n })
}

func (l *steady) end() {
	l.cancel()
	l.wg.Wait()
}

// check ends the load and fails the test for every request that failed.
func (l *steady) check(t *testing.T) {
	t.Helper()
	l.end()
	t.Logf("%d requests, %d failed", l.done, len(l.failures))
	for i, f := range l.failures {
		if t.Error(f); i == 9 {
			t.Errorf("and %d more", len(l.failures)-10)
			break
		}
	}
}

func askWholeJSON(ctx context.Context, c *harness.Client, r harness.Request) error {
	reply, err := c.Do(ctx, r)
	if err == nil && (reply.Status != http.StatusOK || reply.Text("data.response") != steadyText) {
		return fmt.Errorf("%d %s", reply.Status, reply.Body)
	}
	return err
}

func askWholeStream(ctx context.Context, c *harness.Client, r harness.Request) error {
	s, err := c.Stream(ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	frames, err := s.Rest()
	if err != nil {
		return fmt.Errorf("cut after %d frames: %w", len(frames), err)
	}
	if n := len(frames); n < 2 || frames[n-1].Event != "done" {
		return fmt.Errorf("a stream of %d frames without its end", n)
	}
	if text := harness.Deltas(frames); text != steadyText {
		return errors.New("the stream says: " + text)
	}
	return nil
}

func TestUpdate_TwentyInARowUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: quickUpdates})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(steadyRule())
	files := suite.Pair(t, "steady", model.URL())
	f := s.Deploy("steady", files.Version("1.0.0"))
	l := keepSteady(t, 32, f)
	l.more(t, 40)
	pids := map[int]bool{f.PID(): true}
	previous := "1.0.0"
	for i := 1; i <= 20; i++ {
		version := fmt.Sprintf("1.0.%d", i)
		reply := s.Update("steady", files.Version(version)).Want(t, http.StatusOK, "data.version", version,
			"data.previous_version", previous, "data.status", "running", "data.port", strconv.Itoa(f.Port))
		previous = version
		pid := reply.Int("data.pid")
		if pids[pid] || !harness.Alive(pid) {
			t.Fatalf("update %d: process %d is not a new one", i, pid)
		}
		pids[pid] = true
		if all := s.Runtimes("steady"); len(all) != 1 || all[0] != pid {
			t.Fatalf("after update %d the processes are %v, want %d", i, all, pid)
		}
	}
	l.more(t, 40)
	l.check(t)
	versions := s.Files("formations/steady/versions")
	dirs := 0
	for _, v := range versions {
		if strings.Count(v, "/") == 3 {
			dirs++
		}
	}
	if dirs != 5 {
		t.Errorf("%d versions are kept, want 5: %v", dirs, versions)
	}
}

// badUpdates are bundles that must not replace a running version.
func badUpdates(good harness.Files) map[string]struct {
	files  harness.Files
	status int
	name   string
	says   string
} {
	type bad = struct {
		files  harness.Files
		status int
		name   string
		says   string
	}
	other := good.With("")
	other["formation.afs"] = strings.Replace(other["formation.afs"], "id: firm\n", "id: other\n", 1)
	return map[string]bad{
		"manifest fault": {good.Version("2.0.0").With("agentz: []\nllm: 3\n"), http.StatusBadRequest, "ParseError", "formation.afs:"},
		"wrong id":       {other.Version("2.0.0"), http.StatusBadRequest, "IDMismatch", "other"},
		"same bundle":    {good, http.StatusConflict, "NoChange", ""},
		"missing secret": {
			good.Version("2.0.0").With("server:\n  admin_key: ${{ secrets.NOBODY_SET_THIS }}\n"),
			http.StatusBadRequest, "SecretsError", "NOBODY_SET_THIS",
		},
		"init fails": {
			good.Version("2.0.0").With("init: echo the oven is cold >&2; exit 4\n"),
			http.StatusInternalServerError, "SpawnError", "init failed (exit 4): the oven is cold",
		},
	}
}

func TestUpdate_ABadOneNeverTakesTheRunningVersionDown(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: quickUpdates})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(steadyRule())
	good := suite.Pair(t, "firm", model.URL()).Version("1.0.0")
	f := s.Deploy("firm", good)
	pid := f.PID()
	l := keepSteady(t, 8, f)
	l.more(t, 8)
	for name, bad := range badUpdates(good) {
		reply := s.Update("firm", bad.files).Want(t, bad.status, "success", "false", "error", bad.name)
		if !strings.Contains(reply.Text("message"), bad.says) {
			t.Errorf("%s: the message is %q, want %q in it", name, reply.Text("message"), bad.says)
		}
		f.Get().Want(t, http.StatusOK, "data.pid", strconv.Itoa(pid), "data.status", "running",
			"data.version.semantic", "1.0.0", "data.restart_count", "0")
	}
	l.more(t, 8)
	l.check(t)
	if all := s.Runtimes("firm"); len(all) != 1 || all[0] != pid {
		t.Errorf("the processes are %v, want %d", all, pid)
	}
	if kept := s.Files("formations/firm/versions"); len(kept) == 0 || strings.Contains(strings.Join(kept, " "), "versions/2") {
		t.Errorf("the versions on disk are %v", kept)
	}
}

// brokenRuntime exchanges the program of the next child by a script.
func brokenRuntime(t *testing.T, bin, script string) {
	t.Helper()
	replace(t, bin, func(path string) error { return writeScript(path, script) })
}

func TestUpdate_AProcessThatDiesOrNeverComesLeavesTheOldOneServing(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	real := suite.Program("formation-runtime")
	s := suite.Start(t, harness.Options{
		Bin: bin, Formations: "  landlock: false\n  deployment:\n    probation: 10s\n    health_check:\n      timeout: 10s\n",
	})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(steadyRule())
	files := suite.Pair(t, "firm", model.URL())
	f := s.Deploy("firm", files.Version("1.0.0"))
	pid := f.PID()
	for _, bad := range []struct{ name, script, says string }{
		{"crash at start", "echo the disk is on fire >&2\nexit 3", "the disk is on fire"},
		{"never ready", "exec sleep 600", "did not become ready within 10s"},
		{"crash on probation", "exec " + real + ` "$@"`, "after the switch"}, // killed below
	} {
		brokenRuntime(t, bin, bad.script)
		updated := s.BeginUpdate("firm", files.Version("2.0.0"))
		if bad.name == "crash on probation" {
			now := 0
			harness.Until(t, "the new process serves", func() bool { now = f.PID(); return now != 0 && now != pid })
			harness.KillProcess(t, now)
		}
		reply := (<-updated).Want(t, http.StatusBadRequest, "error", "HealthCheckFailed")
		if !strings.Contains(reply.Text("message"), bad.says) {
			t.Errorf("%s: the message is %q, want %q in it", bad.name, reply.Text("message"), bad.says)
		}
		f.Get().Want(t, http.StatusOK, "data.pid", strconv.Itoa(pid), "data.status", "running", "data.version.semantic", "1.0.0")
		f.Say(harness.Chat{"message": "steady", "agent_id": "poet"}).Want(t, http.StatusOK, "data.response", steadyText)
	}
	replace(t, bin, func(path string) error { return linkProgram(real, path) })
	s.Update("firm", files.Version("2.0.0")).Want(t, http.StatusOK, "data.version", "2.0.0", "data.previous_version", "1.0.0")
	f.Say(harness.Chat{"message": "steady", "agent_id": "poet"}).Want(t, http.StatusOK)
}

func TestUpdate_SessionsGoOnAndRollbackReturns(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Formations: quickUpdates})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "^held", Reply: fakellm.Reply{Text: "one two three four", Gate: "later", GateAfter: 3}},
		fakellm.Rule{Reply: fakellm.Reply{Text: "calm"}},
	)
	files := suite.Pair(t, "goes", model.URL())
	f := s.Deploy("goes", files.Version("1.0.0"))
	f.Say(harness.Chat{"message": "my name is Ada", "agent_id": "poet", "session_id": "s"})
	stream := s.HTTP.MustStream(f.Streamed(harness.Chat{"message": "held", "agent_id": "poet", "session_id": "slow"}))
	text := harness.Deltas(stream.UntilType(t, "content"))
	old := f.PID()
	updated := s.BeginUpdate("goes", files.Version("1.1.0"))
	// New turns reach the new process while the stream is still open on the old one.
	harness.Until(t, "a new process serves", func() bool { return f.PID() != old })
	f.Say(harness.Chat{"message": "who am I?", "agent_id": "poet", "session_id": "s"})
	model.Release("later")
	if text += harness.Deltas(stream.MustRest(t)); text != "one two three four" {
		t.Errorf("the stream that was open during the update says %q", text)
	}
	(<-updated).Want(t, http.StatusOK, "data.version", "1.1.0", "data.previous_version", "1.0.0", "data.deployment_type", "blue-green")
	s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.count", "4")

	s.Call(http.MethodPost, "/rpc/formations/goes/rollback", map[string]string{"version": "9.9.9"}).Want(t, http.StatusNotFound, "error", "VersionNotFound")
	s.Call(http.MethodPost, "/rpc/formations/goes/rollback", map[string]string{}).
		Want(t, http.StatusOK, "data.current_version", "1.0.0", "data.version", "1.0.0", "data.previous_version", "1.1.0", "data.status", "running")
	s.RPC(http.MethodPost, "/rpc/formations/goes/rollback").
		Want(t, http.StatusOK, "data.current_version", "1.1.0", "data.previous_version", "1.0.0")
	s.RPC(http.MethodPost, "/rpc/formations/goes/cancel-update").Want(t, http.StatusBadRequest, "error", "NoUpdateInProgress")
	s.HTTP.Must(f.Read("/v1/sessions/s/messages")).Want(t, http.StatusOK, "data.count", "4")
}

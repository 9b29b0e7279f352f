package formation_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/test/fakellm"
)

// The test program is also a child in a process of its own, with the socket as
// descriptor 3 and its steps on standard input. The variables are its launch
// and the two directories.
const (
	childEnv = "FORMATION_TEST_CHILD"
	dirEnv   = "FORMATION_TEST_DIR"
	stateEnv = "FORMATION_TEST_STATE"
)

func TestMain(m *testing.M) {
	if launch := os.Getenv(childEnv); launch != "" {
		runAsChild(launch)
	}
	if dir := os.Getenv(counterEnv); dir != "" {
		runAsCounter(dir, os.Stdin, os.Stdout)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runAsChild ends the process: with 0 after the step "stop", with 3 when the
// formation ended by itself.
func runAsChild(launch string) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGXFSZ)
	ctx := context.Background()
	f := formation.New(formation.Config{
		LaunchID: launch, Log: zerolog.New(os.Stderr).Level(zerolog.ErrorLevel),
		Listen: func() (net.Listener, error) { return listenOn(3) },
		Fatal: func(err error) {
			fmt.Fprintln(os.Stderr, launch, "ends:", err)
			os.Exit(3)
		},
	})
	steps := map[string]func(arg string) error{
		"load": func(string) error {
			_, err := f.Load(ctx, control.LoadRequest{Dir: os.Getenv(dirEnv), StateDir: os.Getenv(stateEnv)}, func(string) {})
			return err
		},
		"serve": func(string) error { return f.Serve(ctx) },
		"pause": func(string) error { return f.Pause(ctx) },
		"fence": func(id string) error { _, err := f.Fence(ctx, []string{id}); return err },
		"room":  limitFiles,
		"stop":  func(string) error { return f.Stop(ctx) },
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		name, arg, _ := strings.Cut(in.Text(), " ")
		fmt.Println("ended:", steps[name](arg))
		if name == "stop" {
			os.Exit(0)
		}
	}
	os.Exit(2)
}

// limitFiles lets this process write files of at most so many bytes.
func limitFiles(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(n, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// child is such a process.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// launch starts a child that has loaded.
func (w *world) launch(id string) *child {
	w.t.Helper()
	c := w.start(id)
	c.step("load")
	return c
}

// launchBeside is launch while another child hangs. That may have been stopped
// in the middle of a commit, with the store locked; a supervisor would have
// killed it. Here it goes on for a moment and is stopped again.
func (w *world) launchBeside(id string, hung *child) *child {
	w.t.Helper()
	for {
		c := w.start(id)
		said := c.say("load")
		if said == "ended: <nil>" {
			return c
		}
		if !strings.Contains(said, "database is locked") {
			w.t.Fatalf("load: %s", said)
		}
		hung.signal(syscall.SIGCONT)
		w.must(w.client(false), ask{method: http.MethodGet, path: "/v1/health"})
		hung.signal(syscall.SIGSTOP)
	}
}

// start starts a child.
func (w *world) start(id string) *child {
	w.t.Helper()
	exe, err := os.Executable()
	w.check(err)
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), exe)
	cmd.Env = append(os.Environ(), childEnv+"="+id, dirEnv+"="+w.dir, stateEnv+"="+w.state)
	cmd.Stderr = os.Stderr
	own, err := syscall.Dup(w.socket)
	w.check(err)
	socket := os.NewFile(uintptr(own), "socket")
	defer socket.Close()
	cmd.ExtraFiles = []*os.File{socket}
	in, err := cmd.StdinPipe()
	w.check(err)
	out, err := cmd.StdoutPipe()
	w.check(err)
	w.check(cmd.Start())
	c := &child{t: w.t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

// step makes the child do one thing.
func (c *child) step(line string) {
	c.t.Helper()
	if said := c.say(line); said != "ended: <nil>" {
		c.t.Fatalf("%s: %s", line, said)
	}
}

// say has the child do one thing, and returns how it ended.
func (c *child) say(line string) string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		c.t.Fatal(err)
	}
	if !c.out.Scan() {
		c.t.Fatalf("the child died in %q", line)
	}
	return c.out.Text()
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// exit waits for the end of the process and returns its code.
func (c *child) exit() int {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case err := <-done:
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			c.t.Fatal(err)
		}
	case <-time.After(patience):
		c.t.Fatal("the child did not end")
	}
	return c.cmd.ProcessState.ExitCode()
}

func TestFence_AProcessThatHungEndsByItselfWhenItWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(fakellm.Rule{User: "held", Times: 1, Reply: fakellm.Reply{Text: "from the first", Gate: "held"}})
	hung := w.launch("hung")
	hung.step("serve")
	// The caller of the hung process learns nothing, or that it goes on.
	answered := make(chan reply, 1)
	go func() {
		r, _ := w.do(w.client(false), ask{body: `{"message":"held","request_id":"req_held"}`})
		answered <- r
	}()
	w.check(w.fake.WaitActive(t.Context(), 1))
	hung.signal(syscall.SIGSTOP)

	next := w.launchBeside("next", hung)
	next.step("fence hung")
	next.step("serve")
	get := ask{method: http.MethodGet, path: "/v1/requests/req_held"}
	var e envelope
	until(t, "the turn of the hung process", func() bool {
		e = w.must(w.client(false), get).envelope(t)
		return e.Data.Status == "completed"
	})
	w.fake.Release("held") // now the hung one gets its answer, too late
	hung.signal(syscall.SIGCONT)
	if code := hung.exit(); code != 3 {
		t.Errorf("the fenced process ended with %d", code)
	}
	if r := <-answered; r.status == http.StatusOK {
		t.Errorf("the fenced process acknowledged: %s", r.body)
	}
	if again := w.must(w.client(false), get).envelope(t); again.Data.Response != e.Data.Response || strings.Contains(e.Data.Response, "from the first") {
		t.Errorf("the answer changed from %+v to %+v", e, again)
	}
	next.step("stop")
}

func TestUpdate_AKilledNewChildIsReplacedByThePausedOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(
		fakellm.Rule{User: "told", Times: 1, Reply: fakellm.Reply{Text: "a b c d", Chunks: 4, GateAfter: 2, Gate: "never"}},
		fakellm.Rule{User: "held", Times: 2, Reply: fakellm.Reply{Gate: "never"}},
	)
	old := w.launch("old")
	old.step("serve")
	fresh := w.launch("new")
	fresh.step("serve")
	old.step("pause")
	stream := w.open(w.client(false), ask{body: `{"message":"told","stream":true,"session_id":"sess_1","request_id":"req_stream"}`, stream: true})
	stream.skipTo(t, "response_generation")
	for _, mode := range []string{"async", "auto"} {
		go func() {
			_, _ = w.do(w.client(false), ask{body: fmt.Sprintf(`{"message":"held %[1]s","mode":%[1]q,"request_id":"req_%[1]s"}`, mode)})
		}()
	}
	w.check(w.fake.WaitActive(t.Context(), 3))
	fresh.signal(syscall.SIGKILL)
	fresh.exit()
	// Nobody has told the old child anything yet, and it goes on with the turns.
	w.check(w.fake.WaitCount(t.Context(), 6))
	old.step("serve")
	old.step("fence new")
	c := w.client(false)
	resumed := w.open(c, ask{body: `{"message":"told","request_id":"req_stream"}`, stream: true, header: map[string]string{"Last-Event-ID": "1"}})
	resumed.skipTo(t, `"type":"completed"`)
	resumed.skipTo(t, "event: done")
	for _, id := range []string{"req_async", "req_auto"} {
		until(t, id, func() bool {
			return w.must(c, ask{method: http.MethodGet, path: "/v1/requests/" + id}).envelope(t).Data.Status == "completed"
		})
	}
	old.step("stop")
}

func TestFullDisk_IsToldToCallersAndWhatWasAcceptedEndsOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(
		fakellm.Rule{User: "held", Reply: fakellm.Reply{Text: "the answer", Gate: "held"}},
		fakellm.Rule{User: "told", Reply: fakellm.Reply{Text: "the answer", GateAfter: 1, Gate: "held"}},
	)
	f := w.launch("launch-1")
	f.step("serve")
	c := w.client(true)
	held := w.later(w.client(false), ask{body: `{"message":"held","request_id":"req_held"}`})
	told := w.open(w.client(false), ask{body: `{"message":"told","stream":true,"request_id":"req_told"}`, stream: true})
	w.check(w.fake.WaitActive(t.Context(), 2))
	f.step("room 1000") // less than any of the store's files
	w.fake.Release("held")

	for name, r := range map[string]reply{"accepted before": w.answer(held), "accepted now": w.must(c, ask{body: `{"message":"x"}`})} {
		if e := r.envelope(t); r.status != fault.Unavailable.HTTPStatus() || e.Code != "SERVICE_UNAVAILABLE" || !strings.Contains(string(r.body), "disk is full") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	told.skipTo(t, "event: error")
	told.skipTo(t, "disk is full")
	told.skipTo(t, "event: done")

	f.step("room 1000000000")
	if r := w.must(c, ask{body: `{"message":"y"}`}); r.status != http.StatusOK {
		t.Errorf("with room again: %d %s", r.status, r.body)
	}
	status := func(id string) envelope {
		return w.must(c, ask{method: http.MethodGet, path: "/v1/requests/" + id}).envelope(t)
	}
	until(t, "the end of what was accepted", func() bool {
		return status("req_held").Data.Status != "processing" && status("req_told").Data.Status != "processing"
	})
	if e := status("req_held"); e.Data.Status != "completed" || e.Data.Response != "the answer" {
		t.Errorf("the answered request: %+v", e)
	}
	// The stream's end was stored, whichever it is.
	again := w.must(c, ask{body: `{"message":"told","request_id":"req_told"}`, stream: true, header: map[string]string{"Last-Event-ID": "0"}})
	if n := strings.Count(string(again.body), "event: done"); n != 1 {
		t.Errorf("the stream that was lost is told as\n%s", again.body)
	}
	f.step("stop")
}

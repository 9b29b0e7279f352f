package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// modeEnv makes this test binary a child.
const modeEnv = "CONTROL_TEST_MODE"

const patience = 60 * time.Second

// TestMain runs the tests, or a child.
func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		os.Exit(childMain(mode))
	}
	goleak.VerifyTestMain(m)
}

func childMain(mode string) int {
	in, err := control.Inherit()
	if err != nil || in == nil {
		fmt.Fprintln(os.Stderr, "inherit:", in, err)
		return 9
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := zerolog.New(in.Log)
	if mode == "undumpable" {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, "prctl:", err)
			return 8
		}
	}
	if err := control.Serve(ctx, &childFormation{in: in, mode: mode, log: log}, in.ServeOptions(log)); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		return 1
	}
	return 0
}

// childFormation serves its pid and writes what it is told to its log.
type childFormation struct {
	in   *control.Inherited
	mode string
	log  zerolog.Logger
	l    net.Listener
	http http.Server
	done sync.WaitGroup
}

func (f *childFormation) Hello(_ context.Context, req control.HelloRequest) (control.Hello, error) {
	if err := f.in.CheckHello(req); err != nil {
		return control.Hello{}, err
	}
	return control.Hello{FormationID: f.in.FormationID, LaunchID: f.in.LaunchID, PID: os.Getpid()}, nil
}

func (f *childFormation) Load(context.Context, control.LoadRequest, func(string)) (control.Loaded, error) {
	if f.mode == "chatty" {
		for range 100_000 { // far more than a pipe holds
			fmt.Fprintln(os.Stdout, "a stray print, which must block nobody")
		}
	}
	return control.Loaded{}, nil
}

func (f *childFormation) Serve(context.Context) (err error) {
	if f.l, err = control.Listener(); err != nil {
		return err
	}
	f.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Getpid()) })
	f.done.Go(func() { _ = f.http.Serve(f.l) })
	return nil
}

func (f *childFormation) Pause(context.Context) error { return f.l.Close() }

func (f *childFormation) Fence(context.Context, []string) (int, error) { return 0, nil }

func (f *childFormation) Health(context.Context) (control.Health, error) {
	return control.Health{Ready: true}, nil
}

func (f *childFormation) Status(context.Context) (control.Status, error) {
	return control.Status{}, nil
}

func (f *childFormation) Drain(ctx context.Context, req control.DrainRequest) (control.Drained, error) {
	f.log.Info().Bool("close_socket", req.CloseSocket).Msg("drain")
	if req.CloseSocket {
		if err := control.ShutdownListener(); err != nil {
			return control.Drained{}, err
		}
	}
	return control.Drained{}, f.http.Shutdown(ctx)
}

func (f *childFormation) Stop(context.Context) error {
	f.log.Info().Msg("stop")
	return nil
}

func (f *childFormation) Records(ctx context.Context, _ uint64, _ func(control.Record) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// fixture is a launched child and what it was given.
type fixture struct {
	t      *testing.T
	dir    string
	l      *net.TCPListener
	conn   *control.Conn
	runner *cmdRunner
}

// launch starts a child in mode and says Hello.
func launch(t *testing.T, mode string, env ...string) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := control.EnsureTLS(dir); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, dir: dir, l: l.(*net.TCPListener)}
	t.Cleanup(func() { l.Close() })
	f.runner = f.newRunner(append(env, modeEnv+"="+mode))
	f.conn, err = control.Launch(t.Context(), dir, func(handshake []string) (runner.Runner, error) {
		f.runner.cmd.Env = append(f.runner.cmd.Env, handshake...)
		return f.runner, nil
	})
	if err != nil {
		t.Fatalf("launch: %v\n%s", err, f.read("err.log"))
	}
	t.Cleanup(f.conn.Close)
	if _, err := f.conn.Hello(t.Context(), control.HelloRequest{FormationID: "sample", LaunchToken: "token"}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) newRunner(env []string) *cmdRunner {
	f.t.Helper()
	socket, err := f.l.File()
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.ExtraFiles = []*os.File{socket, f.create("out.log"), f.create("err.log")}
	for _, file := range cmd.ExtraFiles {
		f.t.Cleanup(func() { file.Close() })
	}
	cmd.Env = append([]string(nil), env...)
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0", control.EnvFormationID+"=sample",
		control.EnvLaunchID+"=launch", control.EnvLaunchToken+"=token", control.EnvRunDir+"="+f.dir)
	return &cmdRunner{cmd: cmd, exited: make(chan struct{})}
}

func (f *fixture) create(name string) *os.File {
	f.t.Helper()
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	return file
}

func (f *fixture) read(name string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

// answers tells which process answers on the port.
func (f *fixture) answers() int {
	f.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + f.l.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(body))
	if err != nil {
		f.t.Fatal(err)
	}
	return pid
}

// exited waits for the child's end and returns its exit code.
func (f *fixture) exited() int {
	f.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-f.runner.exited:
		return f.runner.cmd.ProcessState.ExitCode()
	case <-timer.C:
		f.t.Fatal("the child does not end")
		return 0
	}
}

// cmdRunner is the plainest runner: a command with a pipe for the handshake.
type cmdRunner struct {
	cmd    *exec.Cmd
	stdout io.ReadCloser
	exited chan struct{}
	once   sync.Once

	mu     sync.Mutex // guards the start against a kill
	killed bool
}

func (r *cmdRunner) Start(context.Context) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		return errors.New("killed before the start")
	}
	if r.stdout, err = r.cmd.StdoutPipe(); err != nil {
		return err
	}
	return r.cmd.Start()
}

func (r *cmdRunner) Wait(context.Context) error {
	r.once.Do(func() {
		_ = r.cmd.Wait()
		close(r.exited)
	})
	<-r.exited
	return nil
}

func (r *cmdRunner) Kill(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	if r.cmd.Process == nil {
		return nil
	}
	if err := r.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (r *cmdRunner) Stdout() io.ReadCloser           { return r.stdout }
func (r *cmdRunner) Stderr() io.ReadCloser           { return io.NopCloser(strings.NewReader("")) }
func (r *cmdRunner) Name() string                    { return r.cmd.Path }
func (r *cmdRunner) Diagnose(context.Context) string { return "" }

func (r *cmdRunner) ID() string {
	if r.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(r.cmd.Process.Pid)
}

func (r *cmdRunner) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

func (r *cmdRunner) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

func TestInherit_IsNothingWithoutASupervisor(t *testing.T) {
	t.Parallel()
	if in, err := control.Inherit(); in != nil || err != nil {
		t.Errorf("%+v, %v; want nothing", in, err)
	}
}

func TestServe_StopRepliesAndEndsWithZero(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	if err := f.conn.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.answers(); got != f.runner.cmd.Process.Pid {
		t.Errorf("answered by %d, want %d", got, f.runner.cmd.Process.Pid)
	}
	if err := f.conn.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.conn.Detach()
	if code := f.exited(); code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, f.read("err.log"))
	}
	if got := f.read("out.log"); strings.Count(got, "stop") != 1 || strings.Contains(got, "drain") {
		t.Errorf("log %q, want one stop and no drain: draining is the supervisor's to ask for", got)
	}
	if left, err := filepath.Glob(filepath.Join(f.dir, "plugin*")); err != nil || len(left) != 0 {
		t.Errorf("control socket left: %v, %v", left, err)
	}
}

func TestServe_WrongTokenOrFormationIsRefused(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	for _, c := range []struct {
		req  control.HelloRequest
		kind fault.Kind
	}{
		{control.HelloRequest{FormationID: "sample", LaunchToken: "guess"}, fault.Unauthenticated},
		{control.HelloRequest{FormationID: "sample"}, fault.Unauthenticated},
		{control.HelloRequest{FormationID: "other", LaunchToken: "token"}, fault.Conflict},
	} {
		if _, err := f.conn.Hello(t.Context(), c.req); fault.KindOf(err) != c.kind {
			t.Errorf("%+v: %v, want %s", c.req, err, c.kind)
		}
	}
}

func TestServe_SignalDrainsAndLeavesThePort(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	if err := f.conn.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGPIPE} {
		if err := f.runner.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	f.answers() // neither ends it
	if err := f.runner.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := f.exited(); code != 0 {
		t.Errorf("exit code %d\n%s", code, f.read("err.log"))
	}
	log := f.read("out.log")
	if !strings.Contains(log, `"close_socket":false`) || strings.Index(log, "drain") > strings.Index(log, "stop") {
		t.Errorf("log %q, want a drain that keeps the socket, then a stop", log)
	}
	if conn, err := net.Dial("tcp", f.l.Addr().String()); err != nil {
		t.Errorf("the port is closed: %v", err)
	} else {
		conn.Close()
	}
}

func TestServe_OrphanDrainsClosesThePortAndEnds(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok", control.EnvOrphanTimeout+"=50ms")
	if err := f.conn.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.answers()
	f.conn.Detach()
	if code := f.exited(); code != 0 {
		t.Errorf("exit code %d\n%s", code, f.read("err.log"))
	}
	if log := f.read("out.log"); !strings.Contains(log, `"close_socket":true`) {
		t.Errorf("log %q, want a drain that closes the socket", log)
	}
	if _, err := net.Dial("tcp", f.l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after the orphan's end: %v, want refused for every holder", err)
	}
}

func TestServe_StrayPrintsBlockNobody(t *testing.T) {
	t.Parallel()
	f := launch(t, "chatty")
	if _, err := f.conn.Load(t.Context(), control.LoadRequest{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if got := f.read("err.log"); strings.Count(got, "stray print") != 100_000 {
		t.Errorf("%d bytes of prints in the error log, want all of them", len(got))
	}
}

func TestLaunch_EndOfContextKillsTheChild(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	mute := exec.Command("sleep", "600") // says no handshake
	r := &cmdRunner{cmd: mute, exited: make(chan struct{})}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := control.Launch(ctx, f.dir, func([]string) (runner.Runner, error) {
		time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
		return r, nil
	})
	if !errors.Is(err, why) {
		t.Errorf("launch: %v, want the cause", err)
	}
	if mute.Process != nil && mute.ProcessState == nil {
		t.Error("the process was not ended")
	}
}

func TestShutdownSocket_TwiceIsNoError(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := control.ShutdownSocket(fd); err != nil {
			t.Error(err)
		}
	}
	if err := control.ShutdownSocket(-1); err == nil {
		t.Error("no error for a descriptor that is not there")
	}
}

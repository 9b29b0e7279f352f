package process_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// modeEnv makes this test binary a child (or an earlier supervisor) instead.
const modeEnv = "PROCESS_TEST_MODE"

// TestMain runs the tests, or plays the part that modeEnv names.
func TestMain(m *testing.M) {
	switch mode := os.Getenv(modeEnv); mode {
	case "":
		os.Setenv("SECRET_OF_THE_SUPERVISOR", "must not reach a child")
		goleak.VerifyTestMain(m)
	case "decoy":
		os.Exit(decoyMain())
	case "supervisor":
		os.Exit(earlierSupervisor())
	default:
		os.Exit(childMain(mode))
	}
}

// decoyMain is a process that listens on the path of its first argument, starts
// another one in its process group, says both numbers, and ends when it is
// connected to. It has no launch token.
func decoyMain() int {
	l, err := net.Listen("unix", os.Args[1])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(os.Getpid(), other.Process.Pid)
	conn, err := l.Accept()
	if err != nil {
		return 1
	}
	_, _ = conn.Read(make([]byte, 1)) // it is talked to: its end comes while somebody waits for an answer
	return 0
}

// childMain is the main of a child whose behaviour depends on mode and on marker
// files in its state directory (see marked).
func childMain(mode string) int {
	in, err := control.Inherit()
	if err != nil || in == nil {
		fmt.Fprintln(os.Stderr, "inherit:", in, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &formation{mode: mode, in: in, started: time.Now()}
	if mode == "deaf" {
		signal.Ignore(syscall.SIGTERM)
	}
	if mode == "undumpable" {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, "prctl:", err)
			return 3
		}
	}
	if mode == "panic-at-start" {
		for i := range 30 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		var nothing *formation
		_ = nothing.mode
	}
	if err := control.Serve(ctx, f, in.ServeOptions(zerolog.New(in.Log))); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		return 1
	}
	return 0
}

// formation is the scripted child.
type formation struct {
	mode    string
	in      *control.Inherited
	started time.Time
	state   string
	dir     string
	fence   []string
	serving atomic.Bool
	frozen  atomic.Bool // health is answered, but the heartbeat stands still
	mute    atomic.Bool // health is not answered
	unwell  atomic.Bool // health says that it is not ready
	beats   atomic.Uint64

	mu       sync.Mutex   // guards http: a signal drains on another goroutine than Serve's
	http     *http.Server // nil before Serve
	listener net.Listener
	paused   bool
	drained  bool     // it can't serve any more
	dead     []string // launches that Fence named
}

// marked tells whether the test has put a marker file into the state directory,
// or into the version's.
func (f *formation) marked(name string) bool {
	_, err := os.Stat(filepath.Join(f.state, name))
	_, err2 := os.Stat(filepath.Join(f.dir, name))
	return err == nil || err2 == nil
}

func (f *formation) Hello(_ context.Context, req control.HelloRequest) (control.Hello, error) {
	if err := f.in.CheckHello(req); err != nil {
		return control.Hello{}, err
	}
	return control.Hello{
		FormationID: f.in.FormationID, LaunchID: f.in.LaunchID, Build: "test", PID: os.Getpid(),
		StartedAt: f.started, Serving: f.serving.Load(), ControlVersion: control.Version,
	}, nil
}

func (f *formation) Load(ctx context.Context, req control.LoadRequest, progress func(string)) (control.Loaded, error) {
	f.state, f.dir, f.fence = req.StateDir, req.Dir, req.Fence
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	switch {
	case f.mode == "secrets":
		return control.Loaded{}, fault.New(fault.Invalid, "SecretsError", "secret API_KEY is missing").With("missing", []any{"API_KEY"})
	case f.mode == "exit-in-load" || f.marked("crash"):
		fmt.Fprintln(os.Stderr, "the disk is on fire")
		os.Exit(7)
	case f.mode == "stuck" || f.mode == "deaf-stuck":
		<-ctx.Done()
		return control.Loaded{}, ctx.Err()
	case f.mode == "slow":
		for i := range 50 {
			progress("step " + strconv.Itoa(i))
			for range 4 {
				<-tick.C
			}
		}
	}
	for f.marked("wait") {
		progress("waiting")
		<-tick.C
	}
	return control.Loaded{Warnings: []string{"formation.afs:1:1: a warning"}, Agents: 2}, nil
}

func (f *formation) Serve(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mode == "will-not-serve" || f.drained {
		return fault.New(fault.Conflict, "", "it can't serve")
	}
	if f.http != nil && !f.paused {
		return nil
	}
	l, err := control.Listener()
	if err != nil {
		return err
	}
	if f.http == nil {
		f.http = &http.Server{Handler: f.routes()}
		if f.mode == "dies-soon" || f.mode == "dies-late" {
			time.AfterFunc(map[string]time.Duration{"dies-soon": 0, "dies-late": 700 * time.Millisecond}[f.mode], func() {
				fmt.Fprintln(os.Stderr, "the roof falls in")
				os.Exit(9)
			})
		}
	}
	f.listener, f.paused = l, false
	server := f.http
	go func() { _ = server.Serve(l) }()
	f.serving.Store(true)
	return nil
}

func (f *formation) Pause(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused {
		return nil
	}
	f.paused = true
	return f.listener.Close()
}

func (f *formation) Fence(_ context.Context, ids []string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = append(f.dead, ids...)
	return 0, nil
}

func (f *formation) Health(ctx context.Context) (control.Health, error) {
	if f.mute.Load() {
		<-ctx.Done()
		return control.Health{}, ctx.Err()
	}
	if !f.frozen.Load() {
		f.beats.Add(1)
	}
	f.mu.Lock()
	drained := f.drained
	f.mu.Unlock()
	if drained {
		return control.Health{Ready: true, Message: "draining", Heartbeat: f.beats.Load()}, nil
	}
	if f.unwell.Load() {
		return control.Health{Message: "the disk is full", Heartbeat: f.beats.Load()}, nil
	}
	return control.Health{Ready: true, Serving: f.serving.Load(), Heartbeat: f.beats.Load()}, nil
}

func (f *formation) Status(context.Context) (control.Status, error) {
	return control.Status{FormationID: f.in.FormationID, Agents: 2, Uptime: time.Since(f.started)}, nil
}

func (f *formation) Drain(ctx context.Context, req control.DrainRequest) (control.Drained, error) {
	if f.mode == "deaf" {
		<-make(chan struct{})
	}
	if req.CloseSocket {
		if err := control.ShutdownListener(); err != nil {
			return control.Drained{}, err
		}
	}
	f.mu.Lock()
	server, listener := f.http, f.listener
	f.drained = true
	f.mu.Unlock()
	if server == nil {
		return control.Drained{}, nil
	}
	_ = listener.Close()
	duck := time.NewTimer(req.LameDuck)
	defer duck.Stop()
	select {
	case <-duck.C:
	case <-ctx.Done():
		return control.Drained{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	return control.Drained{}, server.Shutdown(ctx)
}

func (f *formation) Stop(context.Context) error { return nil }

func (f *formation) Records(ctx context.Context, _ uint64, _ func(control.Record) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *formation) routes() http.Handler {
	mux := http.NewServeMux()
	say := func(w io.Writer, format string, args ...any) { fmt.Fprintf(w, format, args...) }
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { say(w, "%d", os.Getpid()) })
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		env := os.Environ()
		slices.Sort(env)
		say(w, "%s", strings.Join(env, "\n"))
	})
	mux.HandleFunc("/fence", func(w http.ResponseWriter, _ *http.Request) { say(w, "%s", strings.Join(f.fence, " ")) })
	mux.HandleFunc("/freeze", func(http.ResponseWriter, *http.Request) { f.frozen.Store(true) })
	mux.HandleFunc("/mute", func(http.ResponseWriter, *http.Request) { f.mute.Store(true) })
	mux.HandleFunc("/unwell", func(http.ResponseWriter, *http.Request) { f.unwell.Store(true) })
	mux.HandleFunc("/dir", func(w http.ResponseWriter, _ *http.Request) { say(w, "%s", f.dir) })
	mux.HandleFunc("/dead", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		say(w, "%s", strings.Join(f.dead, " "))
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for f.marked("hold") && r.Context().Err() == nil {
			say(w, ".")
			_ = http.NewResponseController(w).Flush()
			<-time.After(10 * time.Millisecond)
		}
		say(w, "end")
	})
	mux.HandleFunc("/flags", func(w http.ResponseWriter, _ *http.Request) {
		flags, err := unix.FcntlInt(control.FDListener, unix.F_GETFL, 0)
		cloexec, err2 := unix.FcntlInt(control.FDListener, unix.F_GETFD, 0)
		say(w, "nonblock=%v cloexec=%v %v %v", flags&unix.O_NONBLOCK != 0, cloexec&unix.FD_CLOEXEC != 0, err, err2)
	})
	mux.HandleFunc("/stdin", func(w http.ResponseWriter, _ *http.Request) {
		target, err := os.Readlink("/proc/self/fd/0")
		say(w, "%s %v", target, err)
	})
	mux.HandleFunc("/log", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(f.in.Log, "a record")
		fmt.Fprintln(os.NewFile(2, "stderr"), "an error")
	})
	mux.HandleFunc("/tool", func(w http.ResponseWriter, _ *http.Request) {
		tool := exec.Command("sleep", "600")
		if err := tool.Start(); err != nil {
			say(w, "%v", err)
			return
		}
		say(w, "%d", tool.Process.Pid)
	})
	return mux
}

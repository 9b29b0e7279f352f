package process_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/test/testports"
)

// patience bounds every wait for a foreign process. Nothing takes this long
// unless it is broken.
const patience = 60 * time.Second

// fixture is a formation with its directories, port and manager.
type fixture struct {
	t      *testing.T
	home   string
	uid    uint32 // of earlier supervisors; 0 is that of the tests
	cfg    process.ManagerConfig
	spec   process.Spec
	m      *process.Manager
	events chan process.Event
}

// setup prepares a formation whose child plays mode. Nothing runs yet.
func setup(t *testing.T, mode string) *fixture {
	t.Helper()
	home, err := os.MkdirTemp("", "pt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	f := &fixture{t: t, home: home, events: make(chan process.Event, 1000)}
	f.spec = specIn(home, mode)
	f.spec.Socket = freeSocket(t)
	f.cfg = process.ManagerConfig{
		Log:            zerolog.New(zerolog.NewTestWriter(t)),
		HealthInterval: time.Second,
		HealthTimeout:  patience,
		Unavailable:    http.HandlerFunc(unavailable),
		Notify:         func(e process.Event) { f.events <- e },
		Policy:         process.Policy{Base: time.Millisecond, MaxDelay: 10 * time.Millisecond},
	}
	return f
}

func specIn(home, mode string) process.Spec {
	return process.Spec{
		ID: "sample", Binary: os.Args[0],
		Dir: home, StateDir: home, RunDir: filepath.Join(home, "run"),
		OutLog: filepath.Join(home, "logs", "sample-out.log"),
		ErrLog: filepath.Join(home, "logs", "sample-err.log"),
		// The race detector otherwise takes a second to end each child.
		Env: []string{modeEnv + "=" + mode, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"},
		// Generous: the machine may be busy building.
		ReadyTimeout: patience, DrainTimeout: patience, KillTimeout: patience,
	}
}

// freeSocket leases a port that is this test's also while nobody listens on it.
func freeSocket(t *testing.T) *ports.Socket {
	t.Helper()
	first := testports.Block(t)
	pool, err := ports.New(ports.Config{Host: "127.0.0.1", First: first, Last: first + testports.BlockSize - 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := pool.Lease("sample")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "5")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, `{"error":{"code":"SERVICE_UNAVAILABLE"}}`)
}

// manager makes the fixture's manager, which is stopped at the end of the test.
func (f *fixture) manager() *process.Manager {
	f.m = process.NewManager(f.cfg)
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.m.Stop(ctx); err != nil {
			f.t.Errorf("stop: %v", err)
		}
	})
	return f.m
}

// start starts the formation and fails the test when that fails.
func (f *fixture) start() *process.Manager {
	f.t.Helper()
	m := f.manager()
	if err := m.Start(f.t.Context(), f.spec, nil); err != nil {
		f.t.Fatalf("start: %v", err)
	}
	return m
}

// mark and unmark change the child's behaviour through a marker file.
func (f *fixture) mark(name string) {
	f.t.Helper()
	path := filepath.Join(f.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) unmark(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.home, name)); err != nil {
		f.t.Fatal(err)
	}
}

// event waits for the next event of a kind.
func (f *fixture) event(kind process.EventKind) process.Event {
	f.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case e := <-f.events:
			if e.Kind == kind {
				return e
			}
		case <-timer.C:
			f.t.Fatalf("no %s event", kind)
		}
	}
}

// get asks the formation's port over a connection of its own.
func (f *fixture) get(path string) (int, string, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + f.spec.Socket.Addr().String() + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// ask is get for what must succeed.
func (f *fixture) ask(path string) string {
	f.t.Helper()
	code, body, err := f.get(path)
	if err != nil || code != http.StatusOK {
		f.t.Fatalf("GET %s: %d %q %v", path, code, body, err)
	}
	return body
}

// pid is the process that answers on the port.
func (f *fixture) pid() int {
	f.t.Helper()
	pid, err := strconv.Atoi(f.ask("/"))
	if err != nil {
		f.t.Fatal(err)
	}
	return pid
}

// refused tells whether the port refuses connections.
func (f *fixture) refused() bool {
	conn, err := net.Dial("tcp", f.spec.Socket.Addr().String())
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// records lists the run directory's records.
func (f *fixture) records() []string {
	f.t.Helper()
	names, err := filepath.Glob(filepath.Join(f.spec.RunDir, "launch-*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return names
}

// kill ends a process the hard way.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// awaitGone waits until no living process has this number.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
}

// awaitReaped waits until the manager has seen its own child's end.
func awaitReaped(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d is reaped", pid), func() bool {
		_, err := os.Stat("/proc/" + strconv.Itoa(pid))
		return errors.Is(err, os.ErrNotExist)
	})
}

// plainKill is a text that tells of children which the test has killed. One that
// is killed while the kernel kills any process of the machine for want of memory
// is told to have met that, too.
func plainKill(text string) string {
	return strings.ReplaceAll(text, "killed, likely out of memory", "signal: killed")
}

// alive tells whether a process lives; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// eventually waits for a condition of another process.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

package supervisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// notices is systemd's end of sd_notify.
type notices struct {
	t    *testing.T
	conn *net.UnixConn
	seen []string
}

func listenNotices(t *testing.T, path string) *notices {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &notices{t: t, conn: conn}
}

// until reads notices up to one that begins with text.
func (n *notices) until(text string) string {
	n.t.Helper()
	_ = n.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 4096)
	for {
		size, err := n.conn.Read(buf)
		if err != nil {
			n.t.Fatalf("no notice %q after %q: %v", text, n.seen, err)
		}
		got := string(buf[:size])
		n.seen = append(n.seen, got)
		if strings.HasPrefix(got, text) {
			return got
		}
	}
}

// none fails when there is a notice that begins with text among those that have
// come. A deadline would not do: one that has passed hides what is there.
func (n *notices) none(text string) {
	n.t.Helper()
	rc, err := n.conn.SyscallConn()
	if err != nil {
		n.t.Fatal(err)
	}
	_ = n.conn.SetReadDeadline(time.Time{})
	buf := make([]byte, 4096)
	for {
		var size int
		var failed error
		if err := rc.Read(func(fd uintptr) bool {
			size, _, failed = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return true
		}); err != nil {
			n.t.Fatal(err)
		}
		if errors.Is(failed, unix.EAGAIN) {
			return
		}
		if failed != nil {
			n.t.Fatal(failed)
		}
		if got := string(buf[:size]); strings.HasPrefix(got, text) {
			n.t.Errorf("notice %q", got)
		}
	}
}

func TestRun_TellsSystemdWhatItDoes(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	path := filepath.Join(s.home, "notify")
	n := listenNotices(t, path)
	s.env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=600000"}
	s.start()
	n.until("READY=1")
	n.until("WATCHDOG=1")
	d := s.deploy("hello")
	n.until("STATUS=1 formations: 1 running")
	env, err := s.ask(t.Context(), s.http, "http://127.0.0.1:"+strconv.Itoa(d.Port)+"/env")
	if err != nil || strings.Contains(env, "NOTIFY_SOCKET") || strings.Contains(env, "WATCHDOG") {
		t.Errorf("a formation could speak to systemd: %v, %s", err, env)
	}
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := n.until("RELOADING=1"); !strings.Contains(got, "\nMONOTONIC_USEC=") {
		t.Errorf("reloading: %q", got)
	}
	n.until("READY=1")
	n.until("WATCHDOG=1")
	s.stop()
	n.until("STOPPING=1")
}

// reloadDuringAStart returns when a reload waits for nothing but a start, which
// goes on when the formation's state directory has a file "go".
func (s *served) reloadDuringAStart(n *notices) (state string) {
	s.t.Helper()
	s.deploy("hello")
	if err := s.api().Stop(s.t.Context(), "hello"); err != nil {
		s.t.Fatal(err)
	}
	state = filepath.Join(s.home, "formations", "hello", "state")
	writeFile(s.t, filepath.Join(state, "behave"), "wait")
	started, api := make(chan struct{}), s.api()
	go func() {
		defer close(started)
		_, _ = api.Start(s.t.Context(), "hello", nil) // the call is cut, what it began is not
	}()
	s.t.Cleanup(func() { <-started })
	deploytest.Eventually(s.t, "the start is in progress", func() bool {
		n.none("STOPPING") // reads what has come: its queue is short
		f, err := s.api().Get(s.t.Context(), "hello")
		return err == nil && f.Status == "starting"
	})
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	deploytest.Eventually(s.t, "nothing but the operation is waited for", func() bool {
		n.none("STOPPING")
		return strings.Contains(s.said(), "requests that were open before the reload are cut")
	})
	return state
}

// A reload waits for operations in progress, which may take longer than the
// watchdog is patient.
func TestReload_FeedsTheWatchdogWhileItWaitsForAnOperation(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	path := filepath.Join(s.home, "notify")
	n := listenNotices(t, path)
	s.env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=1500000"}
	s.start()
	state := s.reloadDuringAStart(n)
	n.none("STOPPING")
	for range 3 {
		n.until("WATCHDOG=1")
	}
	n.none("READY")
	writeFile(t, filepath.Join(state, "go"), "")
	n.until("READY=1")
	deploytest.Eventually(t, "the formation serves", func() bool {
		n.none("STOPPING")
		f, err := s.api().Get(t.Context(), "hello")
		return err == nil && f.Status == "running" && f.RestartCount == 0
	})
	s.stop()
}

func TestReload_AStopWhileItWaitsForAnOperationStops(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	path := filepath.Join(s.home, "notify")
	n := listenNotices(t, path)
	s.env = []string{"NOTIFY_SOCKET=" + path}
	s.start()
	s.reloadDuringAStart(n)
	children := s.children()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.until("STOPPING=1")
	deploytest.Eventually(t, "the supervisor has ended", s.ended)
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is left behind", pid)
		}
	}
}

// Systemd holds a service that has said RELOADING for busy until it says READY.
func TestReload_ARefusedOneIsOverForSystemdToo(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	path := filepath.Join(s.home, "notify")
	n := listenNotices(t, path)
	s.env = []string{"NOTIFY_SOCKET=" + path}
	s.start()
	n.until("READY=1")
	good := readFile(t, s.made.ConfigPath)
	writeFile(t, s.made.ConfigPath, "servr: {}\n")
	if o := s.hangUp(); o.Done {
		t.Error("the reload was not refused")
	}
	n.until("RELOADING=1")
	n.until("READY=1")
	n.none("WATCHDOG") // nobody asked for it
	writeFile(t, s.made.ConfigPath, good)
}

// The parts of the environment that the library reads itself make this test one
// that runs alone.
func TestPulse_FeedsTheWatchdogOnlyWhileTheFleetAnswers(t *testing.T) {
	path := filepath.Join(newHome(t), "notify")
	n := listenNotices(t, path)
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	log := &syncBuffer{}
	s := &Supervisor{cfg: defaults("/nowhere"), log: zerolog.New(log)}
	s.cfg.LookupEnv = os.LookupEnv
	silent := func() int { return strings.Count(log.String(), "does not answer itself") }
	var mood atomic.Value
	answer := func(ctx context.Context) (string, error) {
		switch mood.Load() {
		case "hung":
			<-ctx.Done()
			return "", ctx.Err()
		case "broken":
			return "", errors.New("the disk is gone")
		}
		return "2 formations", nil
	}
	mood.Store("well")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.pulse(ctx, answer) })
	defer wg.Wait()
	defer cancel()
	n.until("STATUS=2 formations")
	for _, bad := range []string{"hung", "broken"} {
		n.until("WATCHDOG=1")
		mood.Store(bad)
		before := silent()
		deploytest.Eventually(t, "it is "+bad, func() bool { return silent() > before })
		n.none("STOPPING") // reads what came while it was well
		before = silent()
		deploytest.Eventually(t, "some more periods", func() bool { return silent() > before+3 })
		n.none("WATCHDOG")
		mood.Store("well")
		n.until("WATCHDOG=1")
	}
	if !strings.Contains(log.String(), "the disk is gone") || !strings.Contains(log.String(), "no answer within 20ms") {
		t.Errorf("the log does not tell why: %s", log)
	}
}

func TestPulse_IsSilentWithoutSystemd(t *testing.T) {
	t.Parallel()
	s := &Supervisor{cfg: defaults("/nowhere"), log: zerolog.Nop()}
	s.cfg.LookupEnv = func(string) (string, bool) { return "", false }
	s.pulse(t.Context(), func(context.Context) (string, error) {
		t.Error("nobody is to be told")
		return "", nil
	})
}

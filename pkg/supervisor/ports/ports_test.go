package ports_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/test/testports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// block is a range of n free ports, BlockSize at the most; each test gets its own.
func block(t *testing.T, n int) ports.Config {
	t.Helper()
	first := testports.Block(t)
	return ports.Config{Host: "127.0.0.1", First: first, Last: first + n - 1}
}

func newPool(t *testing.T, cfg ports.Config) *ports.Pool {
	t.Helper()
	p, err := ports.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func lease(t *testing.T, p *ports.Pool, key string) *ports.Socket {
	t.Helper()
	s, err := p.Lease(key)
	if err != nil {
		t.Fatalf("lease %s: %v", key, err)
	}
	return s
}

func TestNew_RefusesWhatCannotBeBound(t *testing.T) {
	t.Parallel()
	for _, cfg := range []ports.Config{
		{Host: "localhost", First: 8000, Last: 9000},
		{Host: "", First: 8000, Last: 9000},
		{Host: "127.0.0.1", First: 1023, Last: 9000},
		{Host: "127.0.0.1", First: 8000, Last: 65536},
		{Host: "127.0.0.1", First: 9000, Last: 8999},
	} {
		if _, err := ports.New(cfg); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: %v, want an error that says what would be right", cfg, err)
		}
	}
}

func TestLease_LowestFreeFirstAndTheSameAgain(t *testing.T) {
	t.Parallel()
	cfg := block(t, 4)
	stranger, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", cfg.First+1))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	p := newPool(t, cfg)
	a, b := lease(t, p, "a"), lease(t, p, "b")
	if a.Port() != cfg.First || b.Port() != cfg.First+2 {
		t.Errorf("ports %d, %d; want the lowest %d, and %d past the one that is held", a.Port(), b.Port(), cfg.First, cfg.First+2)
	}
	if again := lease(t, p, "a"); again != a {
		t.Error("the same key got another socket")
	}
	if err := b.Shutdown(); err != nil {
		t.Fatal(err)
	}
	c := lease(t, p, "c")
	if c.Port() == b.Port() {
		t.Error("the port of a stopped key went to another one")
	}
	if again := lease(t, p, "b"); again.Port() != b.Port() || !again.Bound() {
		t.Errorf("after a stop: port %d bound %v, want %d bound", again.Port(), again.Bound(), b.Port())
	}
	_, err = p.Lease("d")
	if f := fault.From(err); f.Kind != fault.Failed || f.Name != "PortAllocationError" {
		t.Errorf("exhausted: %v, want PortAllocationError", err)
	}
	if err := p.Release("a"); err != nil {
		t.Fatal(err)
	}
	if d := lease(t, p, "d"); d.Port() != cfg.First {
		t.Errorf("port %d, want the released %d", d.Port(), cfg.First)
	}
	if err := p.Release("nobody"); err != nil {
		t.Errorf("release of an unknown key: %v", err)
	}
}

func TestReserve_KeepsThePortWithoutBindingIt(t *testing.T) {
	t.Parallel()
	cfg := block(t, 1)
	p := newPool(t, cfg)
	outside := cfg.First + 5 // of the same block
	s, err := p.Reserve("a", outside)
	if err != nil || s.Bound() || s.Port() != outside {
		t.Fatalf("reserve: %v, %v", s, err)
	}
	if again, err := p.Reserve("a", outside); err != nil || again != s {
		t.Errorf("again: %v, %v", again, err)
	}
	for key, port := range map[string]int{"b": outside, "a": outside - 1, "c": 0, "d": 65536} {
		if _, err := p.Reserve(key, port); err == nil {
			t.Errorf("reserve %d for %s: want an error", port, key)
		}
	}
	if got := lease(t, p, "a"); got != s || !s.Bound() {
		t.Errorf("lease of a reserved key: %v, bound %v", got, s.Bound())
	}
	if got, ok := p.Get("a"); !ok || got != s {
		t.Error("the key has no socket")
	}
	if _, ok := p.Get("z"); ok {
		t.Error("an unknown key has a socket")
	}
}

func TestBind_StolenPortNamesTheHolder(t *testing.T) {
	t.Parallel()
	p := newPool(t, block(t, 1))
	s := lease(t, p, "a")
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	thief, err := net.Listen("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Lease("a")
	comm, _ := os.ReadFile("/proc/self/comm")
	want := fmt.Sprintf("port %d is in use by process %d (%s)", s.Port(), os.Getpid(), strings.TrimSpace(string(comm)))
	if f := fault.From(err); f.Kind != fault.Failed || f.Name != "SpawnError" || f.Message != want {
		t.Errorf("lease: %+v, want %q", f, want)
	}
	thief.Close()
	lease(t, p, "a")
}

func TestFile_LeavesTheSocketNonBlockingAndQueuesUntilAccepted(t *testing.T) {
	t.Parallel()
	s := lease(t, newPool(t, block(t, 1)), "a")
	client, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatalf("nobody accepts yet, but the socket listens: %v", err)
	}
	defer client.Close()
	file, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := file.Fd() // as os/exec does when it passes the file on
	if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v: want O_NONBLOCK", flags, err)
	}
	if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: want FD_CLOEXEC", flags, err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestServe503_AnswersAndHandsBack(t *testing.T) {
	t.Parallel()
	s := lease(t, newPool(t, block(t, 1)), "a")
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "not now")
	})
	for range 2 { // the second does nothing
		if err := s.Serve503(handler); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.Get("http://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "7" || string(body) != "not now" || !resp.Close {
		t.Errorf("%s %v %q close %v, %v", resp.Status, resp.Header, body, resp.Close, err)
	}
	if !s.Serving() {
		t.Error("not serving")
	}
	accepted := stalled(t, s)
	s.StopServing()
	s.StopServing()
	if s.Serving() {
		t.Error("still serving")
	}
	accepted.finish()
	queues(t, s)
}

// half is a connection that was accepted and has not sent its whole request.
type half struct {
	t    *testing.T
	conn net.Conn
}

// stalled opens one. A later connection that was answered shows that the earlier
// one was accepted: the queue keeps the order.
func stalled(t *testing.T, s *ports.Socket) half {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return half{t, conn}
}

// finish sends the rest and wants an answer.
func (h half) finish() {
	h.t.Helper()
	defer h.conn.Close()
	if err := h.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(h.conn, "Host: x\r\n\r\n"); err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(h.conn), nil)
	if err != nil {
		h.t.Fatalf("an accepted connection lost its answer: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		h.t.Errorf("answer %s, want 503", resp.Status)
	}
}

// queues checks that nobody accepts any more, and that who comes next can.
func queues(t *testing.T, s *ports.Socket) {
	t.Helper()
	client, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	file, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, want := conn.RemoteAddr().String(), client.LocalAddr().String(); got != want {
		t.Errorf("accepted %s, want %s", got, want)
	}
}

func TestShutdown_RefusesForEveryHolderAndBindsAgain(t *testing.T) {
	t.Parallel()
	s := lease(t, newPool(t, block(t, 1)), "a")
	file, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // another holder, as a child is
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after shutdown: %v, want refused", err)
	}
	if err := s.Shutdown(); err != nil {
		t.Errorf("second shutdown: %v", err)
	}
	if _, err := s.File(); err == nil {
		t.Error("a file of a socket that is not bound")
	}
	if err := s.Serve503(http.NotFoundHandler()); err == nil {
		t.Error("serving on a socket that is not bound")
	}
	if err := s.Bind(); err != nil {
		t.Fatalf("bind again while another process holds the old socket: %v", err)
	}
	queues(t, s)
}

func TestClose_LeavesTheListeningToOthers(t *testing.T) {
	t.Parallel()
	s := lease(t, newPool(t, block(t, 1)), "a")
	file, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatalf("the other holder's port is closed: %v", err)
	}
	conn.Close()
}

func TestTake_OnlyAListenerOfThisPort(t *testing.T) {
	t.Parallel()
	p := newPool(t, block(t, 1))
	s := lease(t, p, "a")
	file, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := lease(t, newPool(t, block(t, 1)), "b")
	wrong, err := other.File()
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if err := s.Take(int(wrong.Fd())); err == nil || !strings.Contains(err.Error(), "it listens on port") {
		t.Errorf("another port's socket: %v", err)
	}
	if err := s.Take(plain(t)); err == nil || !strings.Contains(err.Error(), "does not listen") {
		t.Errorf("a socket that does not listen: %v", err)
	}
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Take(fd); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: want FD_CLOEXEC", flags, err)
	}
	if err := s.Take(int(file.Fd())); err == nil {
		t.Error("taken twice")
	}
	queues(t, s)
}

func plain(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

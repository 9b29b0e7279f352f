package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
)

// from names the fixture's child.
func (f *fixture) from() control.Handover {
	return control.Handover{RunDir: f.dir, LaunchID: "launch", Token: "token", PID: f.runner.cmd.Process.Pid}
}

func TestTakeListener_BringsTheSocketOfALivingChild(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"ok", "undumpable"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := launch(t, mode)
			for range 3 { // as often as supervisors come
				fd, err := control.TakeListener(t.Context(), f.from())
				if err != nil {
					t.Fatal(err)
				}
				f.assertListener(fd)
			}
			path := control.HandoverPath(f.dir, "launch")
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("hand-over socket: %v, %v; want mode 0600", info, err)
			}
			if err := f.conn.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.conn.Detach()
			f.exited()
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("the hand-over socket of an ended child stays: %v", err)
			}
		})
	}
}

// assertListener checks and closes a descriptor of the fixture's listener.
func (f *fixture) assertListener(fd int) {
	f.t.Helper()
	defer syscall.Close(fd)
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens != 1 {
		f.t.Errorf("SO_ACCEPTCONN %d, %v", listens, err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		f.t.Fatal(err)
	}
	if got, want := name.(*unix.SockaddrInet4).Port, f.l.Addr().(*net.TCPAddr).Port; got != want {
		f.t.Errorf("port %d, want %d", got, want)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		f.t.Errorf("flags %x, %v; want close-on-exec", flags, err)
	}
}

func TestTakeListener_OnlyForTheLaunchToken(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	for name, token := range map[string]string{
		"none": "", "wrong": "tokem", "the beginning": "toke", "more": "token1", "far too long": strings.Repeat("token", 1000),
	} {
		from := f.from()
		from.Token = token
		if fd, err := control.TakeListener(t.Context(), from); err == nil || fd != -1 {
			t.Errorf("token %s: descriptor %d, %v; want a refusal", name, fd, err)
		}
	}
	fd, err := control.TakeListener(t.Context(), f.from())
	if err != nil {
		t.Fatalf("after the refusals: %v", err)
	}
	f.assertListener(fd)
}

func TestTakeListener_SilentPeerHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	silent, err := net.Dial("unix", control.HandoverPath(f.dir, "launch"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fd, err := control.TakeListener(t.Context(), f.from())
	if err != nil {
		t.Fatal(err)
	}
	f.assertListener(fd)
	_ = silent.SetReadDeadline(time.Now().Add(patience))
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("silent peer: %d bytes, %v; want the end of the connection", n, err)
	}
}

func TestTakeListener_TellsNoStrangerTheToken(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", control.HandoverPath(dir, "launch"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		heard <- string(text)
	}()
	from := control.Handover{RunDir: dir, LaunchID: "launch", Token: "token", PID: 1}
	if _, err := control.TakeListener(t.Context(), from); err == nil || !strings.Contains(err.Error(), "answers in its place") {
		t.Errorf("%v, want another process named", err)
	}
	if got := <-heard; got != "" {
		t.Errorf("the stranger heard %q", got)
	}
}

func TestTakeListener_AcceptsOneDescriptorAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		say string
		fds int
	}{"none": {"y", 0}, "two": {"y", 2}, "without the word": {"n", 1}, "nothing": {"", 0}, "much": {"yy", 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "fd-x")})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.ReadAll(conn)
				var rights []byte
				if c.fds > 0 {
					rights = unix.UnixRights(make([]int, c.fds)...) // copies of descriptor 0
				}
				if c.say != "" {
					_, _, _ = conn.WriteMsgUnix([]byte(c.say), rights, nil)
				}
			}()
			from := control.Handover{RunDir: dir, LaunchID: "x", Token: "token", PID: os.Getpid()}
			if fd, err := control.TakeListener(t.Context(), from); err == nil || fd != -1 {
				t.Errorf("%d, %v; want an error", fd, err)
			}
			<-done
		})
	}
}

func TestTakeListener_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", control.HandoverPath(dir, "launch")) // nobody answers, as in a stopped child
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	from := control.Handover{RunDir: dir, LaunchID: "launch", Token: "token", PID: os.Getpid()}
	if fd, err := control.TakeListener(ctx, from); err == nil || fd != -1 {
		t.Errorf("%d, %v; want the end of the context", fd, err)
	}
}

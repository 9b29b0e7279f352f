package ports_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExport_ASuccessorTakesTheSocketsWithTheirQueues(t *testing.T) {
	t.Parallel()
	cfg := block(t, 3)
	p := newPool(t, cfg)
	a, b := lease(t, p, "a"), lease(t, p, "b")
	if err := b.Shutdown(); err != nil { // stopped: it has a port and no socket
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	fds, err := p.Export()
	if err != nil || len(fds) != 1 {
		t.Fatalf("export: %v, %v; want that of a", fds, err)
	}
	fd := fds[a.Port()]
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: want FD_CLOEXEC", flags, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	next := newPool(t, cfg)
	s, err := next.Reserve("a", a.Port())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Take(fd); err != nil {
		t.Fatal(err)
	}
	f, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept() // the client that came before
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

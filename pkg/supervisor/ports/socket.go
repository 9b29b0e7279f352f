package ports

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
)

// closed is the descriptor of a socket that is not bound.
const closed = -1

// Limits of the connections that the supervisor answers itself.
const (
	answerTimeout = 10 * time.Second // from the connection to the end of the answer
	answerHeaders = 64 << 10         // bytes
)

// Socket is a listening socket that outlives the processes that accept on it.
//
// It is kept as a bare descriptor: a net.Listener would sit in our own poller and
// wake us for every connection of the child, and its File method makes the
// socket blocking for all processes that share it. It is safe for concurrent
// use; each of its methods returns at once.
type Socket struct {
	addr netip.AddrPort

	mu     sync.Mutex // guards what follows
	fd     int        // O_CLOEXEC, O_NONBLOCK; closed when not bound
	answer *answerer  // nil unless the supervisor accepts
}

// Addr is the address that is or would be bound.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Port is the port of Addr.
func (s *Socket) Port() int { return int(s.addr.Port()) }

// Bound tells whether this process holds the socket open.
func (s *Socket) Bound() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd != closed
}

// Bind binds and listens unless the socket is held already. When another
// program has the port, the error is a fault named SpawnError that tells which.
func (s *Socket) Bind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd != closed {
		return nil
	}
	// Plain TCP: net.ListenConfig would make it a multipath socket.
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return s.bindFault(err)
	}
	fd, err := dup(l)
	err = errors.Join(err, l.Close())
	if err != nil {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
		return fmt.Errorf("keep the socket of %s: %w", s.addr, err)
	}
	s.fd = fd
	return nil
}

func (s *Socket) bindFault(err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fault.Wrap(fault.Failed, "SpawnError",
			fmt.Sprintf("port %d is in use by %s", s.Port(), holder(s.Port())), err)
	}
	return fault.Wrap(fault.Failed, "SpawnError", fmt.Sprintf("port %d cannot be bound: %s", s.Port(), reason(err)), err)
}

// reason is the system's own word for err, without Go's prefixes.
func reason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}

// dup copies the descriptor of a listener, non-blocking as it is.
func dup(c syscall.Conn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return closed, err
	}
	fd := closed
	var derr error
	if err := rc.Control(func(raw uintptr) { fd, derr = unix.FcntlInt(raw, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return closed, err
	}
	if derr != nil {
		return closed, derr
	}
	return fd, nil
}

// Take makes fd, a descriptor of the socket that another process kept open, this
// Socket's own. It refuses a descriptor that does not listen on the port; then
// fd stays the caller's. The host may be another one than is configured now:
// clients of the running child know that one.
func (s *Socket) Take(fd int) error {
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("take over a socket for %s: %w", s.addr, err)
	}
	if listening == 0 {
		return fmt.Errorf("take over a socket for %s: it does not listen", s.addr)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("take over a socket for %s: %w", s.addr, err)
	}
	if got := portOf(name); got != s.Port() {
		return fmt.Errorf("take over a socket for %s: it listens on port %d", s.addr, got)
	}
	unix.CloseOnExec(fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd != closed {
		return fmt.Errorf("take over a socket for %s: it is held already", s.addr)
	}
	s.fd = fd
	return nil
}

func portOf(name unix.Sockaddr) int {
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	default:
		return 0
	}
}

// File returns a copy of the socket to pass to a child process. The caller
// closes it after the start. Its Fd method leaves the socket non-blocking.
func (s *Socket) File() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file()
}

// file is File; mu is held.
func (s *Socket) file() (*os.File, error) {
	if s.fd == closed {
		return nil, fmt.Errorf("copy the socket of %s: it is not bound", s.addr)
	}
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("copy the socket of %s: %w", s.addr, err)
	}
	return os.NewFile(uintptr(fd), s.addr.String()), nil
}

// Serve503 makes this process accept on the socket and answer every request
// with handler, until StopServing. Each connection gets one answer. A second
// call while it serves does nothing.
func (s *Socket) Serve503(handler http.Handler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil {
		return nil
	}
	f, err := s.file()
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("accept on the socket of %s: %w", s.addr, err)
	}
	s.answer = newAnswerer(l, handler)
	return nil
}

// Serving tells whether this process answers on the socket (Serve503).
func (s *Socket) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer != nil
}

// StopServing ends Serve503: no further connection is accepted here; those that
// were get their answer.
func (s *Socket) StopServing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopServing()
}

func (s *Socket) stopServing() {
	if s.answer != nil {
		s.answer.stop()
		s.answer = nil
	}
}

// Shutdown ends the listening for every process that holds the socket: clients
// are refused at once. Bind opens the port again.
func (s *Socket) Shutdown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopServing()
	if s.fd == closed {
		return nil
	}
	err := unix.Shutdown(s.fd, unix.SHUT_RD)
	if errors.Is(err, unix.ENOTCONN) { // it had stopped listening
		err = nil
	}
	err = errors.Join(err, unix.Close(s.fd))
	s.fd = closed
	if err != nil {
		return fmt.Errorf("shut down the socket of %s: %w", s.addr, err)
	}
	return nil
}

// Close lets go of the socket; processes that hold it go on to accept.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopServing()
	if s.fd == closed {
		return nil
	}
	err := unix.Close(s.fd)
	s.fd = closed
	return err
}

// answerer is the supervisor's own small server on the socket.
type answerer struct {
	server *http.Server
	done   chan struct{} // closed when Serve returned
	l      net.Listener
}

func newAnswerer(l net.Listener, handler http.Handler) *answerer {
	a := &answerer{
		server: &http.Server{
			Handler:        handler,
			ReadTimeout:    answerTimeout,
			WriteTimeout:   answerTimeout,
			MaxHeaderBytes: answerHeaders,
		},
		done: make(chan struct{}),
		l:    l,
	}
	// One answer a connection: the client's next request meets the next child.
	a.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(a.done)
		_ = a.server.Serve(l) // ends by stop closing the listener
	}()
	return a
}

// stop closes the listener only. http.Server.Shutdown would drop connections
// that were accepted and not yet read.
func (a *answerer) stop() {
	_ = a.l.Close()
	<-a.done
}

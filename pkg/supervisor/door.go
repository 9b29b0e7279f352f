package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// door is a listening socket that outlives its listeners and, over a reload, the
// program. Like a formation's it is kept as a bare descriptor.
type door struct {
	fd   int // close-on-exec, non-blocking
	addr net.Addr
}

// openDoor listens for the management API.
func openDoor(ctx context.Context, address string) (*door, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // it would be another kind of socket
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the management API: %w", err)
	}
	return keepDoor(l.(*net.TCPListener)) // it is one: the network is tcp
}

// openHatch listens on a unix socket, which is made anew.
func openHatch(path string) (*door, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	return keepDoor(l)
}

// keepDoor keeps the socket of a listener and closes the listener.
func keepDoor(l listener) (*door, error) {
	defer l.Close()
	fd, err := dupOf(l)
	if err != nil {
		return nil, fmt.Errorf("keep the socket of %s: %w", l.Addr(), err)
	}
	return &door{fd: fd, addr: l.Addr()}, nil
}

type listener interface {
	net.Listener
	syscall.Conn
}

// dupOf copies a descriptor, non-blocking as it is. The File method of a
// connection would make the socket blocking for all that share it.
func dupOf(c syscall.Conn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var failed error
	if err := rc.Control(func(raw uintptr) { fd, failed = unix.FcntlInt(raw, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, failed
}

// file returns a copy to pass to a child process; the caller closes it.
func (d *door) file() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("copy the socket of %s: %w", d.addr, err)
	}
	return os.NewFile(uintptr(fd), "listener"), nil
}

// listen returns a listener, whose end leaves the door open: connections wait.
func (d *door) listen() (net.Listener, error) {
	f, err := d.file()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("accept on %s: %w", d.addr, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, nil
}

func (d *door) close() {
	if d != nil && d.fd >= 0 {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
}

// serves tells whether a door on have is one on the address that the settings
// want: port 0 is any.
func serves(have net.Addr, want string) bool {
	w, err := net.ResolveTCPAddr("tcp", want)
	if err != nil {
		return false
	}
	h, ok := have.(*net.TCPAddr)
	if !ok || w.Port != 0 && w.Port != h.Port {
		return false
	}
	any := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return any(h.IP) && any(w.IP) || h.IP.Equal(w.IP)
}

// takeDoor makes a descriptor that an earlier program kept a door.
func takeDoor(fd int) (*door, error) {
	unix.CloseOnExec(fd)
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listening == 0 {
		return nil, errors.Join(fmt.Errorf("take over descriptor %d: it does not listen", fd), err)
	}
	d := &door{fd: fd}
	l, err := d.listen()
	if err != nil {
		return nil, err
	}
	d.addr = l.Addr()
	return d, l.Close()
}

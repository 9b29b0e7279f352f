package ports

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Export returns a copy of the descriptor of every bound socket by its port, for
// a program that takes this one's place in the same process: there Reserve and
// Socket.Take make the sockets its own. The copies are closed on exec like all
// others and are the caller's to close.
func (p *Pool) Export() (map[int]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fds := make(map[int]int)
	var errs []error
	for key, s := range p.byKey {
		fd, err := s.copy()
		if err != nil {
			errs = append(errs, fmt.Errorf("copy socket of %s: %w", key, err))
		} else if fd != closed {
			fds[s.Port()] = fd
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	return fds, nil
}

// copy duplicates the descriptor, closed when the socket is not bound.
func (s *Socket) copy() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd == closed {
		return closed, nil
	}
	return unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
}

package store

import "golang.org/x/sys/unix"

// SQLite lets a process that finds the store locked sleep and look again, ever
// longer, so of two busy writers the one that has the lock keeps it: the other
// waited for most of a second. While siblings live, commits therefore pass a
// gate, on which the kernel wakes the waiting one. It is two locks: who waits
// for the writer's lock holds the turn, and who has just written must get the
// turn first, so that the two alternate.

// passGate waits for this process's turn to write and returns what ends it. A
// gate that can't be passed is no reason to fail: SQLite's own lock decides.
func (l *liveness) passGate() (leave func()) {
	if l.file == nil {
		return func() {}
	}
	l.lock(gateTurn, unix.F_WRLCK)
	l.lock(gateWriter, unix.F_WRLCK)
	l.lock(gateTurn, unix.F_UNLCK)
	return func() { l.lock(gateWriter, unix.F_UNLCK) }
}

func (l *liveness) lock(place int64, typ int16) {
	lock := unix.Flock_t{Type: typ, Start: place, Len: 1}
	for unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLKW, &lock) == unix.EINTR {
	}
}

package confine

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// The rights of Landlock by what a path is open for. Sending ioctls to devices
// and making device files is open nowhere.
const (
	rightsRead = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir

	rightsWrite = rightsRead | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRefer |
		ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSMakeSym | ll.AccessFSMakeSock | ll.AccessFSMakeFifo |
		ll.AccessFSRemoveFile | ll.AccessFSRemoveDir

	// rightsFile are the rights that a rule about a file, not a directory, may name.
	rightsFile = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
)

// LandlockVersion returns the version of Landlock that the kernel offers; 0 is
// none at all.
func LandlockVersion() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// handled are the rights that a version of Landlock can take away, of those that
// this package knows: what it does not handle stays open. The right to reach
// sockets made outside (version 9) is not handled, because databases and name
// services are reached that way.
func handled(version int) uint64 {
	rights := uint64(ll.AccessFSMakeSym<<1 - 1) // version 1: everything up to making symbolic links
	if version >= 2 {
		rights |= ll.AccessFSRefer
	}
	if version >= 3 {
		rights |= ll.AccessFSTruncate
	}
	if version >= 5 {
		rights |= ll.AccessFSIoctlDev
	}
	return rights
}

// scopes are the relations to processes outside that a version can take away: to
// signal them, and to reach their abstract sockets.
func scopes(version int) uint64 {
	if version < 6 {
		return 0
	}
	return ll.ScopeSignal | ll.ScopeAbstractUnixSocket
}

// ruleset is a Landlock ruleset that is not in force yet; nil is none.
type ruleset struct{ fd int }

// landlock makes the ruleset of s. The library's own way puts every thread under
// a domain of its own, from which the threads of older kernels cannot signal each
// other; here one thread goes under, and then executes.
func (s *Spec) landlock() (*ruleset, error) {
	version := LandlockVersion()
	if version < 1 || len(s.ReadOnly)+len(s.ReadWrite) == 0 {
		return nil, nil //nolint:nilnil // no ruleset is a ruleset that forbids nothing
	}
	rights := handled(version)
	fd, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{HandledAccessFS: rights, Scoped: scopes(version)}, 0)
	if err != nil {
		return nil, fmt.Errorf("make a Landlock ruleset: %w", err)
	}
	r := &ruleset{fd: fd}
	for _, part := range []struct {
		paths  []string
		rights uint64
	}{{s.ReadOnly, rightsRead}, {s.ReadWrite, rightsWrite}} {
		for _, path := range part.paths {
			if err := r.allow(path, part.rights&rights); err != nil {
				r.close()
				return nil, err
			}
		}
	}
	return r, nil
}

// allow adds a rule for path and all beneath it. A path that is not there needs
// none.
func (r *ruleset) allow(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s for Landlock: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("look at %s for Landlock: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= rightsFile
	}
	if err := ll.LandlockAddPathBeneathRule(r.fd, &ll.PathBeneathAttr{ParentFd: fd, AllowedAccess: rights}, 0); err != nil {
		return fmt.Errorf("open %s in Landlock: %w", path, err)
	}
	return nil
}

func (r *ruleset) on() bool { return r != nil }

// enforce puts the calling thread under the rules.
func (r *ruleset) enforce() error {
	if r == nil {
		return nil
	}
	if err := ll.LandlockRestrictSelf(r.fd, 0); err != nil {
		return fmt.Errorf("go under Landlock: %w", err)
	}
	return nil
}

func (r *ruleset) close() {
	if r != nil {
		_ = unix.Close(r.fd)
	}
}

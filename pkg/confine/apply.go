package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Apply takes everything of s on, for the calling thread and what it executes or
// starts; the cgroups and resource limits are the whole process'. The caller has
// locked its goroutine to the thread and never unlocks it when Apply succeeded.
// The first thing that cannot be done is the error, and the process is of no
// further use then.
func (s *Spec) Apply() error {
	if err := s.joinCgroups(); err != nil {
		return err
	}
	if err := s.setRlimits(); err != nil {
		return err
	}
	// The paths are opened by the old user, who may pass where the new one may not.
	rules, err := s.landlock()
	if err != nil {
		return err
	}
	defer rules.close()
	if err := s.becomeUser(); err != nil {
		return err
	}
	if s.NoCapabilities {
		if err := errors.Join(boundCapabilities(), dropCapabilities()); err != nil {
			return err
		}
	}
	return s.close(rules)
}

// close is the last step: what holds for good.
func (s *Spec) close(rules *ruleset) error {
	if s.NoNewPrivs || rules.on() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return rules.enforce()
}

// joinCgroups comes first, so that all that follows is counted.
func (s *Spec) joinCgroups() error {
	for _, dir := range s.Cgroups {
		// "0" is the writing process, whatever its number is in the reader's namespace.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join the cgroup: %w", err)
		}
	}
	return nil
}

// resource returns the number of a resource limit.
func resource(name string) (int, bool) {
	switch name {
	case "nofile":
		return unix.RLIMIT_NOFILE, true
	case "core":
		return unix.RLIMIT_CORE, true
	case "nproc":
		return unix.RLIMIT_NPROC, true
	case "fsize":
		return unix.RLIMIT_FSIZE, true
	case "cpu": // seconds
		return unix.RLIMIT_CPU, true
	case "data": // bytes of memory that is its own and can be written: what Go reserves does not count
		return unix.RLIMIT_DATA, true
	default:
		return 0, false
	}
}

func (s *Spec) setRlimits() error {
	for name, value := range s.Rlimits {
		number, _ := resource(name)
		var now unix.Rlimit
		if err := unix.Getrlimit(number, &now); err != nil {
			return fmt.Errorf("read rlimit %s: %w", name, err)
		}
		value = min(value, now.Max)
		// Setrlimit of this package also forgets the soft limit that Go keeps to
		// give back at execution.
		if err := unix.Setrlimit(number, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set rlimit %s to %d: %w", name, value, err)
		}
	}
	return nil
}

// becomeUser gives the present user up. The calls are the bare ones, which
// change the calling thread alone: the C library's would wait for the other
// threads, and those vanish at the execution.
func (s *Spec) becomeUser() error {
	if s.GID >= 0 {
		groups := make([]uint32, 0, len(s.Groups))
		for _, g := range s.Groups {
			groups = append(groups, uint32(g))
		}
		if err := setgroups(groups); err != nil {
			return fmt.Errorf("give up the supplementary groups: %w", err)
		}
		gid := uintptr(s.GID)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
			return fmt.Errorf("become group %d: %w", s.GID, errno)
		}
	}
	if s.UID >= 0 {
		uid := uintptr(s.UID)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return fmt.Errorf("become user %d: %w", s.UID, errno)
		}
	}
	return s.checkUser()
}

// checkUser makes sure of what a wrong turn would make worst of all.
func (s *Spec) checkUser() error {
	if s.UID <= 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno == 0 {
		return errors.New("become user " + strconv.Itoa(s.UID) + ": the way back to root is still open")
	}
	return nil
}

// boundCapabilities sees to it that the calling thread and what it starts gain no
// capability by an execution.
func boundCapabilities() error {
	const lastPossible = 63
	for c := uintptr(0); c <= lastPossible; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			break // the kernel knows no more of them, or the bounds are not ours to set
		}
		if err != nil {
			return fmt.Errorf("bound the capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("clear the ambient capabilities: %w", err)
	}
	return nil
}

// dropCapabilities empties the sets of the calling thread. With no_new_privs an
// execution by root fills none of them again.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop the capabilities: %w", err)
	}
	return nil
}

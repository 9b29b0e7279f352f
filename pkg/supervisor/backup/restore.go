package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// stagingSuffix names the directory beside the home in which a backup is
// unpacked; unfinishedName is in it until all of it is checked.
const (
	stagingSuffix  = ".restoring"
	unfinishedName = ".unfinished"
)

// Restore unpacks the backup r into home, a directory that is missing or empty
// unless opts says otherwise. Everything is checked in a directory beside it
// first; then it appears by one rename. When Restore fails or is killed before,
// home is as it was; the next Restore removes what it left beside it.
//
// The errors are fault.Conflict "HomeNotEmpty" and "AlreadyRunning" (a
// supervisor runs on home), and fault.Invalid "BackupDamaged" and "BackupFormat".
func Restore(ctx context.Context, r io.Reader, home string, opts Options) (Report, error) {
	home, err := filepath.Abs(home)
	if err != nil {
		return Report{}, fmt.Errorf("find the home: %w", err)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := mayReplace(home, opts.Force); err != nil {
		return Report{}, err
	}
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil { //nolint:gosec // of parents that are not ours alone
		return Report{}, fmt.Errorf("make directory: %w", err)
	}
	s, err := newStaging(home)
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	ix, err := s.fill(ctx, r)
	if err != nil {
		return Report{}, errors.Join(err, s.discard())
	}
	// The world may have changed while gigabytes were unpacked.
	if err := mayReplace(home, opts.Force); err != nil {
		return Report{}, errors.Join(err, s.discard())
	}
	ix.MovedTo, err = s.publish(opts.Now)
	return ix.Report, err
}

// Verify reads the whole backup r and checks all that Restore would.
func Verify(ctx context.Context, r io.Reader) (Report, error) {
	scratch, err := os.MkdirTemp("", "backup-*")
	if err != nil {
		return Report{}, fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(scratch)
	u := &unpacker{ctx: ctx, scratch: scratch}
	ix, err := u.run(r)
	return ix.Report, err
}

// mayReplace refuses a home that somebody uses.
func mayReplace(home string, force bool) error {
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(entries) == 0) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the home: %w", err)
	}
	if err := notRunning(home); err != nil {
		return err
	}
	if !force {
		return fault.Errorf(fault.Conflict, nameHome,
			"%s is not empty; restore into a new directory, or use --force, which moves this one aside", home)
	}
	return nil
}

// notRunning refuses a home whose lock a supervisor holds.
func notRunning(home string) error {
	f, err := os.OpenFile(filepath.Join(home, "run", "lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a supervisor: %w", err)
	}
	defer filelock.Release(f)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		text := make([]byte, 64)
		n, _ := f.Read(text)
		pid, _, _ := strings.Cut(string(text[:n]), " ")
		return fault.Errorf(fault.Conflict, nameRunning, "a supervisor (process %s) runs on %s; stop it first", pid, home)
	}
	return nil
}

// staging is the directory in which a backup is unpacked, held by a lock.
type staging struct {
	home, path string
	root       *os.Root
	lock       *os.File
}

// newStaging makes the directory, or takes over that of a restore that was
// killed.
func newStaging(home string) (_ *staging, err error) {
	s := &staging{home: home, path: home + stagingSuffix}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := os.Mkdir(s.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if s.lock, err = os.Open(s.path); err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fault.Errorf(fault.Conflict, nameRunning, "another restore into %s is in progress: %w", home, err)
	}
	if s.root, err = os.OpenRoot(s.path); err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", s.path, err)
	}
	_, err = s.root.Lstat(unfinishedName)
	if len(entries) > 0 && err != nil {
		// A whole home lies here: a restore was killed as it moved it aside.
		return nil, fault.Errorf(fault.Conflict, nameHome, "%s is in the way and holds a whole home; move it elsewhere", s.path)
	}
	if err := s.root.WriteFile(unfinishedName, nil, 0o600); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", s.path, err)
	}
	for _, e := range entries {
		if e.Name() == unfinishedName {
			continue
		}
		if err := s.root.RemoveAll(e.Name()); err != nil {
			return nil, fmt.Errorf("clear %s: %w", s.path, err)
		}
	}
	return s, nil
}

func (s *staging) close() {
	if s.root != nil {
		s.root.Close()
	}
	if s.lock != nil {
		filelock.Release(s.lock)
	}
}

// fill unpacks and checks the backup, and waits until it is on disk.
func (s *staging) fill(ctx context.Context, r io.Reader) (index, error) {
	u := &unpacker{ctx: ctx, root: s.root, chown: os.Geteuid() == 0}
	ix, err := u.run(r)
	if err != nil {
		return index{}, err
	}
	for _, dir := range ix.Drop {
		if err := s.root.RemoveAll(dir); err != nil {
			return index{}, fmt.Errorf("remove what was deleted during the backup: %w", err)
		}
	}
	if err := u.settle(); err != nil {
		return index{}, err
	}
	if err := unix.Syncfs(int(s.lock.Fd())); err != nil {
		return index{}, fmt.Errorf("write files to disk: %w", err)
	}
	return ix, nil
}

// discard removes the directory; what cannot be removed says that it is not
// whole.
func (s *staging) discard() error {
	if err := os.RemoveAll(s.path); err != nil {
		return fmt.Errorf("remove %s: %w", s.path, err)
	}
	return nil
}

// publish puts the directory in the home's place, and the home that was there
// aside.
func (s *staging) publish(now func() time.Time) (movedTo string, err error) {
	if err := s.root.Remove(unfinishedName); err != nil {
		return "", fmt.Errorf("finish %s: %w", s.path, err)
	}
	err = unix.Rename(s.path, s.home) // also onto an empty directory
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		movedTo = s.home + ".before-restore-" + now().UTC().Format("20060102T150405Z")
		if _, taken := os.Lstat(movedTo); taken == nil {
			// Nothing has changed yet, and a whole home would be in the next one's way.
			err = fault.Errorf(fault.Conflict, nameHome, "%s is there already", movedTo)
			return "", errors.Join(err, s.discard())
		}
		err = s.exchange(movedTo)
	}
	if err != nil {
		return "", fmt.Errorf("move %s into place: %w", s.path, err)
	}
	parent, err := os.Open(filepath.Dir(s.home))
	if err != nil {
		return movedTo, fmt.Errorf("open directory: %w", err)
	}
	defer parent.Close()
	if err := parent.Sync(); err != nil {
		return movedTo, fmt.Errorf("write directory to disk: %w", err)
	}
	return movedTo, nil
}

// exchange swaps the two, so that there is a home at every moment, and then
// names the old one. A file system that cannot swap moves twice.
func (s *staging) exchange(movedTo string) error {
	err := unix.Renameat2(unix.AT_FDCWD, s.path, unix.AT_FDCWD, s.home, unix.RENAME_EXCHANGE)
	if err == nil {
		return os.Rename(s.path, movedTo)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := os.Rename(s.home, movedTo); err != nil {
		return err
	}
	return os.Rename(s.path, s.home)
}

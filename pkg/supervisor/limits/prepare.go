package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// tmpPrefix begins the names of private temporary directories in the run
// directory, whose path is short enough for sockets.
const tmpPrefix = "tmp."

// prepare makes the directories of a process, and lets its own user at them.
func (g *Guard) prepare(r *run, initial bool) error {
	c := g.cfg
	for _, dir := range []string{c.StateDir, c.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make a directory of the formation: %w", err)
		}
	}
	g.sweepTmp()
	var err error
	if r.tmp, err = os.MkdirTemp(c.RunDir, tmpPrefix); err != nil { // 0700
		return fmt.Errorf("make the temporary directory: %w", err)
	}
	if !g.ownUser() {
		if os.Geteuid() != 0 {
			return nil
		}
		// Without its capabilities root has no right to the files of a user that the
		// formation had before.
		return wrap("take the state directory back", ownState(c.StateDir, 0))
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("formation %s is to run as user %d, which takes root (formations.user_range)", c.ID, c.UID)
	}
	return g.handOver(r, initial)
}

// handOver gives the formation's user what it needs and no more.
func (g *Guard) handOver(r *run, initial bool) error {
	c := g.cfg
	if err := g.letPass(); err != nil {
		return err
	}
	if err := os.Lchown(r.tmp, c.UID, c.UID); err != nil {
		return fmt.Errorf("give the temporary directory away: %w", err)
	}
	if err := ownState(c.StateDir, c.UID); err != nil {
		return fmt.Errorf("give the state directory to user %d: %w", c.UID, err)
	}
	owner := os.Geteuid()
	if initial {
		owner = c.UID
	}
	if !c.Foreign {
		if err := ownVersion(c.VersionDir, owner, c.UID); err != nil {
			return fmt.Errorf("open the version to user %d: %w", c.UID, err)
		}
	}
	if err := ownRun(c.RunDir, c.UID); err != nil {
		return fmt.Errorf("open the run directory to user %d: %w", c.UID, err)
	}
	if c.CacheDir != "" {
		if err := openToAll(c.CacheDir); err != nil {
			return fmt.Errorf("open the model cache: %w", err)
		}
	}
	return nil
}

// letPass opens the supervisor's directories for passing through, and makes sure
// that those above and the program can be reached.
func (g *Guard) letPass() error {
	c := g.cfg
	for _, path := range []string{c.StateDir, c.VersionDir, c.RunDir, c.CacheDir, c.Stage} {
		if path == "" {
			continue
		}
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return fmt.Errorf("look at the way to %s: %w", path, err)
			}
			if mode := info.Mode().Perm(); mode&0o001 == 0 && !ownedBy(info, c.UID) {
				if !beneath(c.Home, dir) || c.Home == "" {
					return fmt.Errorf("user %d of formation %s cannot pass through %s (mode %04o) to %s: move the home, or chmod o+x %s",
						c.UID, c.ID, dir, mode, path, dir)
				}
				if err := os.Chmod(dir, mode|0o001); err != nil {
					return fmt.Errorf("open a directory for passing through: %w", err)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return nil
}

func ownedBy(info os.FileInfo, uid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == uid
}

// ownState gives the state directory to its user: what lies in it directly at
// every launch, because the supervisor writes there too, and the directories in
// it as a whole when they are not the user's yet.
func ownState(dir string, uid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(".")
	if err != nil {
		return err
	}
	if !ownedBy(info, uid) {
		return ownTree(root, uid, uid, nil)
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := root.Lstat(entry.Name())
		if errors.Is(err, os.ErrNotExist) {
			continue // a living child works here
		}
		if err != nil {
			return err
		}
		if ownedBy(info, uid) {
			continue
		}
		if err := ownEntry(root, entry.Name(), info, uid); err != nil {
			return err
		}
	}
	return nil
}

func ownEntry(root *os.Root, name string, info os.FileInfo, uid int) error {
	if !info.IsDir() {
		return ownOne(root, name, info, uid, uid)
	}
	sub, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return ownTree(sub, uid, uid, nil)
}

// ownVersion makes the version's files the owner's, readable by group gid. The
// directory itself comes last: as long as it is not right, all is done again.
func ownVersion(dir string, owner, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(".")
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == owner && int(stat.Gid) == gid && info.Mode().Perm()&0o050 == 0o050 {
		return nil
	}
	return ownTree(root, owner, gid, func(mode os.FileMode) os.FileMode {
		mode |= mode & 0o400 >> 3 // what the owner may read or execute the group may too
		return mode | mode&0o100>>3
	})
}

// ownTree gives everything in root away, the directories after what is in them.
// change is the mode that a file or directory gets; nil leaves it.
func ownTree(root *os.Root, uid, gid int, change func(os.FileMode) os.FileMode) error {
	var dirs []string
	err := fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreMissing(err)
		}
		if entry.IsDir() {
			dirs = append(dirs, path)
			return nil
		}
		return give(root, path, uid, gid, change)
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		err = give(root, dirs[i], uid, gid, change)
	}
	return err
}

func give(root *os.Root, path string, uid, gid int, change func(os.FileMode) os.FileMode) error {
	info, err := root.Lstat(path)
	if err != nil {
		return ignoreMissing(err)
	}
	if err := ownOne(root, path, info, uid, gid); err != nil {
		return err
	}
	if mode := info.Mode(); change != nil && mode&os.ModeSymlink == 0 {
		return ignoreMissing(root.Chmod(path, change(mode.Perm())))
	}
	return nil
}

// ownOne changes the owner of one entry. A file with several names is left: one
// of them may have been given to a file that is not the formation's.
func ownOne(root *os.Root, path string, info os.FileInfo, uid, gid int) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && stat.Nlink > 1 {
		return nil
	}
	return ignoreMissing(root.Lchown(path, uid, gid))
}

// ownRun lets the user make sockets in the run directory and read the control
// keys. The directory stays the supervisor's, so that nobody else touches the
// run records.
func ownRun(dir string, gid int) error {
	if err := os.Lchown(dir, os.Geteuid(), gid); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o770|os.ModeSticky); err != nil {
		return err
	}
	keys, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return err
	}
	for _, path := range keys {
		if err := errors.Join(os.Lchown(path, os.Geteuid(), gid), os.Chmod(path, 0o640)); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}

// openToAll makes a directory of public files readable by everyone.
func openToAll(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeSymlink != 0 {
			return ignoreMissing(err)
		}
		info, err := entry.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		want := info.Mode().Perm() | 0o004
		if entry.IsDir() {
			want |= 0o001
		}
		if want == info.Mode().Perm() {
			return nil
		}
		return ignoreMissing(root.Chmod(path, want))
	})
}

// sweepTmp removes the temporary directories of processes that are gone. Those
// of living ones are found by their environment.
func (g *Guard) sweepTmp() {
	stale, err := filepath.Glob(filepath.Join(g.cfg.RunDir, tmpPrefix+"*"))
	if err != nil || len(stale) == 0 {
		return
	}
	used := tmpInUse(g.cfg.RunDir)
	for _, dir := range stale {
		if used[dir] {
			continue
		}
		if err := removeAll(dir); err != nil {
			g.log.Warn().Err(err).Msg("cannot remove a temporary directory of an earlier process")
		}
	}
}

// tmpInUse returns the temporary directories in runDir that a process was
// started with.
func tmpInUse(runDir string) map[string]bool {
	used := make(map[string]bool)
	for _, pid := range allPids() {
		if dir := tmpOf(pid, runDir); dir != "" {
			used[dir] = true
		}
	}
	return used
}

// tmpOf returns the private temporary directory that a process was started with;
// "" when it has none in runDir.
func tmpOf(pid int, runDir string) string {
	dir := environ(pid, "TMPDIR")
	if filepath.Dir(dir) != runDir || len(filepath.Base(dir)) <= len(tmpPrefix) || filepath.Base(dir)[:len(tmpPrefix)] != tmpPrefix {
		return ""
	}
	return dir
}

// removeAll removes a directory, also when its user has made parts of it
// unreadable.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	root, err := os.OpenRoot(dir) // a name in it may lead anywhere
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && err == nil {
			return ignoreMissing(root.Chmod(path, 0o700))
		}
		return nil
	})
	return errors.Join(err, os.RemoveAll(dir))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

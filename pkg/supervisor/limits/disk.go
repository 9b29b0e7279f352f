package limits

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// checkDisk refuses a launch over the limit: the process would be ended at the
// first look.
func (g *Guard) checkDisk() error {
	limit := g.cfg.Limits.Disk
	if limit == 0 {
		return nil
	}
	if used := diskUse(g.cfg.StateDir); used > limit {
		return fmt.Errorf("%s: remove files from %s or raise formations.limits", diskReason(used, limit), g.cfg.StateDir)
	}
	return nil
}

func diskReason(used, limit int64) string {
	return fmt.Sprintf("disk use %s, limit %s", FormatBytes(used), FormatBytes(limit))
}

// diskUse is the room that the files beneath dirs take up, in bytes. Files that
// come and go meanwhile are passed over.
func diskUse(dirs ...string) int64 {
	type file struct{ dev, ino uint64 }
	seen := make(map[file]bool) // of files with several names
	var sum int64
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // gone, or unreadable: what can be seen counts
			}
			info, err := entry.Info()
			if err != nil {
				return nil //nolint:nilerr // gone
			}
			sum += room(info, func(s *syscall.Stat_t) bool {
				f := file{s.Dev, s.Ino}
				again := seen[f]
				seen[f] = true
				return again
			})
			return nil
		})
	}
	return sum
}

// room is what one file takes up; a file with several names counts unless again.
func room(info os.FileInfo, again func(*syscall.Stat_t) bool) int64 {
	const blockSize = 512 // of st_blocks, on every file system
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() && s.Nlink > 1 && again(s) {
		return 0
	}
	return s.Blocks * blockSize
}

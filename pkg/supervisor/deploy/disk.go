package deploy

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// diskError makes an error of the disk a fault of the given name. That the disk
// is full is said with what is free there.
func (s *Service) diskError(name, what string, err error) error {
	if why := s.full(err); why != "" {
		what += ": " + why
	}
	return fault.Wrap(fault.Failed, name, what, err)
}

// full says what is missing when err comes from a full disk, "" otherwise.
func (s *Service) full(err error) string {
	switch {
	case errors.Is(err, unix.EDQUOT):
		return "the disk quota is used up"
	case errors.Is(err, unix.EFBIG):
		return "a file would be larger than this process may write (ulimit -f)"
	case !errors.Is(err, unix.ENOSPC) && !registry.Full(err):
		return ""
	}
	var st unix.Statfs_t
	if unix.Statfs(s.cfg.Dirs.Formations, &st) != nil {
		return "no space left on the device"
	}
	free := st.Bavail * uint64(st.Bsize)
	return fmt.Sprintf("no space left on the device: %d bytes and %d files are free at %s", free, st.Ffree, s.cfg.Dirs.Formations)
}

// recordError names an error of the registry.
func (s *Service) recordError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, registry.ErrExists) {
		return fault.Wrap(fault.Failed, "CleanupError",
			"a formation of that id was deleted, but its files could not be removed yet; restart the server to try again", err)
	}
	return s.diskError("RegisterError", "the change cannot be recorded", err)
}

// syncDir makes a rename in dir survive the loss of power.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write directory to disk: %w", err)
	}
	return nil
}

package secretfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// readLimited reads a regular file of at most limit bytes, without the white
// space around its content. A named pipe in a bundle must not hang the reader,
// hence O_NONBLOCK and the check of the type. Flags are added to those of the
// opening.
func readLimited(path string, limit int64, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.Errorf(fault.Invalid, faultName, "%s is no regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fault.Errorf(fault.Invalid, faultName, "%s is over the limit of %d bytes", path, limit)
	}
	return bytes.TrimSpace(data), nil
}

// replaceFile makes data the content of path in one step: readers see the old
// file or the new one, also after a crash. The owner stays, and a new file is
// of the owner of its directory; only root can give a file away, for others it
// is theirs.
func replaceFile(path string, data []byte) error {
	to := ownerOf(path)
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil && os.Geteuid() == 0 && to.uid >= 0 {
		err = tmp.Chown(to.uid, to.gid)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return syncDir(dir)
}

// Lock takes the one lock for changing the files of a formation's directory: the
// secrets and their key, or the keys of its API. A caller that is kept waiting
// gives up with fault.Conflict, since the formation itself could hold the lock.
func Lock(dir string, wait time.Duration) (unlock func(), err error) {
	const pause = 50 * time.Millisecond
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for ; ; wait -= pause {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { filelock.Release(f) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock directory: %w", err), f.Close())
		}
		if wait <= 0 {
			f.Close()
			return nil, fault.Errorf(fault.Conflict, faultName, "another process is changing the secrets in %s; try again", dir)
		}
		<-tick.C
	}
}

// owner is a user and group, -1 for "as it comes".
type owner struct{ uid, gid int }

// ownerOf returns who owns the file, else the directory it will be in: with
// root as the writer, a formation that runs as a user of its own must still be
// able to read its keys.
func ownerOf(path string) owner {
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Lstat(p)
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return owner{int(st.Uid), int(st.Gid)}
		}
	}
	return owner{-1, -1}
}

// syncDir makes the rename itself durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

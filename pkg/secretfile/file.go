package secretfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentformation/service/pkg/fault"
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
// file or the new one, also after a crash.
func replaceFile(path string, data []byte) error { return replaceAs(path, data, owner{-1, -1}) }

// replaceAs is replaceFile with a file of the given owner; only root can give
// a file away, for others it stays theirs.
func replaceAs(path string, data []byte, to owner) error {
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

// syncDir makes the rename itself durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

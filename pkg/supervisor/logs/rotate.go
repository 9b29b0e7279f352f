package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

const (
	// rotating ends the name of a part in the making.
	rotating = ".rotating"
	// rotateEvery is how often the sizes are looked at. What is written in
	// between makes a part larger than MaxSize.
	rotateEvery = 2 * time.Second
)

// errBusy says that somebody reads the log just now.
var errBusy = errors.New("the log is being read")

// Rotator keeps logs from growing for ever.
type Rotator struct {
	Log      zerolog.Logger
	MaxSize  int64           // bytes; a log that has reached it is rotated
	MaxFiles int             // rotated parts kept of each log, 1 or more
	Paths    func() []string // the logs, asked each time
	Every    time.Duration   // 0 is 2 s
}

// Run rotates until ctx ends. A log that cannot be rotated, as on a full disk,
// is told once and tried again.
func (r *Rotator) Run(ctx context.Context) {
	every := r.Every
	if every <= 0 {
		every = rotateEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	told := make(map[string]bool)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, path := range r.Paths() {
			info, err := os.Stat(path)
			if err != nil || info.Size() < r.MaxSize {
				continue
			}
			err = Rotate(path, r.MaxFiles)
			switch {
			case errors.Is(err, errBusy):
			case err == nil:
				delete(told, path)
			case !told[path]:
				told[path] = true
				r.Log.Error().Err(err).Str("file", path).Msg("the log is not rotated; trying again")
			}
		}
	}
}

// Rotate makes what the log at path holds its part 1, the former part 1 its part
// 2, and so on up to keep; older ones are removed. Those who append to the log
// go on. On an error the log is as it was, but on a full disk its oldest parts
// may be gone: they make room for the youngest. A log that is not there, or
// empty, is left alone.
func Rotate(path string, keep int) error {
	log, err := openHeld(path, os.O_RDWR, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errBusy
	}
	if err != nil || log.file == nil {
		return err
	}
	defer release(log.file)
	if err := finish(path, log, keep); err != nil {
		return err
	}
	if log.size == 0 {
		return nil
	}
	for {
		err = cut(path, log)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOSPC) || !removeOldest(path) {
			return err
		}
	}
	if err := shift(path, keep); err != nil {
		return err
	}
	if !at(path, log.file) { // deleted meanwhile: leave nothing behind
		return removeFrom(path, 1)
	}
	return nil
}

// finish ends a rotation that an earlier process had begun. While the log still
// begins with what was copied, nothing was taken out of it yet.
func finish(path string, log part, keep int) error {
	p, err := openPart(path + rotating)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.file.Close()
	head := make([]byte, min(p.size, block))
	same := make([]byte, len(head))
	if _, err := p.file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read log: %w", err)
	}
	if _, err := log.file.ReadAt(same, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read log: %w", err)
	}
	if bytes.Equal(head, same) {
		return os.Remove(path + rotating)
	}
	return shift(path, keep)
}

// cut moves the log's text to the part in the making.
func cut(path string, log part) (err error) {
	to, err := os.OpenFile(path+rotating, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("rotate log: %w", err), os.Remove(to.Name()))
		}
	}()
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := alike(to, log.file); err != nil {
		return err
	}
	whole := blocks(log)
	if _, err := io.Copy(to, io.NewSectionReader(log.file, 0, whole)); err != nil {
		return err
	}
	if collapse(log.file, whole) {
		return nil
	}
	return copyAndTruncate(to, log.file, whole)
}

// alike gives a part the mode and the owner of the log.
func alike(to, log *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(log.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Getuid() || int(st.Gid) != os.Getgid() {
		if err := to.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return to.Chmod(os.FileMode(st.Mode & 0o777))
}

// blocks is how much of the log can be taken out of the file: whole blocks of
// the file system, and never all of it. The rest begins the next part, so a line
// may lie in both.
func blocks(log part) int64 {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(log.file.Fd()), &fs); err != nil || fs.Bsize <= 0 {
		return 0
	}
	return (log.size - 1) / fs.Bsize * fs.Bsize
}

// collapse takes the first n bytes out of the log, so that nothing that is being
// appended is lost; false when the file system can't.
func collapse(log *os.File, n int64) bool {
	if n == 0 {
		return false
	}
	// It would write all of the file to disk while writers wait for it.
	_ = unix.Fdatasync(int(log.Fd()))
	return unix.Fallocate(int(log.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, n) == nil
}

// copyAndTruncate copies what lies behind from, until nothing more has come, and
// empties the log.
func copyAndTruncate(to io.Writer, log *os.File, from int64) error {
	for {
		n, err := io.Copy(to, io.NewSectionReader(log, from, 1<<62))
		if err != nil {
			return err
		}
		if from += n; n == 0 {
			return unix.Ftruncate(int(log.Fd()), 0)
		}
	}
}

// shift numbers the parts anew; the one in the making becomes part 1.
func shift(path string, keep int) error {
	keep = max(1, keep)
	if err := removeFrom(path, keep); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	for i := keep - 1; i >= 1; i-- {
		if err := ignoreMissing(os.Rename(name(path, i), name(path, i+1))); err != nil {
			return fmt.Errorf("rotate log: %w", err)
		}
	}
	if err := os.Rename(path+rotating, name(path, 1)); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return nil
}

// removeOldest makes room; it returns false when there is no part to remove.
func removeOldest(path string) bool {
	last := 0
	for i := 1; i <= maxParts; i++ {
		if _, err := os.Stat(name(path, i)); err != nil {
			break
		}
		last = i
	}
	return last > 0 && os.Remove(name(path, last)) == nil
}

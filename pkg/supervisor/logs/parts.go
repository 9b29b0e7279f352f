package logs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxParts bounds how many rotated parts of one log are looked at.
const maxParts = 1000

// stream is a log with its rotated parts, held so that no rotation happens.
type stream struct {
	parts []part // oldest first; the last is the file that is appended to
}

// part is one file of a stream.
type part struct {
	file *os.File
	size int64
	id   identity
}

// identity tells a rotated part from every other one: inode numbers alone are
// used again. A part never changes.
type identity struct {
	inode uint64
	size  int64
	mtime time.Time
}

// open returns the log at path, nil when there is none. The caller closes it
// soon: rotation waits for it.
func open(path string) (*stream, error) {
	current, err := openHeld(path, os.O_RDONLY, unix.LOCK_SH)
	if err != nil || current.file == nil {
		return nil, err
	}
	s := &stream{}
	for i := 1; i <= maxParts; i++ {
		p, err := openPart(name(path, i))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			release(current.file)
			s.close()
			return nil, err
		}
		s.parts = append([]part{p}, s.parts...)
	}
	s.parts = append(s.parts, current)
	return s, nil
}

func (s *stream) close() {
	for _, p := range s.parts {
		release(p.file)
	}
}

// youngest is the identity of the youngest rotated part, zero when there is none.
func (s *stream) youngest() identity {
	if n := len(s.parts); n > 1 {
		return s.parts[n-2].id
	}
	return identity{}
}

// openHeld opens the file at path and locks it (unix.LOCK_*). The part has no
// file when there is none at path. A file that was moved away meanwhile is not
// the log any more.
func openHeld(path string, flag, lock int) (part, error) {
	for {
		f, err := os.OpenFile(path, flag, 0)
		if errors.Is(err, os.ErrNotExist) {
			return part{}, nil
		}
		if err != nil {
			return part{}, fmt.Errorf("open log: %w", err)
		}
		if err := flock(f, lock); err != nil {
			return part{}, errors.Join(fmt.Errorf("lock log: %w", err), f.Close())
		}
		p, err := measure(f)
		if err != nil {
			return part{}, errors.Join(err, f.Close())
		}
		if at(path, f) {
			return p, nil
		}
		f.Close()
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// release ends the lock of f and closes it. The lock would go with the last
// descriptor, and a process that is just being started may still have one.
func release(f *os.File) {
	_ = flock(f, unix.LOCK_UN) // it can only be one that was never taken
	_ = f.Close()
}

// at tells whether f is what path names.
func at(path string, f *os.File) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	mine, err := f.Stat()
	return err == nil && os.SameFile(now, mine)
}

func openPart(path string) (part, error) {
	f, err := os.Open(path)
	if err != nil {
		return part{}, fmt.Errorf("open log: %w", err)
	}
	p, err := measure(f)
	if err != nil {
		return part{}, errors.Join(err, f.Close())
	}
	return p, nil
}

func measure(f *os.File) (part, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return part{}, fmt.Errorf("measure log: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return part{}, fmt.Errorf("measure log: %s is no regular file", f.Name())
	}
	id := identity{inode: st.Ino, size: st.Size, mtime: time.Unix(st.Mtim.Unix())}
	return part{file: f, size: st.Size, id: id}, nil
}

// name is the path of the i-th rotated part, 1 the youngest.
func name(path string, i int) string { return path + "." + strconv.Itoa(i) }

// removeFrom deletes the rotated parts from the i-th on.
func removeFrom(path string, i int) error {
	var errs []error
	for ; i <= maxParts; i++ {
		err := os.Remove(name(path, i))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

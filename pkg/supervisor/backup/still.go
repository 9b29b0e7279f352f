package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// still returns a file's content in a form that does not change any more, and
// its size.
func (b *writer) still(s source) (r io.Reader, size int64, done func(), err error) {
	f, err := s.root.Open(s.rel)
	if err != nil {
		return nil, 0, nil, err
	}
	if s.kind == kindSQLite { // a copy already
		return f, s.info.Size(), func() { f.Close() }, nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, inMemory))
	if err != nil {
		return nil, 0, nil, fmt.Errorf("read %s: %w", s.name, err)
	}
	if len(text) < inMemory {
		return bytes.NewReader(text), int64(len(text)), func() {}, nil
	}
	tmp, err := os.OpenFile(filepath.Join(b.scratch, "copy"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("copy %s: %w", s.name, err)
	}
	done = func() { tmp.Close(); os.Remove(tmp.Name()) }
	size, err = io.Copy(tmp, &live{b: b, r: io.MultiReader(bytes.NewReader(text), io.LimitReader(f, max(0, s.info.Size()-inMemory)))})
	if err == nil {
		_, err = tmp.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, 0, nil, fmt.Errorf("copy %s: %w", s.name, err)
	}
	return tmp, size, done, nil
}

// live ends with the operation.
type live struct {
	b *writer
	r io.Reader
}

// Read implements io.Reader.
func (l *live) Read(p []byte) (int, error) {
	if err := l.b.ctx.Err(); err != nil {
		return 0, err
	}
	return l.r.Read(p)
}

func owner(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return os.Getuid(), os.Getgid()
}

// ignoreMissing is for what may vanish at any time.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// unpacker reads one backup and checks all of it. What it reads it makes below
// root, or only looks at when root is nil.
type unpacker struct {
	ctx     context.Context //nolint:containedctx // one operation
	root    *os.Root
	scratch string // for databases, when root is nil
	entries map[string]entry
	dirs    []*tar.Header // in the order of the backup
	known   map[string]bool
	damaged map[string]string // problem by path
	chown   bool
}

// run reads the backup to its end. Everything in it is checked when it returns
// nil, and the index is what it says.
func (u *unpacker) run(r io.Reader) (index, error) {
	u.entries, u.known, u.damaged = make(map[string]entry), make(map[string]bool), make(map[string]string)
	in := newUnsealer(u.ctx, r)
	ix, err := u.read(in)
	if err == nil {
		err = in.check()
	}
	if err == nil {
		err = u.compare(ix)
	}
	if err != nil {
		return index{}, u.readError(err)
	}
	return ix, nil
}

func (u *unpacker) read(in io.Reader) (index, error) {
	gz, err := gzip.NewReader(in)
	if err != nil {
		return index{}, damaged("this is no backup of a supervisor, or it is damaged: %w", err)
	}
	tr := tar.NewReader(gz)
	h, err := u.next(tr)
	if err != nil {
		return index{}, err
	}
	if h.Name != headName {
		return index{}, damaged("this is no backup of a supervisor: it begins with %q", h.Name)
	}
	if _, err := readHead(tr); err != nil {
		return index{}, err
	}
	ix, err := u.body(tr)
	if err != nil {
		return index{}, err
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		return index{}, damaged("there is more after the index of the backup")
	}
	// What is left is tar's padding, and gzip's checksum.
	n, err := io.Copy(io.Discard, io.LimitReader(gz, maxPadding+1))
	if err == nil && n > maxPadding {
		err = damaged("there is more after the index of the backup")
	}
	return ix, err
}

// next returns the next header; the end may not come before the index.
func (u *unpacker) next(tr *tar.Reader) (*tar.Header, error) {
	h, err := tr.Next()
	if errors.Is(err, io.EOF) {
		return nil, damaged("the backup is truncated: its index is missing")
	}
	return h, err
}

// body reads all entries up to the index.
func (u *unpacker) body(tr *tar.Reader) (index, error) {
	for {
		h, err := u.next(tr)
		if err != nil {
			return index{}, err
		}
		if h.Name == indexName {
			var ix index
			if err := readJSON(tr, maxIndex, &ix); err != nil {
				return index{}, damaged("the index of the backup cannot be read: %w", err)
			}
			return ix, nil
		}
		if err := u.entry(tr, h); err != nil {
			return index{}, err
		}
	}
}

func (u *unpacker) entry(tr *tar.Reader, h *tar.Header) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	switch {
	case !validName(name):
		return damaged("the backup has an entry with the name %q, which no backup has", h.Name)
	case u.known[name]:
		return damaged("the backup has two entries with the name %s", name)
	case len(u.known) >= maxEntries:
		return damaged("the backup has more than %d entries", maxEntries)
	}
	u.known[name] = true
	switch h.Typeflag {
	case tar.TypeDir:
		h.Name = name
		u.dirs = append(u.dirs, h)
		if u.root == nil {
			return nil
		}
		return u.root.MkdirAll(name, 0o700)
	case tar.TypeReg:
		return u.file(tr, h)
	}
	return damaged("the entry %s of the backup is no file and no directory", name)
}

// validName tells whether a name can stand in a backup: relative, clean, in the
// home, and the same for every program.
func validName(name string) bool {
	return fs.ValidPath(name) && name != "." && name != headName && len(name) <= maxPath && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == 0 })
}

// file reads one file, and checks a database as soon as it is whole.
func (u *unpacker) file(tr *tar.Reader, h *tar.Header) error {
	isDB := h.PAXRecords[kindRecord] == kindSQLite
	out := io.Discard
	var f *os.File
	var err error
	switch {
	case u.root != nil:
		if err := u.root.MkdirAll(path.Dir(h.Name), 0o700); err != nil {
			return err
		}
		f, err = u.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	case isDB:
		f, err = os.OpenFile(filepath.Join(u.scratch, "check.db"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", h.Name, err)
	}
	hash := sha256.New()
	if f != nil {
		out = f
	}
	size, err := copyOut(io.MultiWriter(out, hash), tr)
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", h.Name, err)
	}
	u.entries[h.Name] = entry{Path: h.Name, Size: size, SHA256: hex.EncodeToString(hash.Sum(nil))}
	if isDB {
		if err := u.check(h.Name, f.Name()); err != nil {
			return err
		}
	}
	if u.root == nil {
		return nil
	}
	return u.like(h)
}

// copyOut tells the two sides apart that can fail: only the backup's own faults
// mean that the backup is damaged.
func copyOut(w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, 64<<10)
	var size int64
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return size, &diskError{werr}
			}
			size += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}

// diskError is no fault of the backup.
type diskError struct{ err error }

func (e *diskError) Error() string { return e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

func (u *unpacker) check(name, at string) error {
	problem, err := registry.CheckSQLite(u.ctx, at)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if problem != "" {
		u.damaged[name] = problem
	}
	return nil
}

// like gives a file the mode, the time and, if we may, the owner that it had.
func (u *unpacker) like(h *tar.Header) error {
	if u.chown {
		if err := u.root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
			return fmt.Errorf("give %s to its owner: %w", h.Name, err)
		}
	}
	if err := u.root.Chmod(h.Name, fs.FileMode(h.Mode).Perm()); err != nil {
		return fmt.Errorf("set the mode of %s: %w", h.Name, err)
	}
	if err := u.root.Chtimes(h.Name, h.ModTime, h.ModTime); err != nil {
		return fmt.Errorf("set the time of %s: %w", h.Name, err)
	}
	return nil
}

// compare holds what was read against the index.
func (u *unpacker) compare(ix index) error {
	if len(ix.Entries) != len(u.entries) {
		return damaged("the backup has %d files and its index names %d", len(u.entries), len(ix.Entries))
	}
	for _, want := range ix.Entries {
		if got := u.entries[want.Path]; got != want {
			return damaged("%s in the backup is not what was written: %d bytes with checksum %.12s…, want %d and %.12s…",
				want.Path, got.Size, got.SHA256, want.Size, want.SHA256)
		}
	}
	for _, dir := range ix.Drop {
		if !validName(dir) || !strings.HasPrefix(dir, formationsDir+"/") {
			return damaged("the index of the backup drops %q", dir)
		}
	}
	was := make(map[string]bool)
	for _, d := range ix.Damaged {
		was[d.Path] = true
	}
	for name, problem := range u.damaged {
		if !was[name] {
			return damaged("the database %s is damaged: %s", name, problem)
		}
	}
	if _, ok := u.entries[registryName]; !ok {
		return damaged("the backup has no %s", registryName)
	}
	return nil
}

// settle gives the directories their modes, the deepest first: some may not be
// writable.
func (u *unpacker) settle() error {
	for _, h := range slices.Backward(u.dirs) {
		if _, err := u.root.Lstat(h.Name); errors.Is(err, fs.ErrNotExist) {
			continue // dropped
		}
		if err := u.like(h); err != nil {
			return err
		}
	}
	return nil
}

// readError keeps faults and the errors of our own disk; any other is of a
// backup that cannot be read as one.
func (u *unpacker) readError(err error) error {
	if cause := u.ctx.Err(); cause != nil {
		return fmt.Errorf("read backup: %w", cause)
	}
	_, known := errors.AsType[*fault.Error](err)
	_, disk := errors.AsType[*diskError](err)
	_, file := errors.AsType[*fs.PathError](err)
	if known || disk || file {
		return err
	}
	return damaged("the backup is damaged or truncated: %w", err)
}

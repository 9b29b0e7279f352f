package deploy

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Download is a formation's current version, ready to be sent as a zip file.
// It is for one use, by one goroutine.
type Download struct {
	Name    string // "<id>.zip"
	entries []zipEntry
	version *os.Root
	scratch string // holds the copies of databases; "" without
}

// zipEntry is one file: of the version's directory, or at path when that is set.
type zipEntry struct {
	name string // slash path in the zip
	path string
	mode fs.FileMode
}

// Download prepares the zip of id's current version. Files and directories whose
// names begin with a dot stay here, except .env: so the secrets key never leaves.
// db adds a copy of each SQLite file of the formation's state, as it is at this
// moment, while the formation goes on writing. The caller calls Close.
func (s *Service) Download(ctx context.Context, id string, db bool) (_ *Download, err error) {
	v, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if v.Current == nil {
		return nil, errNotFound(id)
	}
	d := &Download{Name: id + ".zip"}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.version, err = os.OpenRoot(s.cfg.Dirs.version(id, v.Current.Dir)); err != nil {
		return nil, fmt.Errorf("open the current version of %s: %w", id, err)
	}
	if err := fs.WalkDir(d.version.FS(), ".", d.visit); err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", id, err)
	}
	if db {
		if err := s.addDatabases(ctx, d, s.cfg.Dirs.state(id)); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(d.entries, func(a, b zipEntry) int { return strings.Compare(a.name, b.name) })
	return d, nil
}

// visit is an fs.WalkDirFunc over the version.
func (d *Download) visit(rel string, e fs.DirEntry, err error) error {
	if err != nil || rel == "." {
		return err
	}
	switch hidden := strings.HasPrefix(e.Name(), ".") && (e.Name() != ".env" || e.IsDir()); {
	case hidden && e.IsDir():
		return fs.SkipDir
	case hidden || !e.Type().IsRegular():
		return nil
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	d.entries = append(d.entries, zipEntry{name: rel, mode: info.Mode().Perm()})
	return nil
}

// addDatabases copies the SQLite files below state. They lie in the zip as they
// lie in the state directory; where the version has a file of the same name,
// which a first start would be seeded with, the live one wins.
func (s *Service) addDatabases(ctx context.Context, d *Download, state string) error {
	found, err := registry.FindSQLite(state)
	if err != nil {
		return fmt.Errorf("look for databases: %w", err)
	}
	if d.scratch, err = os.MkdirTemp(s.cfg.Dirs.Tmp, "download-*"); err != nil {
		return s.diskError("DirectoryError", "the databases cannot be copied", err)
	}
	for i, rel := range found {
		dst := filepath.Join(d.scratch, fmt.Sprint(i))
		err := registry.CopySQLite(ctx, filepath.Join(state, rel), dst)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return s.diskError("CopyError", "the database "+rel+" cannot be copied", err)
		}
		d.entries = slices.DeleteFunc(d.entries, func(e zipEntry) bool { return e.name == rel })
		d.entries = append(d.entries, zipEntry{name: rel, path: dst, mode: 0o600})
	}
	return nil
}

// WriteTo streams the zip: the same files give the same bytes. After an error
// the stream is cut short, which every unzip notices.
func (d *Download) WriteTo(w io.Writer) (int64, error) {
	out := &counted{w: w}
	z := zip.NewWriter(out)
	for _, e := range d.entries {
		if err := d.write(z, e); err != nil {
			return out.n, fmt.Errorf("pack %s: %w", path.Base(e.name), err)
		}
	}
	if err := z.Close(); err != nil {
		return out.n, fmt.Errorf("finish zip: %w", err)
	}
	return out.n, nil
}

func (d *Download) write(z *zip.Writer, e zipEntry) error {
	f, err := d.open(e)
	if err != nil {
		return err
	}
	defer f.Close()
	h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
	h.SetMode(e.mode)
	w, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

func (d *Download) open(e zipEntry) (*os.File, error) {
	if e.path != "" {
		return os.Open(e.path)
	}
	return d.version.Open(e.name)
}

// Close frees what Download opened and copied.
func (d *Download) Close() {
	if d.version != nil {
		_ = d.version.Close()
	}
	if d.scratch != "" {
		_ = os.RemoveAll(d.scratch) // Restore sweeps what stays
	}
}

// counted counts what passes.
type counted struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

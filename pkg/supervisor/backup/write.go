package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// inMemory is the largest file that is read as a whole before it is packed; a
// larger one is copied first. Either way its size is known before its header is
// written, although somebody may be writing to it.
const inMemory = 4 << 20

// Write writes a backup of a home to w, while a supervisor may run on it. After
// an error what was written is no backup, and Restore refuses it.
//
// A database that is damaged is backed up as it is and named in the report.
func Write(ctx context.Context, cfg Config, w io.Writer) (Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Report{}, err
	}
	tmp := filepath.Join(cfg.Home, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return Report{}, fmt.Errorf("make directory: %w", err)
	}
	scratch, err := os.MkdirTemp(tmp, "backup-*")
	if err != nil {
		return Report{}, fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(scratch) // a supervisor's start sweeps what stays
	out := newSealer(w)
	gz, err := gzip.NewWriterLevel(out, gzip.BestSpeed) // stores are large, and children need the processor
	if err != nil {
		return Report{}, fmt.Errorf("write backup: %w", err)
	}
	b := &writer{
		ctx: ctx, cfg: cfg, scratch: scratch, tw: tar.NewWriter(gz),
		index: index{Report: Report{
			CreatedAt: cfg.Now().UTC().Truncate(time.Second), Version: cfg.Version,
			Formations: []string{}, NotCovered: []NotCovered{}, Damaged: []Damage{}, Skipped: []string{}, Notes: []string{},
		}},
	}
	if err := b.run(); err != nil {
		return Report{}, fmt.Errorf("write backup: %w", err)
	}
	if err := errors.Join(b.tw.Close(), gz.Close()); err != nil {
		return Report{}, fmt.Errorf("write backup: %w", err)
	}
	if err := out.close(); err != nil {
		return Report{}, fmt.Errorf("write backup: %w", err)
	}
	return b.index.Report, nil
}

func (c Config) withDefaults() (Config, error) {
	home, err := filepath.Abs(c.Home)
	if err != nil {
		return c, fmt.Errorf("find the home: %w", err)
	}
	c.Home = home
	if _, err := os.Stat(filepath.Join(home, registryName)); err != nil {
		return c, fault.Errorf(fault.NotFound, nameNoHome,
			"%s is no supervisor's home, or no supervisor has run there yet: %w", home, err)
	}
	if c.Settings == "" {
		c.Settings = filepath.Join(home, settingsName)
	}
	if c.Formations == "" {
		c.Formations = filepath.Join(home, formationsDir)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// Where things lie in a home, and in a backup.
const (
	settingsName  = "config.yaml"
	registryName  = "registry.db"
	keysDir       = "keys"
	formationsDir = "formations"
)

// writer is one backup in progress.
type writer struct {
	ctx     context.Context //nolint:containedctx // one operation; fs.WalkDir hands no context on
	cfg     Config
	scratch string
	tw      *tar.Writer
	index   index
	dirs    map[string]bool // that have an entry
	// nameless counts the entries that no backup has a name for.
	nameless int
}

func (b *writer) run() error {
	text, err := json.Marshal(head{Format: format, CreatedAt: b.index.CreatedAt, Version: b.index.Version})
	if err != nil {
		return err
	}
	b.dirs = make(map[string]bool)
	if err := b.text(headName, text); err != nil {
		return err
	}
	for _, step := range []func() error{b.settings, b.keys, b.formations, b.finish} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// settings packs the settings file and what else the caller names.
func (b *writer) settings() error {
	if err := b.single(settingsName, b.cfg.Settings); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, rel := range b.cfg.Extra {
		rel = filepath.ToSlash(filepath.Clean(rel))
		if !fs.ValidPath(rel) {
			return fmt.Errorf("%s is no path in the home", rel)
		}
		if err := b.single(rel, filepath.Join(b.cfg.Home, rel)); err != nil {
			return err
		}
	}
	if b.cfg.Formations != filepath.Join(b.cfg.Home, formationsDir) {
		b.note("the formations lay in %s (formations.formations_dir); Restore puts them into the home: change the setting or move them", b.cfg.Formations)
	}
	return nil
}

func (b *writer) keys() error {
	err := b.tree(keysDir, filepath.Join(b.cfg.Home, keysDir), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// finish writes the index.
func (b *writer) finish() error {
	b.index.Files = len(b.index.Entries)
	text, err := json.Marshal(b.index)
	if err != nil {
		return err
	}
	return b.text(indexName, text)
}

func (b *writer) note(format string, args ...any) {
	b.index.Notes = append(b.index.Notes, fmt.Sprintf(format, args...))
}

// unnamed tells of an entry that a backup has no name for.
func (b *writer) unnamed(name string) {
	if b.nameless++; b.nameless <= maxSkipped {
		b.note("left out, since its name is no UTF-8 or too long: %q", name)
	}
}

// text packs what is no file.
func (b *writer) text(name string, text []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o600, ModTime: b.index.CreatedAt, Format: tar.FormatPAX}
	if err := b.tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := b.tw.Write(text)
	return err
}

// single packs one file of the operator's own, which may be a link.
func (b *writer) single(name, at string) error {
	at, err := filepath.EvalSymlinks(at)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(filepath.Base(at))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", at)
	}
	return b.file(source{root: root, rel: filepath.Base(at), name: name, info: info})
}

// tree packs the directory at as name. skip (nil keeps all) is asked with paths
// relative to it. Entries that vanish meanwhile are left out; the directory
// itself must be there.
func (b *writer) tree(name, at string, skip func(rel string) bool) error {
	root, err := os.OpenRoot(at)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(rel string, e fs.DirEntry, err error) error {
		if cerr := b.ctx.Err(); cerr != nil {
			return cerr
		}
		if rel != "." && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		pass := skip != nil && skip(rel)
		if to := path.Join(name, rel); !pass && !validName(to) {
			// Some program's odd file must not keep all others from their backup.
			pass = true
			b.unnamed(to)
		}
		if pass {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := root.Lstat(rel)
		if errors.Is(err, fs.ErrNotExist) && rel != "." {
			return nil
		}
		if err != nil {
			return err
		}
		return b.entry(source{root: root, rel: rel, name: path.Join(name, rel), info: info})
	})
}

// source is one thing to pack.
type source struct {
	root *os.Root
	rel  string
	name string // in the backup
	info fs.FileInfo
	kind string // kindSQLite for a database, whose copy it is
	like fs.FileInfo
}

func (b *writer) entry(s source) error {
	switch {
	case s.info.IsDir():
		return b.dir(s)
	case !s.info.Mode().IsRegular():
		if len(b.index.Skipped) < maxSkipped {
			b.index.Skipped = append(b.index.Skipped, s.name)
		}
		return nil
	}
	err := b.file(s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (b *writer) dir(s source) error {
	if b.dirs[s.name] {
		return nil
	}
	b.dirs[s.name] = true
	h := header(s)
	h.Typeflag, h.Name, h.Size = tar.TypeDir, s.name+"/", 0
	return b.tw.WriteHeader(h)
}

// header has what Restore needs to make the same file again.
func header(s source) *tar.Header {
	like := s.info
	if s.like != nil {
		like = s.like
	}
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: s.name, Size: s.info.Size(), Mode: int64(like.Mode().Perm()),
		ModTime: like.ModTime().Truncate(time.Second), Format: tar.FormatPAX,
	}
	h.Uid, h.Gid = owner(like)
	if s.kind != "" {
		h.PAXRecords = map[string]string{kindRecord: s.kind}
	}
	return h
}

// file packs a regular file as it is at this moment.
func (b *writer) file(s source) error {
	f, size, done, err := b.still(s)
	if err != nil {
		return err
	}
	defer done()
	h := header(s)
	h.Size = size
	if err := b.tw.WriteHeader(h); err != nil {
		return err
	}
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(b.tw, hash), f); err != nil {
		return fmt.Errorf("pack %s: %w", s.name, err)
	}
	b.index.Entries = append(b.index.Entries, entry{Path: s.name, Size: size, SHA256: hex.EncodeToString(hash.Sum(nil))})
	b.index.Bytes += size
	return nil
}

// checked packs a database: a copy of it, made by SQLite.
func (b *writer) checked(name, at string) error {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	copied := filepath.Join(b.scratch, "copy.db")
	defer os.Remove(copied)
	if err := registry.CopySQLite(b.ctx, at, copied); err != nil {
		return err
	}
	return b.database(name, copied, info)
}

// database packs the copy of a database that lies at; like is the original.
func (b *writer) database(name, at string, like fs.FileInfo) error {
	problem, err := registry.CheckSQLite(b.ctx, at)
	if err != nil {
		return err
	}
	if problem != "" {
		b.index.Damaged = append(b.index.Damaged, Damage{Path: name, Problem: problem})
	}
	root, err := os.OpenRoot(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(filepath.Base(at))
	if err != nil {
		return err
	}
	b.index.Databases++
	return b.file(source{root: root, rel: filepath.Base(at), name: name, info: info, kind: kindSQLite, like: like})
}

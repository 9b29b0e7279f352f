package archive

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// Pack writes the directory dir as a gzipped tar stream below the root
// directory root ("" writes a flat bundle). The same names, contents and
// permission classes always give the same bytes: entries are sorted, times
// are zero and owners are fixed, so that an unchanged formation is recognised
// by its checksum.
//
// exclude (nil keeps all) is asked with the slash path relative to dir; a
// refused directory is not entered. A symbolic link or any other special file
// is an error that names it, because no server would take the bundle.
func Pack(w io.Writer, dir, root string, exclude func(rel string, isDir bool) bool) error {
	src, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer src.Close()
	gz := gzip.NewWriter(w)
	p := &packer{src: src, tw: tar.NewWriter(gz), root: root, exclude: exclude}
	if err := fs.WalkDir(src.FS(), ".", p.visit); err != nil {
		return err
	}
	if err := p.tw.Close(); err != nil {
		return fmt.Errorf("finish archive: %w", err)
	}
	if err := gz.Close(); err != nil {
		return fmt.Errorf("finish archive: %w", err)
	}
	return nil
}

type packer struct {
	src     *os.Root
	tw      *tar.Writer
	root    string
	exclude func(rel string, isDir bool) bool
}

// visit is an fs.WalkDirFunc; WalkDir's order is the sorted order of the
// bundle.
func (p *packer) visit(rel string, d fs.DirEntry, err error) error {
	if err != nil {
		return fmt.Errorf("read %s: %w", rel, err)
	}
	if rel != "." && p.exclude != nil && p.exclude(rel, d.IsDir()) {
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return fmt.Errorf("read %s: %w", rel, err)
	}
	switch name := path.Join(p.root, rel); {
	case name == ".":
		return nil // a flat bundle has no entry for its top
	case d.IsDir():
		return p.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
	case info.Mode().IsRegular():
		return p.file(rel, name, info)
	}
	return fmt.Errorf("%s is not a regular file or directory (%s); replace it by a copy or exclude it", rel, d.Type())
}

func (p *packer) file(rel, name string, info fs.FileInfo) error {
	f, err := p.src.Open(rel)
	if err != nil {
		return fmt.Errorf("read %s: %w", rel, err)
	}
	defer f.Close()
	if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: packMode(info.Mode())}); err != nil {
		return err
	}
	// One byte more than announced makes the tar writer fail on a file that
	// grows while it is read; a shorter one fails at the next header.
	if _, err := io.Copy(p.tw, f); err != nil {
		return fmt.Errorf("pack %s: %w", rel, err)
	}
	return nil
}

func (p *packer) header(h *tar.Header) error {
	h.Format = tar.FormatPAX
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("pack %s: %w", h.Name, err)
	}
	return nil
}

// packMode keeps what matters (runnable, private) and drops what the umask of
// the author's machine decided.
func packMode(m fs.FileMode) int64 {
	mode := int64(0o644)
	if m&0o111 != 0 {
		mode = 0o755
	}
	if m&0o077 == 0 {
		mode &= 0o700
	}
	return mode
}

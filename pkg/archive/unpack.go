package archive

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// tarTrailer is the end-of-archive marker: two blocks of zeros.
const tarTrailer = 1024

// node is what the archive has put at one path.
type node struct {
	path     string // as first spelled
	dir      bool
	explicit bool // has an entry of its own, not only children
}

// unpacker is one extraction. It owns no goroutine and is used once.
type unpacker struct {
	dst  *os.Root
	in   *compressed
	raw  *unpacked
	lim  Limits
	seen map[string]node // by fold(path)
	tops map[string]node // the top-level names among seen
	buf  []byte
}

func newUnpacker(dst *os.Root, in *compressed, lim Limits) *unpacker {
	return &unpacker{
		dst: dst, in: in, lim: lim,
		seen: make(map[string]node), tops: make(map[string]node),
		buf: make([]byte, 64<<10),
	}
}

// run reads the whole stream and makes its entries below dst.
func (u *unpacker) run() error {
	gz, err := gzip.NewReader(u.in)
	if err != nil {
		return u.readError("the body is not a gzip stream", err)
	}
	gz.Multistream(false)
	u.raw = &unpacked{ctx: u.in.ctx, r: gz, in: u.in, max: u.lim.MaxUnpacked, ratio: int64(u.lim.MaxRatio)}
	if err := u.entries(tar.NewReader(u.raw)); err != nil {
		return err
	}
	return u.end()
}

func (u *unpacker) entries(tr *tar.Reader) error {
	for count := 0; ; count++ {
		before := u.raw.n
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// Next also reports EOF when the stream simply stops between two
			// entries; only the marker proves that nothing was cut off.
			if u.raw.n-before < tarTrailer {
				return invalid("the archive is truncated: its end marker is missing")
			}
			return nil
		}
		if err != nil {
			return u.readError("the archive is damaged or truncated", err)
		}
		if count >= u.lim.MaxEntries {
			return u.tooMany()
		}
		if err := u.entry(tr, hdr); err != nil {
			return err
		}
	}
}

// end checks what follows the archive: padding of zeros, a right checksum,
// and then nothing.
func (u *unpacker) end() error {
	for {
		n, err := u.raw.Read(u.buf)
		for _, b := range u.buf[:n] {
			if b != 0 {
				return invalid("there is data after the end of the archive")
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.readError("the archive is damaged or truncated", err)
		}
	}
	switch _, err := u.in.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return u.readError("the bundle could not be read to its end", err)
	}
	return invalid("there is data after the end of the gzip stream; a bundle is one gzip stream")
}

func (u *unpacker) entry(tr *tar.Reader, hdr *tar.Header) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil // archive-wide attributes (git archive writes one); we use none
	}
	name, err := cleanName(hdr.Name)
	if err != nil {
		return err
	}
	dir := hdr.Typeflag == tar.TypeDir
	if !dir {
		if err := checkFile(hdr, name); err != nil {
			return err
		}
	}
	if name == "." {
		return nil
	}
	if err := u.claim(name, dir); err != nil {
		return err
	}
	if dir {
		return u.chmodDir(name, hdr.FileInfo().Mode())
	}
	return u.writeFile(tr, hdr, name)
}

// checkFile refuses everything but a plain regular file.
func checkFile(hdr *tar.Header, name string) error {
	kind := ""
	switch hdr.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		kind = "a symbolic link"
	case tar.TypeLink:
		kind = "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		kind = "a device"
	case tar.TypeFifo:
		kind = "a named pipe"
	default:
		kind = fmt.Sprintf("of the unknown type %q", hdr.Typeflag)
	}
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			kind = "a sparse file"
		}
	}
	switch {
	case kind != "":
		return invalid("entry %q is %s; only regular files and directories are allowed", hdr.Name, kind)
	case name == "." || strings.HasSuffix(hdr.Name, "/"):
		return invalid("entry %q is a file with the name of a directory", hdr.Name)
	}
	return nil
}

// claim records name and its parents and makes the missing directories. It
// refuses a second entry for the same path, also when only the case differs.
func (u *unpacker) claim(name string, dir bool) error {
	for i := range len(name) {
		if name[i] == '/' {
			if err := u.claimOne(name[:i], true, false); err != nil {
				return err
			}
		}
	}
	return u.claimOne(name, dir, true)
}

func (u *unpacker) claimOne(name string, dir, explicit bool) error {
	key := fold(name)
	old, ok := u.seen[key]
	switch {
	case !ok:
	case old.path != name:
		return invalid("entries %q and %q differ only in case", old.path, name)
	case old.dir != dir:
		return invalid("%q is both a file and a directory", name)
	case !dir || (explicit && old.explicit):
		return invalid("there are two entries for %q", name)
	}
	if !ok && len(u.seen) >= u.lim.MaxEntries {
		return u.tooMany()
	}
	n := node{path: name, dir: dir, explicit: explicit || old.explicit}
	u.seen[key] = n
	if !strings.Contains(name, "/") {
		u.tops[name] = n
	}
	if ok || !dir {
		return nil
	}
	if err := u.dst.Mkdir(name, 0o755); err != nil {
		return fmt.Errorf("make directory %s: %w", name, err)
	}
	return nil
}

func (u *unpacker) chmodDir(name string, mode fs.FileMode) error {
	if err := u.dst.Chmod(name, mode&0o755|0o700); err != nil {
		return fmt.Errorf("set mode of %s: %w", name, err)
	}
	return nil
}

// writeFile keeps the permission bits of the header, but never set-id bits or
// write access for others, and always access for the owner.
func (u *unpacker) writeFile(tr *tar.Reader, hdr *tar.Header, name string) error {
	mode := hdr.FileInfo().Mode()&0o755 | 0o600
	f, err := u.dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := u.copy(f, tr); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// copy tells apart the two sides that can fail: the archive and the disk.
func (u *unpacker) copy(f *os.File, tr *tar.Reader) error {
	for {
		n, err := tr.Read(u.buf)
		if n > 0 {
			if _, werr := f.Write(u.buf[:n]); werr != nil {
				return fmt.Errorf("write %s: %w", path.Base(f.Name()), werr)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return u.readError("the archive is damaged or truncated", err)
		}
	}
}

// root returns the directory to strip: the only top-level directory, or ""
// when the formation's files are at the top level.
func (u *unpacker) root() (string, error) {
	if len(u.tops) == 0 {
		return "", invalid("the archive is empty")
	}
	files, dir := false, ""
	for name, n := range u.tops {
		if n.dir {
			dir = name
		} else {
			files = true
		}
	}
	switch {
	case files:
		return "", nil
	case len(u.tops) == 1:
		return dir, nil
	}
	return "", invalid("the archive has %d root directories; a bundle has one, normally named like the formation", len(u.tops))
}

func (u *unpacker) tooMany() error {
	return tooLarge("the bundle has more than %d entries (limits.bundle.max_entries)", u.lim.MaxEntries)
}

// readError keeps limits and the caller's own errors, and turns what gzip and
// tar say about the bytes into an ExtractError.
func (u *unpacker) readError(what string, err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	if cause := u.in.ctx.Err(); cause != nil {
		return fmt.Errorf("read bundle: %w", cause)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("read bundle: %w", err)
	}
	return invalid("%s: %w", what, err)
}

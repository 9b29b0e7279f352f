// Package archive reads and writes formation bundles: one gzip stream that
// holds one tar archive with one root directory (or the files of a formation
// at the top level).
//
// Extract is written for bytes from strangers. Every limit is checked while
// the stream is read, names are checked before anything is created, all files
// are made through os.Root, and the destination appears by one rename or not
// at all. Pack is deterministic: the same directory gives the same bytes.
//
// The supervisor (Extract) and the client (Pack) import it.
package archive

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/fault"
)

// Limits bound what one bundle may cost. Zero or negative values take the
// value of DefaultLimits.
type Limits struct {
	// MaxBytes bounds the compressed stream.
	MaxBytes int64
	// MaxUnpacked bounds the decompressed stream, tar headers included.
	MaxUnpacked int64
	// MaxEntries bounds the files and directories made, with the parent
	// directories that have no entry of their own.
	MaxEntries int
	// MaxRatio bounds unpacked bytes per compressed byte; it counts from
	// ratioFloor unpacked bytes on, so that small text does not trip it.
	MaxRatio int
}

// DefaultLimits returns the limits of server.md 7.2: 1 GiB compressed, 4 GiB
// unpacked, 50000 entries, ratio 100.
func DefaultLimits() Limits {
	return Limits{MaxBytes: 1 << 30, MaxUnpacked: 4 << 30, MaxEntries: 50000, MaxRatio: 100}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.MaxBytes <= 0 {
		l.MaxBytes = d.MaxBytes
	}
	if l.MaxUnpacked <= 0 {
		l.MaxUnpacked = d.MaxUnpacked
	}
	if l.MaxEntries <= 0 {
		l.MaxEntries = d.MaxEntries
	}
	if l.MaxRatio <= 0 {
		l.MaxRatio = d.MaxRatio
	}
	return l
}

const (
	// maxPath and maxDepth keep every unpacked path usable by ordinary tools.
	maxPath  = 1024 // bytes of a cleaned path
	maxDepth = 32   // components of a cleaned path
	maxName  = 255  // bytes of one component

	// ratioFloor is where MaxRatio begins to count.
	ratioFloor = 1 << 20
)

// Info tells what was unpacked.
type Info struct {
	Root     string // name of the root directory that was stripped, "" for a flat bundle
	Entries  int    // files and directories made
	Bytes    int64  // compressed bytes read
	Unpacked int64  // decompressed bytes read
}

// Extract unpacks the gzipped tar stream r into the new directory dst, whose
// parent must exist. A single root directory is stripped.
//
// A bundle that breaks a rule is fault.Invalid "ExtractError" naming the
// entry; one that breaks a limit is fault.TooLarge "PayloadTooLarge" naming
// the limit. Any other error is the disk's or ctx's. After an error dst does
// not exist and nothing is left beside it.
func Extract(ctx context.Context, r io.Reader, dst string, lim Limits) (Info, error) {
	if _, err := os.Lstat(dst); err == nil {
		return Info{}, fmt.Errorf("unpack into %s: %w", filepath.Base(dst), os.ErrExist)
	}
	tmp := dst + ".unpack"
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return Info{}, fmt.Errorf("make staging directory: %w", err)
	}
	defer os.RemoveAll(tmp)

	root, err := os.OpenRoot(tmp)
	if err != nil {
		return Info{}, fmt.Errorf("open staging directory: %w", err)
	}
	defer root.Close()

	in := &compressed{ctx: ctx, r: bufio.NewReaderSize(r, 64<<10), max: lim.withDefaults().MaxBytes}
	u := newUnpacker(root, in, lim.withDefaults())
	if err := u.run(); err != nil {
		return Info{}, err
	}
	top, err := u.root()
	if err != nil {
		return Info{}, err
	}
	info := Info{Root: top, Entries: len(u.seen), Bytes: in.n, Unpacked: u.raw.n}
	if err := os.Rename(filepath.Join(tmp, top), dst); err != nil {
		return Info{}, fmt.Errorf("publish unpacked directory: %w", err)
	}
	return info, nil
}

func invalid(format string, args ...any) error {
	return fault.Errorf(fault.Invalid, "ExtractError", format, args...)
}

func tooLarge(format string, args ...any) error {
	return fault.Errorf(fault.TooLarge, "PayloadTooLarge", format, args...)
}

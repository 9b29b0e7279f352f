package hub

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// LibraryEnv names the ONNX Runtime library in the environment.
const LibraryEnv = "SVC_ONNXRUNTIME_LIB"

// libraryDir is the folder of a cache that holds the ONNX Runtime.
const libraryDir = "onnxruntime"

// Limits of an archive with the library.
const (
	archiveLimit = 1 << 30   // bytes that come
	unpackLimit  = 4 << 30   // bytes that are looked through
	libraryLimit = 512 << 20 // bytes of the library
)

// Library is an ONNX Runtime to fetch.
type Library struct {
	Version string // part of its path in the cache
	// URL is a tar.gz archive that holds it, or the library itself.
	URL string
	// SHA256 is that of what is at the URL, 64 lower-case hex digits.
	SHA256 string
	Arch   string // as GOARCH has it; one file of an archive is for it
}

// The release that FetchLibrary takes unless told otherwise: the first one of
// the API that package ort is compiled with.
const (
	release    = "1.24.4"
	releaseURL = "https://github.com/microsoft/onnxruntime/releases/download/v" + release + "/onnxruntime-linux-"
)

// DefaultLibrary is the official build for a system, as GOOS and GOARCH name it;
// false when there is none.
func DefaultLibrary(goos, goarch string) (Library, bool) {
	l := Library{Version: release, Arch: goarch}
	switch goos + "/" + goarch {
	case "linux/amd64":
		l.URL = releaseURL + "x64-" + release + ".tgz"
		l.SHA256 = "3a211fbea252c1e66290658f1b735b772056149f28321e71c308942cdb54b747"
	case "linux/arm64":
		l.URL = releaseURL + "aarch64-" + release + ".tgz"
		l.SHA256 = "866109a9248d057671a039b9d725be4bd86888e3754140e6701ec621be9d4d7e"
	default:
		return Library{}, false
	}
	return l, true
}

// FindLibrary returns the path of the ONNX Runtime library: the setting when it
// is not "", the one that the environment names, or the one that came last into
// one of the caches. "" is none. A setting or variable that names no file is an
// error: who wrote it wants to know.
func FindLibrary(setting string, lookup func(string) (string, bool), caches ...string) (string, error) {
	named := setting
	if named == "" {
		named, _ = lookup(LibraryEnv)
	}
	if named != "" {
		if info, err := os.Stat(named); err != nil || info.IsDir() {
			return "", fmt.Errorf("the ONNX Runtime library %s is not there", named)
		}
		return named, nil
	}
	for _, dir := range caches {
		found, err := newest(filepath.Join(dir, libraryDir))
		if found != "" || err != nil {
			return found, err
		}
	}
	return "", nil
}

// newest returns the library in a folder, or in one of its folders, that came
// there last.
func newest(dir string) (string, error) {
	var best string
	var when int64
	for _, pattern := range []string{"libonnxruntime.so*", filepath.Join("*", "libonnxruntime.so*")} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", fmt.Errorf("look for the ONNX Runtime in %s: %w", dir, err)
		}
		for _, name := range names {
			info, err := os.Stat(name)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if at := info.ModTime().UnixNano(); best == "" || at > when || at == when && name > best {
				best, when = name, at
			}
		}
	}
	return best, nil
}

// LibraryPath is where FetchLibrary leaves a library.
func (h *Hub) LibraryPath(l Library) string {
	return filepath.Join(h.cfg.Dir, libraryDir, l.Version, "libonnxruntime.so")
}

// FetchLibrary returns the path of the library in the cache. What comes is
// checked against its hash before it is looked into, and the library appears
// under its name at once or not at all. progress and errors are as those of
// Fetch; the hub itself is not asked.
func (h *Hub) FetchLibrary(ctx context.Context, l Library, progress func(Step)) (string, error) {
	to, what := h.LibraryPath(l), "the ONNX Runtime "+l.Version
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	from, err := url.Parse(l.URL)
	if err != nil || from.Host == "" || len(l.SHA256) != 64 || !sum().MatchString(l.SHA256) {
		return "", fault.New(fault.Invalid, NameBadModel, fmt.Sprintf("%s: want an address like https://host/file.tgz and 64 lower-case hex digits of SHA-256", what))
	}
	if h.cfg.Offline {
		return "", fault.New(fault.Unavailable, NameOffline, what+" is not in the cache, and fetching is switched off (HF_HUB_OFFLINE)")
	}
	if progress == nil {
		progress = func(Step) {}
	}
	dir := filepath.Join(h.cfg.Dir, libraryDir, ".fetch")
	for _, d := range []string{filepath.Join(dir, "blobs"), filepath.Dir(to)} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // formations of other users read the cache
			return "", cacheFault(what, err)
		}
	}
	unlock, err := filelock.Take(ctx, filepath.Join(dir, ".lock"), 0o644, func() { progress(Step{Waiting: true}) })
	if err != nil {
		return "", cacheFault(what, err)
	}
	defer unlock()
	if _, err := os.Stat(to); err == nil { // somebody else was quicker
		return to, nil
	}
	limited := *h
	limited.cfg.MaxFile = min(limited.cfg.MaxFile, archiveLimit)
	f := &fetch{hub: &limited, what: what, host: from.Host, dir: dir, progress: progress}
	if err := f.library(ctx, l, from, to); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("fetch %s: %w", what, context.Cause(ctx))
		}
		return "", err
	}
	return to, nil
}

// library fetches the archive and takes the library out of it.
func (f *fetch) library(ctx context.Context, l Library, from *url.URL, to string) error {
	one := file{name: path.Base(from.Path), size: -1, hash: l.SHA256, at: from}
	f.step.File = one.name
	f.tell(true)
	if err := f.blob(ctx, one); err != nil {
		return err
	}
	f.tell(true)
	archive := f.blobPath(one)
	unpacked := filepath.Join(f.dir, "unpacked")
	if err := f.unpack(archive, unpacked, l.Arch); err != nil {
		// It is what was asked for, and would be so again.
		if gone := os.Remove(archive); gone != nil {
			return cacheFault(f.what, gone)
		}
		return err
	}
	if err := os.Rename(unpacked, to); err != nil {
		return cacheFault(f.what, err)
	}
	if err := os.Remove(archive); err != nil {
		return cacheFault(f.what, err)
	}
	return nil
}

// libraryName is what an archive calls the library: the companions of other
// engines have other names.
var libraryName = lazily(`^libonnxruntime\.so(\.\d+)*$`)

// unpack writes the library for an architecture to a file, from an archive or
// from the library itself.
func (f *fetch) unpack(archive, to, arch string) error {
	in, err := os.Open(archive)
	if err != nil {
		return cacheFault(f.what, err)
	}
	defer in.Close()
	r := bufio.NewReader(in)
	head, err := r.Peek(4)
	if err != nil {
		return f.unfit("it is empty")
	}
	if string(head) == elf.ELFMAG {
		return f.keep(r, to, arch)
	}
	if !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return f.unfit("it is neither a tar.gz archive nor a library of Linux")
	}
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return f.unfit("%v", err)
	}
	files := tar.NewReader(io.LimitReader(unzipped, unpackLimit))
	last := f.unfit("the archive has no libonnxruntime.so")
	for {
		entry, err := files.Next()
		switch {
		case errors.Is(err, io.EOF):
			return last
		case err != nil:
			return f.unfit("the archive is damaged: %v", err)
		case entry.Typeflag != tar.TypeReg || !libraryName().MatchString(path.Base(entry.Name)):
			continue
		}
		if last = f.keep(files, to, arch); fault.NameOf(last) != NameUnsuitable {
			return last
		}
	}
}

// machines are the architectures that a library can be for.
var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH,
	"ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

// keep writes a library to a file, and refuses one for another architecture.
func (f *fetch) keep(in io.Reader, to, arch string) (err error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644) //nolint:gosec // formations of other users read the cache
	if err != nil {
		return cacheFault(f.what, err)
	}
	defer func() {
		if closed := out.Close(); err == nil && closed != nil {
			err = cacheFault(f.what, closed)
		}
	}()
	n, err := io.Copy(out, io.LimitReader(in, libraryLimit+1))
	var disk *os.PathError
	switch {
	case errors.As(err, &disk):
		return cacheFault(f.what, err)
	case err != nil:
		return f.unfit("the archive is damaged: %v", err)
	case n > libraryLimit:
		return f.tooLarge("the library", n, libraryLimit)
	}
	library, err := elf.NewFile(out)
	if err != nil {
		return f.unfit("the library is damaged: %v", err)
	}
	if library.Type != elf.ET_DYN || library.Machine != machines[arch] {
		return f.unfit("it is for %s, and this is %s", strings.TrimPrefix(library.Machine.String(), "EM_"), arch)
	}
	if err := out.Sync(); err != nil {
		return cacheFault(f.what, err)
	}
	return nil
}

func (f *fetch) unfit(format string, args ...any) error {
	return fault.New(fault.Unprocessable, NameUnsuitable, f.what+" can't be used: "+fmt.Sprintf(format, args...))
}

package embedtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/agentformation/service/pkg/embedder/hub"
)

// Library is the path of the ONNX Runtime that "make deps" leaves. A test that
// needs it fails without: the engine it proves is the one that people use.
func Library(t testing.TB) string {
	t.Helper()
	cache, err := hub.CacheDir(os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	path, err := hub.FindLibrary("", os.LookupEnv, cache)
	if err != nil || path == "" {
		t.Fatalf("no ONNX Runtime in %s (%v): run make deps", cache, err)
	}
	return path
}

// Archive is a tar.gz of files by their path, hardly packed: what it holds may be
// large.
func Archive(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// FakeLibrary is the head of a shared library for a machine, and nothing that
// could be loaded.
func FakeLibrary(machine elf.Machine) []byte {
	head := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Shentsize: 64}
	copy(head.Ident[:], elf.ELFMAG)
	head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, head) // a buffer takes all
	return out.Bytes()
}

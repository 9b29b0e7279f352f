package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/fault"
)

// entry is one tar entry of a test bundle; a zero type is a regular file.
type entry struct {
	name string
	typ  byte
	body string
	mode int64
	link string
	pax  map[string]string
}

func tarBytes(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	writeEntries(t, tw, entries)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func writeEntries(t testing.TB, tw *tar.Writer, entries []entry) {
	t.Helper()
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.typ, Mode: e.mode, Size: int64(len(e.body)), Linkname: e.link, PAXRecords: e.pax}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: e.typ, Name: e.name, PAXRecords: map[string]string{"comment": "abc"}}
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatalf("header %q: %v", e.name, err)
		}
		if _, err := io.WriteString(tw, e.body); err != nil {
			t.Fatal(err)
		}
	}
}

func gz(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func bundle(t testing.TB, entries ...entry) []byte { return gz(t, tarBytes(t, entries...)) }

// tree lists dir as path -> "dir" or content.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if d.IsDir() {
			got[rel] = "dir"
			return nil
		}
		if !d.Type().IsRegular() {
			t.Errorf("%s is %s: only files and directories may be made", rel, d.Type())
			return nil
		}
		b, err := os.ReadFile(p)
		got[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestExtract_UnpacksAllLayouts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body []byte
		root string
		want map[string]string
	}{
		"one root directory": {
			body: bundle(t, entry{name: "hello/", typ: tar.TypeDir, mode: 0o755}, entry{name: "hello/formation.afs", body: "id: hello"}, entry{name: "hello/agents/a.afs", body: "a"}),
			root: "hello",
			want: map[string]string{"formation.afs": "id: hello", "agents": "dir", "agents/a.afs": "a"},
		},
		"root without an entry of its own, and a late one": {
			body: bundle(t, entry{name: "hello/formation.afs", body: "x"}, entry{name: "hello/", typ: tar.TypeDir, mode: 0o500}),
			root: "hello",
			want: map[string]string{"formation.afs": "x"},
		},
		"root with a child of the same name": {
			body: bundle(t, entry{name: "hello/hello/x", body: "x"}, entry{name: "hello/formation.afs", body: "y"}),
			root: "hello",
			want: map[string]string{"hello": "dir", "hello/x": "x", "formation.afs": "y"},
		},
		"flat, as tar czf x . makes it": {
			body: bundle(t, entry{name: "./", typ: tar.TypeDir, mode: 0o755}, entry{name: "./agents/", typ: tar.TypeDir, mode: 0o755}, entry{name: "./formation.yaml", body: "x"}),
			want: map[string]string{"agents": "dir", "formation.yaml": "x"},
		},
		"git archive's global header": {
			body: bundle(t, entry{name: "pax_global_header", typ: tar.TypeXGlobalHeader}, entry{name: "h/formation.afs", body: "x"}),
			root: "h",
			want: map[string]string{"formation.afs": "x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dst := filepath.Join(parent, "1")
			info, err := archive.Extract(t.Context(), bytes.NewReader(tc.body), dst, archive.Limits{})
			if err != nil {
				t.Fatalf("extract: %v", err)
			}
			if diff := cmp.Diff(tc.want, tree(t, dst)); diff != "" {
				t.Errorf("unpacked tree (-want +got):\n%s", diff)
			}
			if info.Root != tc.root || info.Bytes != int64(len(tc.body)) {
				t.Errorf("info = %+v, want root %q and %d bytes", info, tc.root, len(tc.body))
			}
			assertOnly(t, parent, "1")
		})
	}
}

func TestExtract_KeepsModesButNoSetIDOrForeignWrite(t *testing.T) {
	t.Parallel()
	dst := filepath.Join(t.TempDir(), "1")
	body := bundle(
		t,
		entry{name: "h/", typ: tar.TypeDir, mode: 0o777},
		entry{name: "h/run.sh", mode: 0o4777, body: "x"},
		entry{name: "h/.key", mode: 0o600, body: "x"},
		entry{name: "h/none", mode: 0o1, body: "x"},
	)
	if _, err := archive.Extract(t.Context(), bytes.NewReader(body), dst, archive.Limits{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{".": fs.ModeDir | 0o755, "run.sh": 0o755, ".key": 0o600, "none": 0o601} {
		st, err := os.Stat(filepath.Join(dst, name))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode() != want {
			t.Errorf("mode of %s = %v, want %v", name, st.Mode(), want)
		}
	}
}

// assertOnly fails unless dir holds exactly the given names.
func assertOnly(t testing.TB, dir string, want ...string) {
	t.Helper()
	des, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range des {
		got = append(got, d.Name())
	}
	if !cmp.Equal(want, got) {
		t.Errorf("left on disk: %q, want %q", got, want)
	}
}

// hostile is every bundle that must be refused, with the kind of refusal and
// a part of its message.
func hostile(t testing.TB) map[string]struct {
	body []byte
	lim  archive.Limits
	kind fault.Kind
	text string
} {
	t.Helper()
	ok := entry{name: "h/formation.afs", body: "id: h"}
	good := bundle(t, ok)
	raw := tarBytes(t, ok)
	noise := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	badCRC := bytes.Clone(good)
	badCRC[len(badCRC)-8] ^= 0xff
	badSize := bytes.Clone(good)
	badSize[len(badSize)-1] ^= 0xff
	many := make([]entry, 1001)
	for i := range many {
		many[i] = entry{name: fmt.Sprintf("h/%d", i)}
	}
	type c = struct {
		body []byte
		lim  archive.Limits
		kind fault.Kind
		text string
	}
	bad := func(text string, entries ...entry) c {
		return c{body: bundle(t, entries...), kind: fault.Invalid, text: text}
	}
	return map[string]c{
		"dot dot":                     bad("..", ok, entry{name: "../evil", body: "x"}),
		"dot dot inside":              bad("..", ok, entry{name: "h/../../evil", body: "x"}),
		"dot dot that stays inside":   bad("..", ok, entry{name: "h/a/../b", body: "x"}),
		"absolute":                    bad("absolute", entry{name: "/etc/evil", body: "x"}),
		"backslash":                   bad("backslash", entry{name: `h\..\evil`, body: "x"}),
		"newline":                     bad("control", entry{name: "h/a\nb", body: "x"}),
		"not UTF-8":                   bad("UTF-8", entry{name: "h/\xff\xfe", body: "x"}),
		"symbolic link":               bad("symbolic link", entry{name: "h/l", typ: tar.TypeSymlink, link: "/etc/passwd"}),
		"symbolic link, then a write": bad("symbolic link", entry{name: "h/l", typ: tar.TypeSymlink, link: "/tmp"}, entry{name: "h/l/evil", body: "x"}),
		"hard link":                   bad("hard link", ok, entry{name: "h/l", typ: tar.TypeLink, link: "h/formation.afs"}),
		"character device":            bad("device", entry{name: "h/d", typ: tar.TypeChar}),
		"block device":                bad("device", entry{name: "h/d", typ: tar.TypeBlock}),
		"named pipe":                  bad("pipe", entry{name: "h/p", typ: tar.TypeFifo}),
		"unknown type":                bad("unknown type", entry{name: "h/x", typ: 'Q'}),
		"sparse file":                 {body: gz(t, sparseTar(t)), kind: fault.Invalid, text: "sparse"},
		"duplicate file":              bad("two entries", ok, ok),
		"duplicate after cleaning":    bad("two entries", ok, entry{name: "h//./formation.afs", body: "x"}),
		"duplicate directory":         bad("two entries", entry{name: "h/", typ: tar.TypeDir}, entry{name: "h/", typ: tar.TypeDir}),
		"duplicate by case":           bad("differ only in case", ok, entry{name: "h/Formation.AFS", body: "x"}),
		"directories by case":         bad("differ only in case", entry{name: "h/a/x", body: "x"}, entry{name: "h/A/y", body: "x"}),
		"file, then directory":        bad("both a file and a directory", entry{name: "h/a", body: "x"}, entry{name: "h/a/b", body: "x"}),
		"directory, then file":        bad("both a file and a directory", entry{name: "h/a/b", body: "x"}, entry{name: "h/a", body: "x"}),
		"two roots":                   bad("2 root directories", entry{name: "a/x", body: "x"}, entry{name: "b/x", body: "x"}),
		"file named .":                bad("name of a directory", entry{name: ".", body: "x"}),
		"too deep":                    bad("levels deep", entry{name: "h/" + strings.Repeat("d/", 40) + "x", body: "x"}),
		"too long a name":             bad("longer than", entry{name: "h/" + strings.Repeat("n", 256), body: "x"}),
		"too long a path":             bad("at most 1024", entry{name: "h/" + strings.Repeat(strings.Repeat("n", 200)+"/", 6) + "x", body: "x"}),
		"empty archive":               bad("empty"),
		"empty body":                  {body: nil, kind: fault.Invalid, text: "not a gzip stream"},
		"not gzip":                    {body: raw, kind: fault.Invalid, text: "not a gzip stream"},
		"gzip, not tar":               {body: gz(t, noise[:4096]), kind: fault.Invalid, text: "damaged"},
		"truncated gzip":              {body: good[:len(good)/2], kind: fault.Invalid, text: "damaged or truncated"},
		"gzip without its trailer":    {body: good[:len(good)-8], kind: fault.Invalid, text: "damaged or truncated"},
		"truncated tar in whole gzip": {body: gz(t, raw[:512]), kind: fault.Invalid, text: "truncated"},
		"tar without end marker":      {body: gz(t, raw[:1024]), kind: fault.Invalid, text: "end marker"},
		"tar with half an end marker": {body: gz(t, raw[:1536]), kind: fault.Invalid, text: "end marker"},
		"wrong checksum":              {body: badCRC, kind: fault.Invalid, text: "checksum"},
		"wrong length in the trailer": {body: badSize, kind: fault.Invalid, text: "checksum"},
		"garbage after the gzip":      {body: append(bytes.Clone(good), "garbage"...), kind: fault.Invalid, text: "after the end of the gzip"},
		"zeros after the gzip":        {body: append(bytes.Clone(good), make([]byte, 512)...), kind: fault.Invalid, text: "after the end of the gzip"},
		"second gzip member":          {body: append(bytes.Clone(good), good...), kind: fault.Invalid, text: "after the end of the gzip"},
		"garbage after the tar":       {body: gz(t, append(bytes.Clone(raw), "garbage"...)), kind: fault.Invalid, text: "after the end of the archive"},
		"second tar":                  {body: gz(t, append(bytes.Clone(raw), raw...)), kind: fault.Invalid, text: "after the end of the archive"},
		"more bytes than allowed":     {body: bundle(t, entry{name: "h/x", body: string(noise)}), lim: archive.Limits{MaxBytes: 4096}, kind: fault.TooLarge, text: "max_bytes"},
		"unpacks to more than allowed": {
			body: bundle(t, entry{name: "h/x", body: string(noise)}), lim: archive.Limits{MaxUnpacked: 4096}, kind: fault.TooLarge, text: "max_unpacked_bytes",
		},
		"more entries than allowed": {body: bundle(t, many...), lim: archive.Limits{MaxEntries: 1000}, kind: fault.TooLarge, text: "max_entries"},
		"more parents than allowed": {
			body: bundle(t, entry{name: "h/" + strings.Repeat("d/", 20) + "x"}), lim: archive.Limits{MaxEntries: 10}, kind: fault.TooLarge, text: "max_entries",
		},
		"higher ratio than allowed": {body: bundle(t, entry{name: "h/zeros", body: strings.Repeat("\x00", 4<<20)}), kind: fault.TooLarge, text: "max_ratio"},
		"ratio after a good start": {
			body: bundle(t, entry{name: "h/noise", body: string(noise[:1000])}, entry{name: "h/zeros", body: strings.Repeat("\x00", 8<<20)}),
			kind: fault.TooLarge, text: "max_ratio",
		},
	}
}

// sparseTar is a GNU sparse file: 20 TiB long, no data.
func sparseTar(t testing.TB) []byte {
	t.Helper()
	b := tarBytes(t, entry{name: "h/sparse"})
	b[156] = 'S'
	copy(b[257:], "ustar  \x00")
	copy(b[483:], "\x80\x00\x00\x00\x00\x00\x14\x00\x00\x00\x00\x00")
	sum := 0
	copy(b[148:156], "        ")
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestExtract_RefusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			_, err := archive.Extract(t.Context(), bytes.NewReader(tc.body), filepath.Join(parent, "1"), tc.lim)
			if err == nil {
				t.Fatalf("accepted: %v", tree(t, parent))
			}
			wantName := map[fault.Kind]string{fault.Invalid: "ExtractError", fault.TooLarge: "PayloadTooLarge"}[tc.kind]
			if fault.KindOf(err) != tc.kind || fault.NameOf(err) != wantName {
				t.Errorf("error = %v (%v %s), want %v %s", err, fault.KindOf(err), fault.NameOf(err), tc.kind, wantName)
			}
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("message %q does not say %q", err, tc.text)
			}
			assertOnly(t, parent)
		})
	}
}

func TestExtract_RefusesOneEntryOverTheDefaultLimit(t *testing.T) {
	t.Parallel()
	// One long-lived writer: a slice of fifty thousand entries would be
	// slower to make than to unpack.
	pr, pw := io.Pipe()
	go func() {
		zw := gzip.NewWriter(pw)
		tw := tar.NewWriter(zw)
		for i := 0; ; i++ {
			if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("h/%d", i), Typeflag: tar.TypeReg, Mode: 0o600}); err != nil {
				return // the reader refused and closed its end
			}
		}
	}()
	defer pr.Close()
	parent := t.TempDir()
	_, err := archive.Extract(t.Context(), pr, filepath.Join(parent, "1"), archive.DefaultLimits())
	if fault.KindOf(err) != fault.TooLarge || !strings.Contains(err.Error(), "50000 entries") {
		t.Errorf("error = %v, want the limit of 50000 entries", err)
	}
	assertOnly(t, parent)
}

func TestExtract_EndsWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	body := bundle(t, entry{name: "h/a", body: "x"})
	parent := t.TempDir()
	r := io.MultiReader(bytes.NewReader(body[:10]), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }), bytes.NewReader(body[10:]))
	_, err := archive.Extract(ctx, r, filepath.Join(parent, "1"), archive.Limits{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
	assertOnly(t, parent)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) {
	if n, err := f(p); n > 0 || err != nil {
		return n, err
	}
	return 0, io.EOF
}

func TestExtract_KeepsAnExistingDestination(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dst := filepath.Join(parent, "1")
	if err := os.Mkdir(dst, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := archive.Extract(t.Context(), bytes.NewReader(bundle(t, entry{name: "h/a"})), dst, archive.Limits{})
	if !errors.Is(err, os.ErrExist) {
		t.Errorf("error = %v, want os.ErrExist", err)
	}
	assertOnly(t, parent, "1")
	assertOnly(t, dst)
}

func FuzzExtract(f *testing.F) {
	f.Add(bundle(f, entry{name: "h/formation.afs", body: "x"}))
	for _, tc := range hostile(f) {
		if len(tc.body) < 64<<10 {
			f.Add(tc.body)
		}
	}
	lim := archive.Limits{MaxBytes: 1 << 20, MaxUnpacked: 4 << 20, MaxEntries: 100, MaxRatio: 100}
	f.Fuzz(func(t *testing.T, body []byte) {
		parent := t.TempDir()
		dst := filepath.Join(parent, "1")
		info, err := archive.Extract(t.Context(), bytes.NewReader(body), dst, lim)
		if err != nil {
			assertOnly(t, parent)
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge {
				t.Fatalf("bytes alone caused an error of ours: %v", err)
			}
			return
		}
		assertOnly(t, parent, "1")
		if n := len(tree(t, dst)); n > lim.MaxEntries || info.Entries < n {
			t.Fatalf("%d paths made, info says %d", n, info.Entries)
		}
	})
}

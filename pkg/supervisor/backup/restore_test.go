package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
)

func TestVerify_NoticesEveryChangedByte(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	if _, err := Verify(t.Context(), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	step := 3 // each costs a check of the registry
	if testing.Short() {
		step = 37
	}
	for i := 0; i < len(data); i += step {
		bad := bytes.Clone(data)
		bad[i] ^= 1 << (i % 8)
		if _, err := Verify(t.Context(), bytes.NewReader(bad)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("byte %d of %d: %v; want that it is damaged", i, len(data), err)
		}
	}
}

func TestVerify_NoticesEveryTruncation(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	for n := 0; n < len(data); n += 1 + n/50 {
		_, err := Verify(t.Context(), bytes.NewReader(data[:n]))
		assertFault(t, err, fault.Invalid, "BackupDamaged", "")
	}
	for n := range sealSize {
		_, err := Verify(t.Context(), bytes.NewReader(data[:len(data)-1-n]))
		assertFault(t, err, fault.Invalid, "BackupDamaged", "")
	}
	_, err := Verify(t.Context(), bytes.NewReader(append(bytes.Clone(data), 0)))
	assertFault(t, err, fault.Invalid, "BackupDamaged", "")
	_, err = Verify(t.Context(), bytes.NewReader(append(bytes.Clone(data), data...)))
	assertFault(t, err, fault.Invalid, "BackupDamaged", "")
}

func TestBackup_IsReadByTar(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "tar", "-xzf", "-", "-C", dir)
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Fatalf("tar: %v %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "config.yaml")); err != nil || string(text) != "server_id: server-test\n" {
		t.Errorf("settings = %q, %v", text, err)
	}
}

// item is an entry of a backup made by hand.
type item struct {
	name, text string
	kind       byte
	pax        map[string]string
}

// forge makes a backup with a right seal, whatever stands in it. An item with
// the name of the index has its text completed by the entries before it.
func forge(t *testing.T, format int, items ...item) []byte {
	t.Helper()
	var buf bytes.Buffer
	out := newSealer(&buf)
	gz := gzip.NewWriter(out)
	tw := tar.NewWriter(gz)
	ix := index{}
	add := func(i item) {
		if i.kind == 0 {
			i.kind = tar.TypeReg
		}
		h := &tar.Header{Typeflag: i.kind, Name: i.name, Mode: 0o600, Size: int64(len(i.text)), Linkname: "x", PAXRecords: i.pax}
		if i.kind != tar.TypeReg {
			h.Size, i.text = 0, ""
		} else {
			h.Linkname = ""
			sum := sha256.Sum256([]byte(i.text))
			ix.Entries = append(ix.Entries, entry{i.name, h.Size, hex.EncodeToString(sum[:])})
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, i.text); err != nil {
			t.Fatal(err)
		}
	}
	first, err := json.Marshal(head{Format: format, Version: "9.9.9"})
	if err != nil {
		t.Fatal(err)
	}
	add(item{name: headName, text: string(first)})
	ix.Entries = nil
	for _, i := range items {
		if i.name == indexName {
			if dir, ok := strings.CutPrefix(i.text, "drop "); ok {
				ix.Drop = []string{dir}
			}
			text, err := json.Marshal(ix)
			if err != nil {
				t.Fatal(err)
			}
			if i.text == "" || ix.Drop != nil {
				i.text = string(text)
			}
		}
		add(i)
	}
	if err := errors.Join(tw.Close(), gz.Close(), out.close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestRestore_RefusesWhatNoBackupHas(t *testing.T) {
	t.Parallel()
	reg, end := item{name: registryName, text: "x"}, item{name: indexName}
	named := func(name string) []byte { return forge(t, format, reg, item{name: name, text: "x"}, end) }
	linked := func(kind byte) []byte { return forge(t, format, reg, item{name: "link", kind: kind}, end) }
	for name, tc := range map[string]struct {
		data       []byte
		name, text string
	}{
		"nothing":          {nil, nameDamaged, "no backup"},
		"a text":           {[]byte(strings.Repeat("no backup at all ", 100)), nameDamaged, "no backup"},
		"a newer format":   {forge(t, format+1, reg, end), nameFormat, "written by version 9.9.9"},
		"no format":        {forge(t, 0, reg, end), nameFormat, "unknown format 0"},
		"no index":         {forge(t, format, reg), nameDamaged, "index is missing"},
		"a broken index":   {forge(t, format, reg, item{name: indexName, text: "{"}), nameDamaged, "index"},
		"an empty index":   {forge(t, format, reg, item{name: indexName, text: "{}"}), nameDamaged, "its index names 0"},
		"no registry":      {forge(t, format, end), nameDamaged, "no registry.db"},
		"more than one":    {forge(t, format, reg, reg, end), nameDamaged, "two entries"},
		"after the index":  {forge(t, format, reg, end, item{name: "x"}), nameDamaged, "after the index"},
		"upward":           {named("../x"), nameDamaged, `"../x"`},
		"upward inside":    {named("keys/../../x"), nameDamaged, "no backup has"},
		"absolute":         {named("/etc/x"), nameDamaged, "no backup has"},
		"not clean":        {named("keys//x"), nameDamaged, "no backup has"},
		"its own head":     {named(headName), nameDamaged, "no backup has"},
		"a symbolic link":  {linked(tar.TypeSymlink), nameDamaged, "no file and no directory"},
		"a hard link":      {linked(tar.TypeLink), nameDamaged, "no file and no directory"},
		"a device":         {linked(tar.TypeChar), nameDamaged, "no file and no directory"},
		"drops the home":   {forge(t, format, reg, item{name: indexName, text: "drop formations/../.."}), nameDamaged, "drops"},
		"drops the keys":   {forge(t, format, reg, item{name: indexName, text: "drop keys"}), nameDamaged, "drops"},
		"a false database": {forge(t, format, item{name: registryName, text: "x", pax: map[string]string{kindRecord: kindSQLite}}, end), nameDamaged, "registry.db is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			_, err := Restore(t.Context(), bytes.NewReader(tc.data), filepath.Join(parent, "home"), Options{})
			assertFault(t, err, fault.Invalid, tc.name, tc.text)
			if left, _ := os.ReadDir(parent); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			_, err = Verify(t.Context(), bytes.NewReader(tc.data))
			assertFault(t, err, fault.Invalid, tc.name, tc.text)
		})
	}
}

func TestRestore_RefusesAHomeThatIsUsed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	_, data := h.backup(t, nil)
	before := listing(t, h.dir)
	_, err := Restore(t.Context(), bytes.NewReader(data), h.dir, Options{})
	assertFault(t, err, fault.Conflict, nameHome, "is not empty")
	h.write(t, "run/lock", "4711 2026-01-01T00:00:00Z\n", 0o600)
	lock, err := os.Open(filepath.Join(h.dir, "run/lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, err = Restore(t.Context(), bytes.NewReader(data), h.dir, Options{Force: true})
	assertFault(t, err, fault.Conflict, nameRunning, "process 4711")
	if after := listing(t, h.dir); len(after) != len(before) {
		t.Errorf("the home was changed: %v", after)
	}
}

func TestRestore_IntoAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	dir := filepath.Join(t.TempDir(), "empty")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(t.Context(), bytes.NewReader(data), dir, Options{}); err != nil || r.MovedTo != "" {
		t.Fatalf("report = %+v, %v", r, err)
	}
	assertRegistry(t, dir, "1.0.0")
	if left, _ := filepath.Glob(dir + "?*"); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestRestore_ByForceMovesTheOldHomeAside(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	_, data := h.backup(t, nil)
	h.write(t, "newer", "x", 0o600)
	opts := Options{Force: true, Now: func() time.Time { return time.Unix(1700000000, 0) }}
	r, err := Restore(t.Context(), bytes.NewReader(data), h.dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	if want := h.dir + ".before-restore-20231114T221320Z"; r.MovedTo != want {
		t.Errorf("moved to %s, want %s", r.MovedTo, want)
	}
	if _, err := os.Stat(filepath.Join(r.MovedTo, "newer")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "newer")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old home is still there: %v", err)
	}
	assertRegistry(t, h.dir, "1.0.0")
	// A second one in the same second has no place for the old home.
	_, err = Restore(t.Context(), bytes.NewReader(data), h.dir, opts)
	assertFault(t, err, fault.Conflict, nameHome, "there already")
	assertRegistry(t, h.dir, "1.0.0")
	// It is not in the way of the next.
	opts.Now = func() time.Time { return time.Unix(1700000001, 0) }
	if _, err := Restore(t.Context(), bytes.NewReader(data), h.dir, opts); err != nil {
		t.Error(err)
	}
	assertRegistry(t, h.dir, "1.0.0")
}

func TestRestore_KilledInTheMiddleLeavesTheHomeAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(t, "keys/random", random(4<<20), 0o600)
	_, data := h.backup(t, nil)
	dir := filepath.Join(t.TempDir(), "home")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), restoreEnv+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A pipe holds 64 KiB: when all this is written, most of it has been unpacked.
	if _, err := in.Write(data[:len(data)-100]); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child was not killed")
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a home: %v", err)
	}
	if left, err := os.ReadDir(dir + stagingSuffix); err != nil || len(left) < 2 {
		t.Errorf("the child had not begun: %v, %v", left, err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(data), dir, Options{}); err != nil {
		t.Fatal(err)
	}
	assertRegistry(t, dir, "1.0.0")
	if _, err := os.Lstat(dir + stagingSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

func TestRestore_DoesNotTouchAWholeHomeThatIsInTheWay(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	dir := filepath.Join(t.TempDir(), "home")
	kept := filepath.Join(dir+stagingSuffix, "registry.db")
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), bytes.NewReader(data), dir, Options{})
	assertFault(t, err, fault.Conflict, nameHome, "in the way")
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestRestore_TwoAtOnceExcludeEachOther(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	dir := filepath.Join(t.TempDir(), "home")
	r, w := io.Pipe()
	first := make(chan error, 1)
	go func() {
		_, err := Restore(t.Context(), r, dir, Options{})
		first <- err
	}()
	if _, err := w.Write(data[:1]); err != nil { // it reads, so it has the lock
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), bytes.NewReader(data), dir, Options{})
	assertFault(t, err, fault.Conflict, nameRunning, "another restore")
	if _, err := w.Write(data[1:]); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-first; err != nil {
		t.Error(err)
	}
	assertRegistry(t, dir, "1.0.0")
}

func TestRestore_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	_, data := newHome(t).backup(t, nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	parent := t.TempDir()
	_, err := Restore(gone, bytes.NewReader(data), filepath.Join(parent, "home"), Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// FuzzVerify looks for bytes that are not refused in good order.
func FuzzVerify(f *testing.F) {
	f.Add([]byte("x"))
	f.Add(seal(sha256.New().Sum(nil)))
	f.Fuzz(func(t *testing.T, data []byte) {
		sealed := newSealer(&bytes.Buffer{})
		_, _ = sealed.Write(data)
		whole := append(bytes.Clone(data), seal(sealed.hash.Sum(nil))...)
		for _, data := range [][]byte{data, whole} {
			if _, err := Verify(t.Context(), bytes.NewReader(data)); fault.KindOf(err) != fault.Invalid {
				t.Errorf("%d bytes: %v", len(data), err)
			}
		}
	})
}

package draft_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/draft"
)

// place is a home for one draft, which does not exist yet.
func place(t *testing.T) draft.Place {
	t.Helper()
	home := t.TempDir()
	staging := filepath.Join(home, ".staging")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	return draft.Place{
		Dir: filepath.Join(home, "hello", "draft"), Staging: staging,
		Limits: draft.Limits{MaxEntries: 20, MaxBytes: 4 << 20},
	}
}

func create(t *testing.T, files map[string]string) (*draft.Draft, draft.Place) {
	t.Helper()
	p := place(t)
	if err := draft.Create(p, draft.Meta{CreatedAt: time.Unix(1, 0).UTC()}, files); err != nil {
		t.Fatal(err)
	}
	return open(t, p), p
}

func open(t *testing.T, p draft.Place) *draft.Draft {
	t.Helper()
	d, err := draft.Open(p.Dir, p.Limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func assertFault(t *testing.T, err error, kind fault.Kind, name, text string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind || fault.NameOf(err) != name || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%v %s)\nwant    %s (%v %s)", err, fault.KindOf(err), fault.NameOf(err), text, kind, name)
	}
}

func TestCreate_MinimalFormationLoads(t *testing.T) {
	t.Parallel()
	_, p := create(t, draft.Minimal("hello"))
	m, warnings, err := manifest.Load(p.Dir)
	if err != nil || len(warnings) != 0 || m.ID != "hello" {
		t.Errorf("load = %+v, %v, %v", m, warnings, err)
	}
	if left, _ := os.ReadDir(p.Staging); len(left) != 0 {
		t.Errorf("left in staging: %v", left)
	}
}

func TestCreate_RefusesASecondDraft(t *testing.T) {
	t.Parallel()
	_, p := create(t, nil)
	assertFault(t, draft.Create(p, draft.Meta{}, nil), fault.Conflict, "DraftAlreadyExists", "discard or deploy")
	assertFault(t, draft.Clone(t.Context(), p, draft.Meta{}, p.Dir), fault.Conflict, "DraftAlreadyExists", "discard or deploy")
}

func TestMeta_IsRememberedAndHidden(t *testing.T) {
	t.Parallel()
	p := place(t)
	want := draft.Meta{BaseVersion: "1.2.3", CreatedAt: time.Unix(1700000000, 0).UTC(), LiveSHA256: "ab"}
	if err := draft.Create(p, want, map[string]string{"a.txt": "a"}); err != nil {
		t.Fatal(err)
	}
	d := open(t, p)
	got, err := d.Meta()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a.txt"}, names(t, d, "")); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for what, err := range calls(d, ".draft-meta.json") {
		t.Run(what, func(t *testing.T) { assertFault(t, err, fault.Invalid, "InvalidPath", "reserved") })
	}
}

func TestMeta_OfADirectoryLaidByHandIsItsTime(t *testing.T) {
	t.Parallel()
	d, p := create(t, nil)
	if err := os.Remove(filepath.Join(p.Dir, ".draft-meta.json")); err != nil {
		t.Fatal(err)
	}
	m, err := d.Meta()
	if err != nil || time.Since(m.CreatedAt) > time.Hour || m.BaseVersion != "" {
		t.Errorf("meta = %+v, %v", m, err)
	}
}

// calls does every call on one path and returns its errors by name.
func calls(d *draft.Draft, rel string) map[string]error {
	_, list := d.List(rel)
	_, _, read := d.Read(rel, "")
	_, write := d.Write(rel, "x", "")
	return map[string]error{"list": list, "read": read, "write": write, "delete": d.Delete(rel)}
}

func names(t *testing.T, d *draft.Draft, rel string) []string {
	t.Helper()
	entries, err := d.List(rel)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name)
	}
	return out
}

func TestOpen_WithoutADraftIsNotFound(t *testing.T) {
	t.Parallel()
	p := place(t)
	_, err := draft.Open(p.Dir, p.Limits)
	assertFault(t, err, fault.NotFound, "DraftNotFound", "init")
	assertFault(t, draft.Remove(p.Dir, filepath.Join(p.Staging, "x")), fault.NotFound, "DraftNotFound", "no draft")
}

func TestOpen_DoesNotFollowALink(t *testing.T) {
	t.Parallel()
	p := place(t)
	if err := os.MkdirAll(filepath.Dir(p.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), p.Dir); err != nil {
		t.Fatal(err)
	}
	_, err := draft.Open(p.Dir, p.Limits)
	assertFault(t, err, fault.NotFound, "DraftNotFound", "init")
}

func TestClone_CopiesRegularFilesWithTheirModes(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	for name, mode := range map[string]os.FileMode{"formation.afs": 0o644, "tools/run.sh": 0o755, ".key": 0o600} {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	p := place(t)
	if err := draft.Clone(t.Context(), p, draft.Meta{}, src); err != nil {
		t.Fatal(err)
	}
	d := open(t, p)
	if diff := cmp.Diff([]string{".key", "formation.afs", "tools/"}, names(t, d, "/")); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if text, enc, err := d.Read("tools/run.sh", ""); text != "tools/run.sh" || enc != "utf-8" || err != nil {
		t.Errorf("read = %q %s %v", text, enc, err)
	}
	if info, err := os.Stat(filepath.Join(p.Dir, "tools/run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode = %v, %v", info.Mode(), err)
	}
	_, _, err := d.Read(".key", "")
	assertFault(t, err, fault.Invalid, "InvalidPath", "does not leave the server")
}

func TestClone_LeavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(src, name), make([]byte, 100), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	small := func(l draft.Limits) func(*draft.Place) { return func(p *draft.Place) { p.Limits = l } }
	for name, tc := range map[string]struct {
		left   bool // the caller
		src    string
		change func(*draft.Place)
		kind   fault.Kind
		fault  string
	}{
		"too many":    {false, src, small(draft.Limits{MaxEntries: 2}), fault.TooLarge, "PayloadTooLarge"},
		"too large":   {false, src, small(draft.Limits{MaxBytes: 299}), fault.TooLarge, "PayloadTooLarge"},
		"no source":   {false, src + "/x", small(draft.Limits{}), fault.Failed, "CopyError"},
		"caller left": {true, src, small(draft.Limits{}), fault.Failed, "CopyError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := place(t)
			tc.change(&p)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.left {
				cancel()
			}
			assertFault(t, draft.Clone(ctx, p, draft.Meta{}, tc.src), tc.kind, tc.fault, "")
			if draft.Exists(p.Dir) {
				t.Error("there is a draft")
			}
			if left, _ := os.ReadDir(p.Staging); len(left) != 0 {
				t.Errorf("left in staging: %v", left)
			}
		})
	}
}

func TestWrite_MakesParentsAndReplacesWholeFiles(t *testing.T) {
	t.Parallel()
	d, p := create(t, nil)
	if n, err := d.Write("a/b/c.txt", "first", ""); n != 5 || err != nil {
		t.Fatalf("write = %d, %v", n, err)
	}
	if err := os.Chmod(filepath.Join(p.Dir, "a/b/c.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	raw := []byte{0xff, 0, 1}
	if n, err := d.Write("./a//b/c.txt", base64.StdEncoding.EncodeToString(raw), "base64"); n != 3 || err != nil {
		t.Fatalf("write = %d, %v", n, err)
	}
	text, enc, err := d.Read("a/b/c.txt", "utf-8")
	if text != "/wAB" || enc != "base64" || err != nil {
		t.Errorf("read = %q %s %v", text, enc, err)
	}
	if info, err := os.Stat(filepath.Join(p.Dir, "a/b/c.txt")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the mode is not kept: %v %v", info.Mode(), err)
	}
	if n, err := d.Write("empty", "", ""); n != 0 || err != nil {
		t.Errorf("write of nothing = %d, %v", n, err)
	}
	size := int64(3)
	got, err := d.List("a/b")
	if diff := cmp.Diff([]draft.Entry{{Name: "c.txt", Type: "file", Size: &size}}, got); diff != "" || err != nil {
		t.Errorf("list (-want +got):\n%s%v", diff, err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.Dir, ".draft-write-*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestWrite_OfTheSecretsKeyIsPrivate(t *testing.T) {
	t.Parallel()
	d, p := create(t, nil)
	if _, err := d.Write(".key", "k", ""); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(p.Dir, ".key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v", info.Mode(), err)
	}
}

func TestWrite_RefusesAndChangesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, content, encoding string
		kind                    fault.Kind
		fault, text             string
	}{
		"no base64":          {"f", "***", "base64", fault.Invalid, "DecodeError", "base64"},
		"unknown encoding":   {"f", "x", "latin-1", fault.Invalid, "DecodeError", "latin-1"},
		"over a directory":   {"dir", "x", "", fault.Invalid, "InvalidPath", "is a directory"},
		"below a file":       {"file/x", "x", "", fault.Invalid, "InvalidPath", "file is a file"},
		"deep below a file":  {"file/x/y", "x", "", fault.Invalid, "InvalidPath", "file is a file"},
		"too large":          {"f", strings.Repeat("x", draft.MaxWrite+1), "", fault.TooLarge, "PayloadTooLarge", "1048577 bytes"},
		"too many bytes":     {"f", strings.Repeat("x", 102), "", fault.TooLarge, "PayloadTooLarge", "more than 200 bytes"},
		"too many entries":   {"a/b/c", "x", "", fault.TooLarge, "PayloadTooLarge", "more than 5 files"},
		"through a link":     {"link/x", "x", "", fault.Invalid, "InvalidPath", "link is a symbolic link"},
		"onto a link":        {"link", "x", "", fault.Invalid, "InvalidPath", "symbolic link"},
		"reserved directory": {".draft-x/y", "x", "", fault.Invalid, "InvalidPath", "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := place(t)
			p.Limits = draft.Limits{MaxEntries: 5, MaxBytes: 200}
			if err := draft.Create(p, draft.Meta{}, map[string]string{"dir/x": strings.Repeat("x", 98), "file": "x"}); err != nil {
				t.Fatal(err)
			}
			outside := t.TempDir()
			if err := os.Symlink(outside, filepath.Join(p.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			d := open(t, p)
			_, err := d.Write(tc.path, tc.content, tc.encoding)
			assertFault(t, err, tc.kind, tc.fault, tc.text)
			if got := names(t, d, ""); !cmp.Equal(got, []string{"dir/", "file"}) {
				t.Errorf("the draft holds %q", got)
			}
			if left, _ := os.ReadDir(outside); len(left) != 0 {
				t.Errorf("written outside: %v", left)
			}
		})
	}
}

func TestWrite_OfAFullDraftMayReplace(t *testing.T) {
	t.Parallel()
	p := place(t)
	p.Limits = draft.Limits{MaxEntries: 1, MaxBytes: 10}
	if err := draft.Create(p, draft.Meta{}, map[string]string{"f": "0123456789"}); err != nil {
		t.Fatal(err)
	}
	d := open(t, p)
	if _, err := d.Write("f", "9876543210", ""); err != nil {
		t.Error(err)
	}
	_, err := d.Write("f", "9876543210x", "")
	assertFault(t, err, fault.TooLarge, "PayloadTooLarge", "more than 10 bytes")
}

func TestDelete_RemovesTreesAndLinksButNotWhatTheyNameOutside(t *testing.T) {
	t.Parallel()
	d, p := create(t, map[string]string{"a/b/c": "x", "d": "y"})
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(outside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(p.Dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	assertFault(t, d.Delete("a/link/kept"), fault.Invalid, "InvalidPath", "symbolic link")
	if err := errors.Join(d.Delete("a"), d.Delete("d")); err != nil {
		t.Error(err)
	}
	if got := names(t, d, "."); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	assertFault(t, d.Delete("a"), fault.NotFound, "FileNotFound", "no a")
}

func TestRead_RefusesWhatIsNoFileAndWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	d, p := create(t, map[string]string{"dir/x": "x"})
	if err := os.Truncate(filepath.Join(p.Dir, "dir/x"), draft.MaxRead+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dir/x", filepath.Join(p.Dir, "link")); err != nil {
		t.Fatal(err)
	}
	for rel, want := range map[string]struct {
		kind       fault.Kind
		name, text string
	}{
		"dir":    {fault.Invalid, "InvalidPath", "no file"},
		"dir/x":  {fault.TooLarge, "PayloadTooLarge", "8388609"},
		"dir/y":  {fault.NotFound, "FileNotFound", "dir/y"},
		"link":   {fault.Invalid, "InvalidPath", "symbolic link"},
		"link/x": {fault.Invalid, "InvalidPath", "symbolic link"},
		"":       {fault.Invalid, "InvalidPath", "missing"},
	} {
		_, _, err := d.Read(rel, "")
		assertFault(t, err, want.kind, want.name, want.text)
	}
	_, err := d.List("dir/x")
	assertFault(t, err, fault.Invalid, "InvalidPath", "is a file")
	_, err = d.List("nowhere")
	assertFault(t, err, fault.NotFound, "FileNotFound", "nowhere")
}

func TestPaths_ThatLeaveTheDraftAreRefusedByEveryCall(t *testing.T) {
	t.Parallel()
	d, p := create(t, map[string]string{"f": "x"})
	secret := filepath.Join(filepath.Dir(p.Dir), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, rel := range []string{
		"../secret", "a/../../secret", "..", "/etc/passwd", secret, "a\\b", "a\x00b", "a\nb", "\xff", "..\\secret",
		strings.Repeat("a", 256), strings.Repeat("a/", 600), strings.Repeat("a/", 33) + "a", ".draft-write-1",
	} {
		for what, err := range calls(d, rel) {
			if fault.NameOf(err) != "InvalidPath" || fault.KindOf(err) != fault.Invalid {
				t.Errorf("%s %.20q: %v, want InvalidPath", what, rel, err)
			}
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "s" {
		t.Errorf("outside: %q %v", text, err)
	}
}

func TestRemove_EndsTheDraft(t *testing.T) {
	t.Parallel()
	_, p := create(t, map[string]string{"a/b": "x"})
	if err := draft.Remove(p.Dir, filepath.Join(p.Staging, "trash")); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(p.Staging); draft.Exists(p.Dir) || len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// FuzzWrite looks for a path that leaves the draft's directory.
func FuzzWrite(f *testing.F) {
	for _, seed := range []string{"a", "../x", "a/../../x", "/x", ".draft-meta.json", "a//b/./c", "link/x", "\\x", "a/..", ".", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, rel string) {
		home := t.TempDir()
		p := draft.Place{Dir: filepath.Join(home, "d"), Staging: home, Limits: draft.Limits{MaxEntries: 100}}
		if err := draft.Create(p, draft.Meta{}, nil); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("..", filepath.Join(p.Dir, "link")); err != nil {
			t.Fatal(err)
		}
		d := open(t, p)
		if _, err := d.Write(rel, "x", ""); err == nil {
			if text, _, err := d.Read(rel, ""); path(rel) != ".key" && (text != "x" || err != nil) {
				t.Errorf("%q was written and reads %q, %v", rel, text, err)
			}
		} else if fault.NameOf(err) == "" {
			t.Errorf("%q: an error without a name: %v", rel, err)
		}
		left, err := os.ReadDir(home)
		if err != nil || len(left) != 1 {
			t.Errorf("%q made %v beside the draft, %v", rel, left, err)
		}
	})
}

func path(rel string) string { return filepath.Base(filepath.Clean(rel)) }

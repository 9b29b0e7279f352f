package hub_test

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/fault"
)

const libraryFile = "runtime.tgz"

// library makes the hub serve an archive and returns how it is fetched.
func (r *rig) library(archive []byte) hub.Library {
	r.Add("acme/files", map[string][]byte{libraryFile: archive})
	sum := sha256.Sum256(archive)
	return hub.Library{Version: "1.2.3", URL: r.URL + "/storage/acme/files/" + libraryFile, SHA256: hex.EncodeToString(sum[:]), Arch: "amd64"}
}

func (r *rig) fetchLibrary(t *testing.T, l hub.Library, progress func(hub.Step)) (string, error) {
	t.Helper()
	h, err := hub.New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h.FetchLibrary(t.Context(), l, progress)
}

// noise is what does not pack, so that a download can be cut in it.
func noise(n int) []byte {
	out := make([]byte, 0, n)
	for sum := sha256.Sum256(nil); len(out) < n; sum = sha256.Sum256(sum[:]) {
		out = append(out, sum[:]...)
	}
	return out
}

func TestFetchLibrary_TakesTheOneForThisMachine(t *testing.T) {
	t.Parallel()
	x86, arm := embedtest.FakeLibrary(elf.EM_X86_64), embedtest.FakeLibrary(elf.EM_AARCH64)
	want := append(bytes.Clone(x86), noise(100_000)...)
	for name, archive := range map[string][]byte{
		"a release": embedtest.Archive(t, map[string][]byte{
			"onnxruntime-1.2.3/lib/libonnxruntime_providers_shared.so": x86, "onnxruntime-1.2.3/lib/libonnxruntime.so.1.2.3": want,
			"onnxruntime-1.2.3/include/onnxruntime.h": []byte("// libonnxruntime.so"),
		}),
		"many machines": embedtest.Archive(t, map[string][]byte{"linux/arm64/libonnxruntime.so.1": arm, "linux/x64/libonnxruntime.so.1": want}),
		"a bare file":   want,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.library(archive)
			r.Fail(libraryFile, embedtest.Fault{CutAt: 40_000, Times: 1})
			var last hub.Step
			path, err := r.fetchLibrary(t, l, func(s hub.Step) { last = s })
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s holds something else (%v)", path, err)
			}
			if n := int64(len(archive)); last.Done != n || last.Total != n {
				t.Errorf("the last step is %+v, of %d bytes", last, n)
			}
			if calls := r.Calls(); len(calls) != 2 || calls[1].Range != "bytes=40000-" || calls[0].Authorization != "" {
				t.Errorf("calls %+v", calls)
			}
			none := func(string) (string, bool) { return "", false }
			if found, err := hub.FindLibrary("", none, r.cfg.Dir); err != nil || found != path {
				t.Errorf("found %q, %v, want %s", found, err, path)
			}
			// Nothing else stays, and nothing is asked again.
			if left, _ := filepath.Glob(filepath.Join(r.cfg.Dir, "onnxruntime", ".fetch", "blobs", "*")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			r.cfg.Offline = true
			if again, err := r.fetchLibrary(t, l, nil); err != nil || again != path || len(r.Calls()) != 0 {
				t.Errorf("again: %s, %v", again, err)
			}
		})
	}
}

func TestFetchLibrary_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	x86 := embedtest.FakeLibrary(elf.EM_X86_64)
	good := embedtest.Archive(t, map[string][]byte{"lib/libonnxruntime.so": x86})
	tests := map[string]struct {
		archive []byte
		set     func(*rig, *hub.Library)
		kind    fault.Kind
		name    string
		words   []string
	}{
		"another hash": {good, func(_ *rig, l *hub.Library) { l.SHA256 = strings.Repeat("ab", 32) }, fault.BadGateway, hub.NameBroken, []string{"1.2.3", "hash"}},
		"corrupt": {good, func(r *rig, _ *hub.Library) {
			r.Fail(libraryFile, embedtest.Fault{Corrupt: true})
		}, fault.BadGateway, hub.NameBroken, []string{"hash"}},
		"not there": {good, func(r *rig, _ *hub.Library) {
			r.Fail(libraryFile, embedtest.Fault{Status: 404})
		}, fault.NotFound, hub.NameNotFound, []string{"404", libraryFile}},
		"in trouble": {good, func(r *rig, _ *hub.Library) {
			r.Fail(libraryFile, embedtest.Fault{Status: 503})
		}, fault.Unavailable, hub.NameUnreachable, []string{"503"}},
		"no network": {good, func(_ *rig, l *hub.Library) {
			l.URL = "http://127.0.0.1:1/x.tgz"
		}, fault.Unavailable, hub.NameUnreachable, []string{"127.0.0.1:1", "refused"}},
		"offline":       {good, func(r *rig, _ *hub.Library) { r.cfg.Offline = true }, fault.Unavailable, hub.NameOffline, []string{"switched off"}},
		"too large":     {good, func(r *rig, _ *hub.Library) { r.cfg.MaxFile = 10 }, fault.BadGateway, hub.NameBroken, []string{"longer than 10"}},
		"no address":    {good, func(_ *rig, l *hub.Library) { l.URL = "runtime.tgz" }, fault.Invalid, hub.NameBadModel, []string{"https://host"}},
		"no hash":       {good, func(_ *rig, l *hub.Library) { l.SHA256 = "../../x" }, fault.Invalid, hub.NameBadModel, []string{"SHA-256"}},
		"short hash":    {good, func(_ *rig, l *hub.Library) { l.SHA256 = strings.Repeat("a", 40) }, fault.Invalid, hub.NameBadModel, []string{"SHA-256"}},
		"no archive":    {[]byte("<html>moved</html>"), nil, fault.Unprocessable, hub.NameUnsuitable, []string{"neither"}},
		"nothing":       {[]byte("ab"), nil, fault.Unprocessable, hub.NameUnsuitable, []string{"empty"}},
		"damaged":       {good[:len(good)/2], nil, fault.Unprocessable, hub.NameUnsuitable, []string{"damaged"}},
		"no library":    {embedtest.Archive(t, map[string][]byte{"lib/libonnxruntime_providers_shared.so": x86}), nil, fault.Unprocessable, hub.NameUnsuitable, []string{"no libonnxruntime.so"}},
		"other machine": {embedtest.Archive(t, map[string][]byte{"libonnxruntime.so": embedtest.FakeLibrary(elf.EM_AARCH64)}), nil, fault.Unprocessable, hub.NameUnsuitable, []string{"AARCH64", "amd64"}},
		"text in its place": {
			embedtest.Archive(t, map[string][]byte{"libonnxruntime.so": []byte("INPUT(libonnxruntime.so.1)")}),
			nil, fault.Unprocessable, hub.NameUnsuitable,
			[]string{"library is damaged"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.library(tt.archive)
			if tt.set != nil {
				tt.set(r, &l)
			}
			_, err := r.fetchLibrary(t, l, nil)
			wantFault(t, err, tt.kind, tt.name, tt.words...)
			none := func(string) (string, bool) { return "", false }
			if found, err := hub.FindLibrary("", none, r.cfg.Dir); err != nil || found != "" {
				t.Errorf("found %q, %v", found, err)
			}
			// What is mended works at once.
			r.cfg.Offline, r.cfg.MaxFile = false, 0
			r.Fail(libraryFile, embedtest.Fault{})
			if _, err := r.fetchLibrary(t, r.library(good), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFetchLibrary_OneOfManyProcessesFetches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.library(embedtest.Archive(t, map[string][]byte{"libonnxruntime.so": embedtest.FakeLibrary(elf.EM_X86_64)}))
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := r.fetchLibrary(t, l, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if calls := r.Calls(); len(calls) != 1 {
		t.Errorf("calls %+v", calls)
	}
}

func TestDefaultLibrary_IsThereForTheMachinesThatTheReleaseHas(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		l, ok := hub.DefaultLibrary("linux", arch)
		if !ok || !strings.HasPrefix(l.URL, "https://") || !strings.Contains(l.URL, l.Version) || len(l.SHA256) != 64 || l.Arch != arch {
			t.Errorf("%s: %+v", arch, l)
		}
	}
	if l, ok := hub.DefaultLibrary("linux", "riscv64"); ok {
		t.Errorf("got %+v", l)
	}
}

func TestFindLibrary_TakesTheSettingThenTheEnvironmentThenTheCache(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	set, env := file("set.so"), file("env.so")
	file("cache", "onnxruntime", "1.29.0", "libonnxruntime.so.1")
	newest := file("cache", "onnxruntime", "1.28.0", "libonnxruntime.so.1")
	if err := os.Chtimes(newest, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, bool) { return "", false }
	with := func(path string) func(string) (string, bool) {
		return func(name string) (string, bool) { return path, name == hub.LibraryEnv }
	}
	caches := []string{filepath.Join(dir, "empty"), filepath.Join(dir, "cache")}
	tests := map[string]struct {
		setting string
		lookup  func(string) (string, bool)
		caches  []string
		want    string
	}{
		"setting":     {set, with(env), caches, set},
		"environment": {"", with(env), caches, env},
		"cache":       {"", none, caches, newest},
		"nowhere":     {"", none, caches[:1], ""},
	}
	for name, tt := range tests {
		if got, err := hub.FindLibrary(tt.setting, tt.lookup, tt.caches...); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	for _, lookup := range []func(string) (string, bool){with(dir), with(filepath.Join(dir, "gone"))} {
		if _, err := hub.FindLibrary("", lookup, caches...); err == nil || !strings.Contains(err.Error(), "is not there") {
			t.Errorf("got %v", err)
		}
	}
}

package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/fault"
)

// modelHome is a home whose models and library come from a hub on this host.
type modelHome struct {
	*embedtest.Hub
	home, url, sum string
	env            map[string]string
}

func newModelHome(t *testing.T) *modelHome {
	t.Helper()
	m := &modelHome{Hub: embedtest.NewHub(t), home: t.TempDir(), env: map[string]string{}}
	m.Add("acme/tiny", embedtest.Files(embedtest.NewBert(embedtest.Tiny, 1)))
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	archive := embedtest.Archive(t, map[string][]byte{"lib/libonnxruntime.so.1": embedtest.FakeLibrary(machine)})
	m.Add("acme/files", map[string][]byte{"runtime.tgz": archive})
	sum := sha256.Sum256(archive)
	m.url, m.sum = m.URL+"/storage/acme/files/runtime.tgz", hex.EncodeToString(sum[:])
	return m
}

// config reads settings in which the hub and the library are named.
func (m *modelHome) config(t *testing.T) Config {
	t.Helper()
	text := fmt.Sprintf("models:\n  hub: %s\n  onnxruntime: {url: %q, sha256: %s}\n", m.URL, m.url, m.sum)
	if err := os.WriteFile(filepath.Join(m.home, configName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadConfig(m.home, func(name string) string { return m.env[name] })
	if err != nil {
		t.Fatal(err)
	}
	cfg.LookupEnv = func(name string) (string, bool) { v, ok := m.env[name]; return v, ok }
	return cfg
}

func (m *modelHome) fetch(t *testing.T, cfg Config) (model, library Fetched) {
	t.Helper()
	all, err := FetchModels(t.Context(), cfg, FetchOptions{Models: []string{"local/acme/tiny"}})
	if err != nil || len(all) == 0 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if len(all) == 2 {
		library = all[1]
	}
	return all[0], library
}

func TestFetchModels_FillTheCacheOfTheEmbeddingProcess(t *testing.T) {
	t.Parallel()
	m := newModelHome(t)
	cfg := m.config(t)
	seen := map[string]Fetching{}
	all, err := FetchModels(t.Context(), cfg, FetchOptions{
		Models: []string{"local/acme/tiny"}, Progress: func(f Fetching) { seen[f.Name] = f },
	})
	if err != nil || len(all) != 2 || all[0].Err != nil || all[1].Err != nil || !all[0].Fresh || !all[1].Fresh {
		t.Fatalf("got %+v, %v", all, err)
	}
	for _, f := range all {
		if !strings.HasPrefix(f.Path, filepath.Join(m.home, "cache")+"/") {
			t.Errorf("%s lies in %s", f.Name, f.Path)
		}
		if s := seen[f.Name]; s.Done == 0 || s.Done != s.Total {
			t.Errorf("the last step of %s is %+v", f.Name, s)
		}
	}
	// The process finds both without a hub: it looks where its environment says.
	env := map[string]string{}
	for _, kv := range embedder.EnvironOf(cfg.modelEnv) {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	from, err := hub.FromEnv(lookup)
	if err != nil {
		t.Fatal(err)
	}
	from.Offline = true
	h, err := hub.New(from)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := hub.ParseRef("local/acme/tiny")
	if s, ok := h.Find(ref); !ok || s.Dir != all[0].Path {
		t.Errorf("the process finds the model in %q", s.Dir)
	}
	if path, err := hub.FindLibrary("", lookup, from.Dir); err != nil || path != all[1].Path {
		t.Errorf("the process finds the library %q, %v", path, err)
	}
	// Again: nothing is asked for, nothing is new.
	m.Calls()
	if model, library := m.fetch(t, cfg); model.Fresh || library.Fresh || model.Err != nil || library.Err != nil || len(m.Calls()) != 0 {
		t.Errorf("again: %+v, %+v", model, library)
	}
}

func TestFetchModels_GoOnWithWhatThereIs(t *testing.T) {
	t.Parallel()
	t.Run("no network", func(t *testing.T) {
		t.Parallel()
		m := newModelHome(t)
		cfg := m.config(t)
		cfg.Models.Hub = "http://127.0.0.1:1"
		model, library := m.fetch(t, cfg)
		if fault.NameOf(model.Err) != hub.NameUnreachable || library.Name != "" || len(m.Calls()) != 0 {
			t.Errorf("got %+v, %+v: a library without a model is of no use", model, library)
		}
	})
	t.Run("unknown model", func(t *testing.T) {
		t.Parallel()
		m := newModelHome(t)
		m.Add("acme/tiny", nil)
		model, library := m.fetch(t, m.config(t))
		if model.Err == nil || model.Path != "" || library.Err != nil || library.Path == "" {
			t.Errorf("got %+v, %+v", model, library)
		}
	})
	t.Run("no library", func(t *testing.T) {
		t.Parallel()
		m := newModelHome(t)
		m.Fail("runtime.tgz", embedtest.Fault{Corrupt: true})
		cfg := m.config(t)
		if model, library := m.fetch(t, cfg); model.Err != nil || fault.NameOf(library.Err) != hub.NameBroken {
			t.Errorf("got %+v, %+v", model, library)
		}
		// One that came otherwise does.
		own := filepath.Join(cfg.CacheDir, "onnxruntime", "libonnxruntime.so")
		if err := os.WriteFile(own, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, library := m.fetch(t, cfg); library.Err != nil || library.Path != own || library.Fresh {
			t.Errorf("got %+v", library)
		}
	})
	t.Run("a named library", func(t *testing.T) {
		t.Parallel()
		m := newModelHome(t)
		m.env[hub.LibraryEnv] = "own/lib.so" // in the home
		if _, library := m.fetch(t, m.config(t)); library.Err == nil || !strings.Contains(library.Err.Error(), m.home+"/own/lib.so is not there") {
			t.Errorf("got %+v", library)
		}
		if err := errors.Join(os.Mkdir(filepath.Join(m.home, "own"), 0o700), os.WriteFile(filepath.Join(m.home, "own", "lib.so"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		m.Calls()
		if _, library := m.fetch(t, m.config(t)); library.Err != nil || library.Path != filepath.Join(m.home, "own", "lib.so") || len(m.Calls()) != 0 {
			t.Errorf("got %+v", library)
		}
	})
}

func TestFetchModels_EndWithTheirContext(t *testing.T) {
	t.Parallel()
	m := newModelHome(t)
	m.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 10, Stall: make(chan struct{})})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := FetchModels(ctx, m.config(t), FetchOptions{
		Models: []string{"local/acme/tiny"}, Progress: func(f Fetching) {
			if f.Done > 0 {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestModelSettings_TheEnvironmentWins(t *testing.T) {
	t.Parallel()
	m := newModelHome(t)
	sum := strings.Repeat("ab", 32)
	maps.Copy(m.env, map[string]string{
		"SVC_CACHE_DIR": "/shared/cache", "HF_ENDPOINT": "https://mirror.example", "HF_TOKEN": "t",
		hub.LibraryEnv: "/lib/x.so", "SVC_ONNXRUNTIME_URL": "https://files.example/x.tgz", "SVC_ONNXRUNTIME_SHA256": sum,
	})
	cfg := m.config(t)
	want := ModelSettings{Hub: "https://mirror.example", ONNX: RuntimeSettings{Library: "/lib/x.so", URL: "https://files.example/x.tgz", SHA256: sum}}
	if diff := cmp.Diff(want, cfg.Models); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		"SVC_CACHE_DIR": "/shared/cache", "HF_ENDPOINT": "https://mirror.example", "HF_TOKEN": "t", hub.LibraryEnv: "/lib/x.so",
	} {
		if got, ok := cfg.modelEnv(name); got != want || !ok {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if got, ok := cfg.modelEnv("HF_HOME"); ok {
		t.Errorf("HF_HOME is %q", got)
	}
	var text bytes.Buffer
	if err := cfg.Show(&text); err != nil || !strings.Contains(text.String(), "hub: \"https://mirror.example/***\"  # HF_ENDPOINT") {
		t.Errorf("%s (%v)", text.String(), err)
	}
}

func TestModelSettings_AreChecked(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		"models: {hub: hub.example}":                                               "config.yaml:1:15: models.hub: want an address",
		"models: {onnxruntime: {url: /x.tgz, sha256: " + sum + "}}":                "models.onnxruntime.url: want an address",
		"models: {onnxruntime: {url: 'https://h/x.tgz', sha256: abc}}":             "models.onnxruntime.sha256: want 64",
		"models: {onnxruntime: {url: 'https://h/x.tgz'}}":                          "go together",
		"models: {onnxruntime: {sha256: " + sum + "}}":                             "go together",
		"models: {onnxruntime: {librari: x}}":                                      `did you mean "library"?`,
		"models: {hub: 'https://user:hunter2@hub.example', onnxruntime: {sha: x}}": "unknown key",
	} {
		_, err := parseText(t, text, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if _, err := parseText(t, "", map[string]string{"SVC_CACHE_DIR": "cache"}); err == nil || !strings.Contains(err.Error(), "SVC_CACHE_DIR: want an absolute path") {
		t.Errorf("got %v", err)
	}
}

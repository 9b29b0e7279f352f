package main

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/embedder/embedtest"
)

// modelHub is a hub on this host with a model and an ONNX Runtime, and the
// environment of who asks it.
func modelHub(t *testing.T) (*embedtest.Hub, *session) {
	t.Helper()
	hub := embedtest.NewHub(t)
	hub.Add("acme/tiny", embedtest.Files(embedtest.NewBert(embedtest.Tiny, 1)))
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	archive := embedtest.Archive(t, map[string][]byte{"lib/libonnxruntime.so.1": embedtest.FakeLibrary(machine)})
	hub.Add("acme/files", map[string][]byte{"runtime.tgz": archive})
	sum := sha256.Sum256(archive)
	return hub, &session{home: t.TempDir(), env: map[string]string{
		"HF_ENDPOINT": hub.URL, "SVC_ONNXRUNTIME_URL": hub.URL + "/storage/acme/files/runtime.tgz", "SVC_ONNXRUNTIME_SHA256": hex.EncodeToString(sum[:]),
	}}
}

// newHomeDir is a directory for a home: sockets below it need a short path.
func newHomeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "init")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "home")
}

func TestInit_FetchesModelsAndShowsHowFar(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		repo  string
		named []string
		tty   bool
	}{
		"lines, the default model": {"nomic-ai/nomic-embed-text-v1.5", nil, false},
		"bar, another model":       {"acme/tiny", []string{"--model", "local/acme/tiny"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hub, s := modelHub(t)
			hub.Add(tt.repo, embedtest.Files(embedtest.NewBert(embedtest.Tiny, 1)))
			s.errTTY = tt.tty
			home, model := newHomeDir(t), "local/"+tt.repo
			args := append([]string{"init", "--home", home, "--yes"}, tt.named...)
			hub.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 50_000, Times: 1})
			if code := s.run(t.Context(), args...); code != 0 {
				t.Fatalf("exit code %d: %s", code, s.er.String())
			}
			out := strings.Split(s.out.String(), "\n")
			if len(out) != 5 || !strings.HasPrefix(out[0], "wrote ") || out[1] != "fetched "+model || out[2] != "fetched ONNX Runtime" || !strings.HasPrefix(out[3], "next: ") {
				t.Errorf("results: %q", out)
			}
			shown := s.er.String()
			if bar := strings.Contains(shown, "█") && strings.Contains(shown, "\r"); bar != tt.tty {
				t.Errorf("a bar is shown: %v, in %q", bar, shown)
			}
			if plain := strings.Contains(shown, "fetching "+model+"\n") && strings.Contains(shown, model+": 100 % of "); plain == tt.tty {
				t.Errorf("lines are shown: %v, in %q", plain, shown)
			}
			for _, at := range []string{"hub/models--" + strings.ReplaceAll(tt.repo, "/", "--") + "/snapshots/*/onnx/model.onnx", "onnxruntime/*/libonnxruntime.so"} {
				if found, err := filepath.Glob(filepath.Join(home, "cache", at)); err != nil || len(found) != 1 {
					t.Errorf("%s is not in the cache: %v", at, err)
				}
			}
			// Again: settings and models are kept, the hub is not asked.
			hub.Calls()
			if code := s.run(t.Context(), append(args, "-o", "json")...); code != 0 || len(hub.Calls()) > 0 {
				t.Errorf("again: exit code %d: %s", code, s.er.String())
			}
			var again initResult
			if err := json.Unmarshal(s.out.Bytes(), &again); err != nil || again.Created || len(again.Models) != 2 || again.Models[0].Fetched || again.Models[0].Path == "" {
				t.Errorf("again: %s", s.out.String())
			}
		})
	}
}

func TestInit_WithoutANetworkSucceedsAndSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		set   func(*embedtest.Hub, *session)
		words []string
	}{
		"no network": {
			func(_ *embedtest.Hub, s *session) { s.env["HF_ENDPOINT"] = "http://127.0.0.1:1" },
			[]string{"127.0.0.1:1 can't be reached", "connection refused", "lexical recall", "init --home "},
		},
		"switched off": {
			func(_ *embedtest.Hub, s *session) { s.env["HF_HUB_OFFLINE"] = "1" },
			[]string{"HF_HUB_OFFLINE", "lexical recall", "init --home "},
		},
		"not on the hub": {
			func(h *embedtest.Hub, _ *session) { h.Fail("", embedtest.Fault{Status: 404}) },
			[]string{"there is no acme/tiny", "lexical recall"},
		},
		"no library": {
			func(h *embedtest.Hub, _ *session) { h.Fail("runtime.tgz", embedtest.Fault{Corrupt: true}) },
			[]string{"ten times slower", "hash"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hub, s := modelHub(t)
			tt.set(hub, s)
			home := newHomeDir(t)
			if code := s.run(t.Context(), "init", "--home", home, "--yes", "--model", "local/acme/tiny", "-o", "json"); code != 0 {
				t.Errorf("exit code %d: %s", code, s.er.String())
			}
			for _, word := range tt.words {
				if !strings.Contains(s.er.String(), word) {
					t.Errorf("%q is not said in:\n%s", word, s.er.String())
				}
			}
			var r initResult
			if err := json.Unmarshal(s.out.Bytes(), &r); err != nil || !r.Created || !strings.Contains(s.out.String(), `"error": "`) {
				t.Errorf("%s (%v)", s.out.String(), err)
			}
			if _, err := os.Stat(filepath.Join(home, "config.yaml")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInit_AsksNoHubWithoutModels(t *testing.T) {
	t.Parallel()
	hub, s := modelHub(t)
	if code := s.run(t.Context(), "init", "--home", newHomeDir(t), "--yes", "--no-models"); code != 0 || s.er.Len() > 0 {
		t.Errorf("exit code %d: %s", code, s.er.String())
	}
	for _, args := range [][]string{
		{"--no-models", "--model", "local/acme/tiny"}, {"--model", "local/tiny"}, {"--model", "openai/tiny"},
	} {
		home := newHomeDir(t)
		if code := s.run(t.Context(), append([]string{"init", "--home", home, "--yes"}, args...)...); code != exitUsage || !strings.Contains(s.er.String(), "--model") {
			t.Errorf("%v: exit code %d: %s", args, code, s.er.String())
		}
		if _, err := os.Stat(home); !os.IsNotExist(err) {
			t.Errorf("%v: a home was made: %v", args, err)
		}
	}
	if calls := hub.Calls(); len(calls) > 0 {
		t.Errorf("the hub was asked: %+v", calls)
	}
}

func TestInit_AnInterruptKeepsWhatCame(t *testing.T) {
	t.Parallel()
	hub, s := modelHub(t)
	home, errs := newHomeDir(t), watch("goes on where it ended")
	hub.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 90_000, Times: 1, Stall: make(chan struct{})})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	a, ended := s.app(errs, errs), make(chan int, 1)
	args := []string{"init", "--home", home, "--yes", "--model", "local/acme/tiny"}
	go func() { ended <- run(ctx, a, args) }()
	awaitBytes(t, filepath.Join(home, "cache", "hub", "models--acme--tiny", "blobs", "*.incomplete"))
	interrupt()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d: %s", code, errs)
	}
	select {
	case <-errs.seen:
	default:
		t.Errorf("it is not said how to go on: %s", errs)
	}
	hub.Calls()
	if code := s.run(t.Context(), args...); code != 0 || !strings.Contains(s.out.String(), "fetched local/acme/tiny") {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	resumed := false
	for _, c := range hub.Calls() {
		resumed = resumed || strings.HasPrefix(c.Range, "bytes=")
	}
	if !resumed {
		t.Error("what had come was fetched again")
	}
}

// awaitBytes waits until a file that matches is not empty.
func awaitBytes(t *testing.T, pattern string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Size() > 50_000 {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("nothing came to %s", pattern)
		}
	}
}

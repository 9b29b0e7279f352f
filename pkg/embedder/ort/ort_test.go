package ort_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/ort"
)

func TestEngine_Conforms(t *testing.T) {
	t.Parallel()
	engine, err := ort.New(embedtest.Library(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	embedtest.Conform(t, engine)
}

func TestFind_TakesTheSettingThenTheEnvironmentThenTheCache(t *testing.T) {
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
	newest := file("cache", "onnxruntime", "1.30.0", "libonnxruntime.so.1")
	none := func(string) (string, bool) { return "", false }
	with := func(path string) func(string) (string, bool) {
		return func(name string) (string, bool) { return path, name == ort.LibraryEnv }
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
		if got, err := ort.Find(tt.setting, tt.lookup, tt.caches...); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	for _, lookup := range []func(string) (string, bool){with(dir), with(filepath.Join(dir, "gone"))} {
		if _, err := ort.Find("", lookup, caches...); err == nil || !strings.Contains(err.Error(), "is not there") {
			t.Errorf("got %v", err)
		}
	}
}

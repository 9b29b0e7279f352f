package manifest_test

import (
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

// BenchmarkLoad is part of what a child does between its start and its first
// answer.
func BenchmarkLoad(b *testing.B) {
	dir := filepath.FromSlash("../../deploy/formations/hello")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := manifest.Load(dir); err != nil {
			b.Fatal(err)
		}
	}
}

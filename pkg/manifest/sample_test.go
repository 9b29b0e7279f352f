package manifest_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

func TestLoad_AcceptsTheDeployedSampleWithoutWarnings(t *testing.T) {
	t.Parallel()
	f, warnings, err := manifest.Load(filepath.FromSlash("../../deploy/formations/hello"))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %v, error %v", warnings, err)
	}
	if len(f.Agents) != 2 || f.Soul == "" || f.Version == "" {
		t.Errorf("sample is %+v", f)
	}
	for i := range f.Agents {
		if id := f.Agents[i].Model(f); id != "demo/hello" {
			t.Errorf("agent %s runs on %s; the sample needs no key", f.Agents[i].ID, id)
		}
	}
}

// The formations that the end-to-end tests deploy: those under broken are
// refused by Load, all others are not.
func TestLoad_SortsTheTestFormations(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"valid", "broken"} {
		root := filepath.Join("..", "..", "test", "formations", kind)
		dirs, err := os.ReadDir(root)
		if err != nil || len(dirs) == 0 {
			t.Fatalf("no %s formations: %v", kind, err)
		}
		for _, dir := range dirs {
			_, _, err := manifest.Load(filepath.Join(root, dir.Name()))
			var faults *manifest.Faults
			if broken := errors.As(err, &faults); broken != (kind == "broken") || !broken && err != nil {
				t.Errorf("%s/%s: %v", kind, dir.Name(), err)
			}
		}
	}
}

package formation_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/test/fakellm"
)

const manyModels = `schema: "1.0.0"
id: world
description: Models of every kind.
llm:
  endpoints:
    openai: %s
  aliases:
    best: openai/large
  settings:
    fallback_model: openai/spare
  models:
    - text: best
    - embedding: openai/vectors
    - vision: openai/large
    - audio: openai/whisper
    - documents: demo/reader
overlord:
  llm:
    model: openai/chooser
agents:
  - id: writer
    name: Writer
    description: Writes.
  - id: ears
    name: Ears
    description: Hears.
    llm_models:
      - text: openai/hearing
      - audio: openai/hearing
`

// declare replaces the world's manifest.
func (w *world) declare(manifest string) {
	w.t.Helper()
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), fmt.Appendf(nil, manifest, w.fake.URL()), 0o600))
}

// tryLoad is load for one that may fail.
func (w *world) tryLoad(launch string) (control.Loaded, error) {
	f := formation.New(w.config(launch))
	loaded, err := f.Load(w.t.Context(), control.LoadRequest{Dir: w.dir, StateDir: w.state}, func(string) {})
	w.check(f.Stop(w.t.Context()))
	return loaded, err
}

// probed returns the models that were asked, sorted.
func (w *world) probed() []string {
	var out []string
	for _, c := range w.fake.Probes() {
		out = append(out, c.Model+" "+strings.TrimPrefix(c.Path, "/v1/"))
	}
	slices.Sort(out)
	return out
}

func TestLoad_AsksEachDeclaredModelOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare(manyModels)
	if _, err := w.tryLoad("launch-1"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"chooser chat/completions", "hearing chat/completions", "large chat/completions", "spare chat/completions",
		"vectors embeddings", "whisper audio/transcriptions",
	}
	if diff := cmp.Diff(want, w.probed()); diff != "" {
		t.Error(diff)
	}
	// The same version again waits for the store only.
	if _, err := w.tryLoad("launch-2"); err != nil || len(w.fake.Probes()) != len(want) || w.fake.Count() != 0 {
		t.Errorf("%v; asked %v", err, w.probed())
	}
}

// A formation recalls by words as long as its local model is away.
func TestLoad_ALocalModelThatIsAwayIsAWarning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare(strings.Replace(manyModels, "openai/vectors", "local/acme/tiny", 1))
	loaded, err := w.tryLoad("launch-1")
	warning := `model id "local/acme/tiny": this host has no embedding process; it is asked again later`
	if err != nil || !slices.Contains(loaded.Warnings, warning) {
		t.Errorf("%v, warnings: %q", err, loaded.Warnings)
	}
}

func TestLoad_RefusesModelsThatAreNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare(manyModels)
	w.fake.Add(
		fakellm.Rule{Purpose: "probe", Model: "spare", Reply: fakellm.Reply{Status: 404, Message: "The model does not exist"}},
		fakellm.Rule{Purpose: "probe", Model: "vectors", Reply: fakellm.Reply{Body: "<html>"}},
		fakellm.Rule{Purpose: "probe", Model: "large", Reply: fakellm.Reply{Status: 429}},
	)
	_, err := w.tryLoad("launch-1")
	text := fault.From(err).Message
	if fault.KindOf(err) != fault.Invalid || fault.NameOf(err) != "HealthCheckFailed" ||
		!strings.Contains(text, "model openai/spare: the provider has no such model or path (HTTP 404): The model does not exist") ||
		!strings.Contains(text, "model openai/vectors: the provider's reply could not be read") || strings.Contains(text, "large") {
		t.Fatalf("got %v", err)
	}
}

func TestLoad_WarnsOfModelsThatCannotBeAskedAndAsksThemAgainLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(fakellm.Rule{Purpose: "probe", Times: 1, Reply: fakellm.Reply{Status: 401}})
	loaded, err := w.tryLoad("launch-1")
	want := "model openai/fake: the provider rejected the key (HTTP 401); it is asked again later"
	if err != nil || !slices.Contains(loaded.Warnings, want) {
		t.Fatalf("%v, warnings: %q", err, loaded.Warnings)
	}
	// Some time later the formation is started again.
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(w.state, "memory.db"), LaunchID: "clock", Log: zerolog.Nop()})
	w.check(err)
	w.check(db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE model_probes SET checked_at = checked_at - 3600000`)
		return err
	}))
	problem := func(db *store.DB) (text string) {
		w.check(db.QueryRow(t.Context(), `SELECT problem FROM model_probes`, nil, &text))
		return text
	}
	if text := problem(db); !strings.Contains(text, "rejected the key") {
		t.Errorf("the store says %q", text)
	}
	w.check(db.Retire(t.Context()))
	f := w.load(w.config("launch-2"))
	if n := len(w.fake.Probes()); n != 1 {
		t.Errorf("a start waited for %d calls", n-1)
	}
	w.check(f.Serve(t.Context()))
	until(t, "the model is asked again", func() bool { return len(w.fake.Probes()) == 2 })
	until(t, "its answer is stored", func() bool { return problem(db) == "" })
	w.check(db.Close())
}

// A child that is told to end does not wait for a provider that is silent.
func TestStop_EndsALoadThatWaitsForAModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(fakellm.Rule{Purpose: "probe", Reply: fakellm.Reply{Stall: true}})
	f := formation.New(w.config("launch-1"))
	loaded := make(chan error, 1)
	go func() {
		_, err := f.Load(t.Context(), control.LoadRequest{Dir: w.dir, StateDir: w.state}, func(string) {})
		loaded <- err
	}()
	until(t, "the model is asked", func() bool { return len(w.fake.Probes()) == 1 })
	w.check(f.Stop(t.Context()))
	if err := <-loaded; err == nil {
		t.Error("the load went on")
	}
}

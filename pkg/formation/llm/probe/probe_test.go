package probe

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// models answers probes by the id of the model.
type models struct {
	mu    sync.Mutex
	asked []string
	says  map[string]func(ctx context.Context) (llm.Probed, error)
}

func (m *models) Probe(ctx context.Context, id string, ability llm.Ability) (llm.Probed, error) {
	m.mu.Lock()
	m.asked = append(m.asked, id+" "+string(ability))
	say := m.says[id]
	m.mu.Unlock()
	if say == nil {
		return llm.Probed{}, nil
	}
	return say(ctx)
}

// took returns what was asked since the last look.
func (m *models) took() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := m.asked
	m.asked = nil
	return asked
}

func (m *models) say(id string, dimension int, reason llm.Reason, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.says[id] = func(context.Context) (llm.Probed, error) {
		if message == "" {
			return llm.Probed{Dimension: dimension}, nil
		}
		return llm.Probed{}, fault.Wrap(fault.Failed, "", message, &llm.CallError{Reason: reason})
	}
}

// rig is one formation's store with a clock, models and a log.
type rig struct {
	t      *testing.T
	db     *store.DB
	now    atomic.Int64 // milliseconds
	models *models
	log    bytes.Buffer
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, models: &models{says: map[string]func(context.Context) (llm.Probed, error){}}}
	r.now.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMilli())
	var err error
	if r.db, err = store.Open(t.Context(), store.Config{
		Path: filepath.Join(t.TempDir(), "s.db"), LaunchID: "a", Log: zerolog.Nop(),
		Now: func() time.Time { return time.UnixMilli(r.now.Load()) },
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) later(d time.Duration) { r.now.Add(d.Milliseconds()) }

func (r *rig) prober(version string, all ...Model) *Prober {
	return New(Config{DB: r.db, Router: r.models, Version: version, Models: all, Log: zerolog.New(&r.log)})
}

func (r *rig) load(p *Prober) ([]string, error) { return p.Load(r.t.Context(), func(string) {}) }

func text(id string) Model { return Model{ID: id, Ability: llm.AnswersText} }

func TestLoad_AsksEachModelOnceForAVersion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all := []Model{text("a/1"), {"a/2", llm.MakesVectors}}
	r.models.say("a/2", 384, 0, "")
	for i, tc := range []struct {
		version string
		models  []Model
		want    int
	}{
		{"1", all, 2},
		{"1", all, 0}, // a restart waits for the store only
		{"2", all, 2}, // another version is asked anew
		{"2", append(all, text("a/3")), 1},
		{"1", all, 0}, // and the one before is not forgotten
	} {
		if warnings, err := r.load(r.prober(tc.version, tc.models...)); err != nil || warnings != nil {
			t.Fatalf("load %d: %v, %v", i, warnings, err)
		}
		if asked := r.models.took(); len(asked) != tc.want {
			t.Errorf("load %d asked %v, want %d models", i, asked, tc.want)
		}
	}
	known, err := r.prober("1").read(t.Context())
	if err != nil || known[all[1]].dimension != 384 || known[all[0]].dimension != 0 {
		t.Errorf("%+v, %v", known, err)
	}
}

func TestLoad_AModelThatCannotWorkFailsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.models.say("a/gone", 0, llm.Missing, "model a/gone: there is none")
	r.models.say("a/page", 0, llm.Garbled, "model a/page: no reply of a model")
	r.models.say("a/busy", 0, llm.Throttled, "model a/busy: later")
	p := r.prober("1", text("a/gone"), text("a/fine"), text("a/page"), text("a/busy"))
	for range 2 { // nothing of it is kept
		_, err := r.load(p)
		if fault.KindOf(err) != fault.Invalid || fault.NameOf(err) != "HealthCheckFailed" ||
			fault.From(err).Message != "model a/gone: there is none; model a/page: no reply of a model" {
			t.Fatalf("got %v", err)
		}
		if asked := r.models.took(); len(asked) != 4 {
			t.Errorf("asked %v", asked)
		}
	}
}

func TestLoad_DoubtIsAWarningAndAskedAgainInTheBackground(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.models.say("a/busy", 0, llm.Throttled, "model a/busy: later")
	r.models.say("local/acme/tiny", 0, llm.Missing, "model local/acme/tiny: the hub knows none")
	p := r.prober("1", text("a/busy"), Model{"local/acme/tiny", llm.MakesVectors})
	warnings, err := r.load(p)
	want := []string{"model a/busy: later; it is asked again later", "model local/acme/tiny: the hub knows none; it is asked again later"}
	if diff := cmp.Diff(want, warnings); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	if log := r.log.String(); !strings.Contains(log, `"model":"a/busy"`) || !strings.Contains(log, `"reason":"model a/busy: later"`) {
		t.Errorf("the log says %s", log)
	}
	r.models.took()
	// At once it would be the same call again.
	if settled, err := p.refresh(t.Context()); settled || err != nil || len(r.models.took()) != 0 {
		t.Errorf("settled %v, %v", settled, err)
	}
	r.later(time.Minute)
	r.models.say("a/busy", 0, 0, "")
	if settled, err := p.refresh(t.Context()); settled || err != nil {
		t.Errorf("settled %v, %v", settled, err)
	}
	if log := r.log.String(); !strings.Contains(log, "a model answers again") || strings.Count(log, "the hub knows none") != 1 {
		t.Errorf("the log says %s", log)
	}
	r.models.say("local/acme/tiny", 384, 0, "")
	r.later(time.Minute)
	if settled, err := p.refresh(t.Context()); !settled || err != nil {
		t.Errorf("settled %v, %v", settled, err)
	}
	if warnings, err := r.load(p); err != nil || warnings != nil {
		t.Errorf("the next load: %v, %v", warnings, err)
	}
}

func TestRefresh_AsksModelsThatWorkOnceADayAndTellsWhatChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all := []Model{text("a/1"), {"a/2", llm.MakesVectors}}
	r.models.say("a/2", 384, 0, "")
	p := r.prober("1", all...)
	if _, err := r.load(p); err != nil {
		t.Fatal(err)
	}
	r.models.took()
	if err := p.Refresh(t.Context()); err != nil || len(r.models.took()) != 0 {
		t.Fatalf("a fresh answer is asked for again: %v", err)
	}
	r.later(25 * time.Hour)
	r.models.say("a/2", 768, 0, "")
	if err := p.Refresh(t.Context()); err != nil || len(r.models.took()) != 2 {
		t.Fatal(err)
	}
	if log := r.log.String(); !strings.Contains(log, `"before":384,"now":768`) {
		t.Errorf("the log says %s", log)
	}
	// A model that is gone now ends no formation that runs, nor its next start.
	r.later(25 * time.Hour)
	r.models.say("a/1", 0, llm.Missing, "model a/1: gone")
	r.models.say("a/2", 0, llm.Broken, "model a/2: away")
	if settled, err := p.refresh(t.Context()); settled || err != nil || !strings.Contains(r.log.String(), "model a/1: gone") {
		t.Errorf("settled %v, %v", settled, err)
	}
	if warnings, err := r.load(p); err != nil || warnings != nil {
		t.Errorf("the next load: %v, %v", warnings, err)
	}
	if known, err := p.read(t.Context()); err != nil || known[all[1]].dimension != 768 {
		t.Errorf("the dimension is forgotten: %+v, %v", known, err)
	}
	// Old versions are forgotten in the end.
	r.later(kept + time.Hour)
	if _, err := r.load(r.prober("2", all[0])); err == nil {
		t.Fatal("a new version takes a model that is gone")
	}
	r.models.say("a/1", 0, 0, "")
	if _, err := r.load(r.prober("2", all[0])); err != nil {
		t.Fatal(err)
	}
	if known, err := p.read(t.Context()); err != nil || len(known) != 0 {
		t.Errorf("got %v, %v", known, err)
	}
}

func TestLoad_WaitsForSilentModelsALimitedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		silent := func(ctx context.Context) (llm.Probed, error) {
			<-ctx.Done()
			return llm.Probed{}, ctx.Err()
		}
		r.models.says["a/silent"] = silent
		p := r.prober("1", text("a/silent"), text("a/fine"))
		began := time.Now()
		warnings, err := r.load(p)
		want := []string{"model a/silent: there was no time left to ask it; it is asked again later"}
		if diff := cmp.Diff(want, warnings); diff != "" || err != nil || time.Since(began) != firstTime {
			t.Errorf("%s, %v after %s", diff, err, time.Since(began))
		}
		// A process that is told to end does not wait at all, and keeps nothing.
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := r.prober("2", text("a/silent")).Load(ctx, func(string) {}); err == nil {
			t.Error("a load that was given up succeeded")
		}
		if known, err := r.prober("2").read(t.Context()); err != nil || len(known) != 0 {
			t.Errorf("kept %v, %v", known, err)
		}
		// Refresh goes on, minute by minute and then more slowly, until it is answered.
		r.models.took()
		ended := make(chan error, 1)
		go func() { ended <- p.Refresh(t.Context()) }()
		for _, pause := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
			r.models.say("a/silent", 0, llm.Broken, "model a/silent: away")
			r.later(pause)
			<-time.After(pause)
			synctest.Wait()
		}
		if asked := r.models.took(); len(asked) != 3 {
			t.Errorf("asked %v", asked)
		}
		r.models.say("a/silent", 0, 0, "")
		r.later(8 * time.Minute)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

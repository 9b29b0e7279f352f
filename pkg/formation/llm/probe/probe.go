// Package probe asks every model that a formation declares once, when a version
// of its files is loaded for the first time, and keeps the answers with that
// version in the store.
//
// A model that can't work as it is declared fails that load, before anybody
// depends on it; one that can't be asked now is told and asked again in the
// background. Later loads wait for nothing but the store (reference runtime.md
// 7.1). The assembly runs it.
package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/store"
)

const (
	// parallel is how many models are asked at once, firstTime how long a first
	// load waits for all of them; those that are left are asked later.
	parallel  = 8
	firstTime = 15 * time.Second
	// fresh is how long the answer of a model that works holds: it costs money.
	fresh = 24 * time.Hour
	// firstPause is before a model with a problem is asked again; the pause
	// doubles to mostPause.
	firstPause = time.Minute
	mostPause  = time.Hour
	// kept is how long the answers of versions that are not loaded are kept.
	kept = 90 * 24 * time.Hour
)

// Router asks models; *llm.Router satisfies it.
type Router interface {
	Probe(ctx context.Context, modelID string, ability llm.Ability) (llm.Probed, error)
}

// Model is a model with what it is declared for.
type Model struct {
	ID      string // "provider/model", aliases resolved
	Ability llm.Ability
}

// Config says what is asked. All but Models are required.
type Config struct {
	DB     *store.DB
	Router Router
	// Version names the files that declare the models: another one is asked anew.
	Version string
	Models  []Model // each once
	Log     zerolog.Logger
}

// Prober asks the models of a formation.
type Prober struct{ cfg Config }

// New returns a Prober; it asks nobody yet.
func New(cfg Config) *Prober { return &Prober{cfg: cfg} }

// answer is what is known of a model.
type answer struct {
	Model
	at        time.Time
	problem   string
	dimension int
	unusable  bool // of an answer that was just given
}

// Load asks the models of which the store has no answer for this version. The
// warnings name those that could not be asked; the fault, HealthCheckFailed,
// names those that can't work as they are declared, and nothing is stored then.
func (p *Prober) Load(ctx context.Context, progress func(string)) (warnings []string, err error) {
	known, err := p.read(ctx)
	if err != nil {
		return nil, err
	}
	var open []Model
	for _, m := range p.cfg.Models {
		if a, ok := known[m]; !ok {
			open = append(open, m)
		} else if a.problem != "" {
			p.log(a).Msg("a model could not be checked at the last time")
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, firstTime)
	defer cancel()
	progress(fmt.Sprintf("asking %d models for a first answer", len(open)))
	answers := p.ask(limited, open)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	var wrong []string
	for _, a := range answers {
		if a.unusable {
			wrong = append(wrong, a.problem)
		} else if a.problem != "" {
			warnings = append(warnings, a.problem+"; it is asked again later")
			p.log(a).Msg("a model could not be checked")
		}
	}
	if len(wrong) > 0 {
		return nil, fault.New(fault.Invalid, "HealthCheckFailed", strings.Join(wrong, "; "))
	}
	return warnings, p.write(ctx, answers)
}

// Refresh asks the models whose answer is old, and those with a problem until
// they have none or ctx ends. What has changed is told in the log; nothing that
// a model answers ends a formation that runs.
func (p *Prober) Refresh(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		settled, err := p.refresh(ctx)
		switch {
		case ctx.Err() != nil || settled:
			return nil //nolint:nilerr // to be ended is no failure
		case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrClosed):
			return err
		case err != nil:
			p.cfg.Log.Warn().Err(err).Msg("check the models")
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// refresh is one round; settled tells that every model has answered well.
func (p *Prober) refresh(ctx context.Context) (settled bool, err error) {
	known, err := p.read(ctx)
	if err != nil {
		return false, err
	}
	var due []Model
	now := p.cfg.DB.Now()
	for _, m := range p.cfg.Models {
		a, ok := known[m]
		age := now.Sub(a.at)
		if !ok || age >= fresh || a.problem != "" && age >= firstPause {
			due = append(due, m)
		}
	}
	answers := p.ask(ctx, due)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	for _, a := range answers {
		p.compare(known[a.Model], a)
		known[a.Model] = a
	}
	if err := p.write(ctx, answers); err != nil {
		return false, err
	}
	for _, m := range p.cfg.Models {
		if known[m].problem != "" {
			return false, nil
		}
	}
	return true, nil
}

// compare tells what has changed since the answer before.
func (p *Prober) compare(before, now answer) {
	switch {
	case now.problem != "" && now.problem != before.problem:
		p.log(now).Msg("a model does not answer as it should")
	case now.problem == "" && before.problem != "":
		p.cfg.Log.Info().Str("model", now.ID).Msg("a model answers again")
	}
	if now.dimension != 0 && before.dimension != 0 && now.dimension != before.dimension {
		p.cfg.Log.Error().Str("model", now.ID).Int("before", before.dimension).Int("now", now.dimension).
			Msg("an embedding model makes vectors of another dimension: they do not compare with those before")
	}
}

func (p *Prober) log(a answer) *zerolog.Event {
	return p.cfg.Log.Warn().Str("model", a.ID).Str("ability", string(a.Ability)).Str("reason", a.problem)
}

// ask asks models side by side, each of them once.
func (p *Prober) ask(ctx context.Context, models []Model) []answer {
	answers := make([]answer, len(models))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, m := range models {
		group.Go(func() error {
			out, err := p.cfg.Router.Probe(ctx, m.ID, m.Ability)
			a := answer{Model: m, at: p.cfg.DB.Now(), dimension: out.Dimension}
			switch {
			case err != nil && ctx.Err() != nil:
				a.problem = "model " + m.ID + ": there was no time left to ask it"
			case err != nil:
				a.problem = fault.From(err).Message
				// A local model is missed as long as it is away; its formation
				// recalls by words until then.
				a.unusable = llm.Unusable(err) && !strings.HasPrefix(m.ID, "local/")
			}
			answers[i] = a
			return nil
		})
	}
	_ = group.Wait() // none of them returns an error
	return answers
}

// read returns the answers that the store has for this version.
func (p *Prober) read(ctx context.Context) (map[Model]answer, error) {
	rows, err := p.cfg.DB.Query(ctx, `SELECT model, ability, checked_at, problem, dimension FROM model_probes WHERE version = ?`, p.cfg.Version)
	if err != nil {
		return nil, fmt.Errorf("read what models answered: %w", err)
	}
	defer rows.Close()
	known := map[Model]answer{}
	for rows.Next() {
		var a answer
		var at int64
		if err := rows.Scan(&a.ID, &a.Ability, &at, &a.problem, &a.dimension); err != nil {
			return nil, fmt.Errorf("read what models answered: %w", err)
		}
		a.at = time.UnixMilli(at)
		known[a.Model] = a
	}
	return known, rows.Err()
}

// write stores answers. A dimension that was known stays known.
func (p *Prober) write(ctx context.Context, answers []answer) error {
	if len(answers) == 0 {
		return nil
	}
	err := p.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		for _, a := range answers {
			if _, err := tx.Exec(`INSERT INTO model_probes (version, model, ability, checked_at, problem, dimension) VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT (version, model, ability) DO UPDATE SET checked_at = excluded.checked_at, problem = excluded.problem,
				dimension = CASE excluded.dimension WHEN 0 THEN dimension ELSE excluded.dimension END`,
				p.cfg.Version, a.ID, string(a.Ability), a.at.UnixMilli(), a.problem, a.dimension); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`DELETE FROM model_probes WHERE version <> ? AND checked_at < ?`, p.cfg.Version, p.cfg.DB.Now().Add(-kept).UnixMilli())
		return err
	})
	if err != nil {
		return fmt.Errorf("store what models answered: %w", err)
	}
	return nil
}

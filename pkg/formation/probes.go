package formation

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/probe"
	"github.com/agentformation/service/pkg/manifest"
)

// probeModels asks the models of a version that is loaded for the first time.
func (f *Formation) probeModels(ctx context.Context, p *parts, req control.LoadRequest, progress func(string)) error {
	p.probes = probe.New(probe.Config{
		DB: p.db, Router: p.router, Models: declaredModels(p.manifest), Log: f.cfg.Log,
		Version: filepath.Base(req.Dir), // a supervisor gives each deployed version a directory of its own
	})
	warnings, err := p.probes.Load(ctx, progress)
	for _, w := range warnings {
		p.unsure = append(p.unsure, f.cfg.Redact.Values(w))
	}
	return err
}

// declaredModels returns every model that the files name, once for each thing
// that it is to do.
func declaredModels(m *manifest.Formation) []probe.Model {
	var out []probe.Model
	seen := map[probe.Model]bool{}
	add := func(id string, ability llm.Ability) {
		one := probe.Model{ID: m.LLM.Resolve(id), Ability: ability}
		if id == "" || seen[one] {
			return
		}
		seen[one] = true
		out = append(out, one)
	}
	all := m.LLM.Models
	for i := range m.Agents {
		all = append(slices.Clip(all), m.Agents[i].LLM.Models...)
	}
	for _, id := range answering(m) {
		add(id, llm.AnswersText)
	}
	for _, model := range all {
		switch model.Capability {
		case manifest.CapabilityEmbedding:
			add(model.ID, llm.MakesVectors)
		case manifest.CapabilityAudio:
		default:
			add(model.ID, llm.AnswersText)
		}
	}
	for _, model := range all {
		// A model that answers text is shown recordings as it is shown images.
		own := probe.Model{ID: m.LLM.Resolve(model.ID), Ability: llm.AnswersText}
		if model.Capability == manifest.CapabilityAudio && !seen[own] {
			add(model.ID, llm.HearsSpeech)
		}
	}
	return out
}

// answering returns the ids of models that answer for the overlord and the
// agents, and of those that stand in for them. Some are "".
func answering(m *manifest.Formation) []string {
	uses := []manifest.ModelUse{m.OverlordUse(), m.SynthesisUse()}
	for i := range m.Agents {
		uses = append(uses, m.Agents[i].Use(m))
	}
	for _, of := range mediaModels(m) {
		if of.capability != manifest.CapabilityAudio {
			uses = append(uses, of.use)
		}
	}
	ids := make([]string, 0, 2*len(uses))
	for _, use := range uses {
		ids = append(ids, use.ID, use.Settings.FallbackModel)
	}
	return ids
}

package formation

import (
	"context"
	"errors"
	"slices"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/manifest"
)

// preparer makes the files of messages ready, by the limits of the formation's
// models and of its agents' own.
func preparer(m *manifest.Formation, log zerolog.Logger) *media.Preparer {
	agents := make(map[string]manifest.Media, len(m.Agents))
	for i := range m.Agents {
		agents[m.Agents[i].ID] = mediaLimits(m, m.Agents[i].LLM.Models)
	}
	reads := slices.ContainsFunc(mediaModels(m), func(u mediaModel) bool { return u.capability == manifest.CapabilityDocuments })
	return media.New(media.Config{
		MaxFiles: m.InputLimits.MaxBatchItems, MaxFileBytes: m.InputLimits.MaxFileSizeBytes,
		Media: mediaLimits(m, nil), Agents: agents,
		KeepPDF: reads, Worker: media.NewProcess(media.ProcessConfig{Log: log}),
	})
}

// mediaLimits are those of who has these models of his own: each of a kind's own
// model, or of the formation's.
func mediaLimits(m *manifest.Formation, own []manifest.Model) manifest.Media {
	limits := m.LLM.Media
	for capability, take := range map[string]func(manifest.Media){
		manifest.CapabilityVision:    func(x manifest.Media) { limits.Vision = x.Vision },
		manifest.CapabilityAudio:     func(x manifest.Media) { limits.Audio = x.Audio },
		manifest.CapabilityVideo:     func(x manifest.Media) { limits.Video = x.Video },
		manifest.CapabilityDocuments: func(x manifest.Media) { limits.Documents = x.Documents },
	} {
		if _, its, ok := m.LLM.For(capability, own); ok {
			take(its)
		}
	}
	return limits
}

// measurer is the preparer as agents want it.
type measurer struct{ *media.Preparer }

// Measure implements agent.Measurer.
func (m measurer) Measure(ctx context.Context, agentID string, files []chat.File) ([]chat.File, error) {
	out, err := m.Preparer.Measure(ctx, agentID, files)
	if refused, ok := errors.AsType[*media.RefusedError](err); ok {
		return nil, fault.Wrap(fault.Unprocessable, "", "agent "+agentID+" cannot be shown "+refused.Error(), refused)
	}
	return out, err
}

// mediaModel is a model for one kind of media.
type mediaModel struct {
	capability string
	use        manifest.ModelUse
}

// mediaModels returns the models for media that some agent of the formation
// uses, its own or the formation's.
func mediaModels(m *manifest.Formation) []mediaModel {
	var out []mediaModel
	for _, capability := range []string{
		manifest.CapabilityVision, manifest.CapabilityAudio, manifest.CapabilityVideo, manifest.CapabilityDocuments,
	} {
		for i := range m.Agents {
			if use, _, ok := m.LLM.For(capability, m.Agents[i].LLM.Models); ok {
				out = append(out, mediaModel{capability, use})
			}
		}
	}
	return out
}

package formation

import (
	"slices"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/manifest"
)

// preparer makes the files of messages ready by the formation's limits. Those of
// an agent's own models do not count: who answers is decided later.
func preparer(m *manifest.Formation, log zerolog.Logger) *media.Preparer {
	limits := m.LLM.Media
	for capability, take := range map[string]func(manifest.Media){
		manifest.CapabilityVision:    func(x manifest.Media) { limits.Vision = x.Vision },
		manifest.CapabilityAudio:     func(x manifest.Media) { limits.Audio = x.Audio },
		manifest.CapabilityVideo:     func(x manifest.Media) { limits.Video = x.Video },
		manifest.CapabilityDocuments: func(x manifest.Media) { limits.Documents = x.Documents },
	} {
		if _, own, ok := m.LLM.For(capability, nil); ok {
			take(own)
		}
	}
	reads := slices.ContainsFunc(mediaModels(m), func(u mediaModel) bool { return u.capability == manifest.CapabilityDocuments })
	return media.New(media.Config{
		MaxFiles: m.InputLimits.MaxBatchItems, MaxFileBytes: m.InputLimits.MaxFileSizeBytes, Media: limits,
		KeepPDF: reads, Worker: media.NewProcess(media.ProcessConfig{Log: log}),
	})
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

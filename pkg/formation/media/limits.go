package media

import (
	"context"
	"slices"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// Measure holds prepared files against the limits of the agent that is to be
// shown them, and makes images smaller for it. Files that were prepared for that
// agent come back as they are. The errors are those of Prepare.
func (p *Preparer) Measure(ctx context.Context, agentID string, files []chat.File) ([]chat.File, error) {
	limits, ok := p.cfg.Agents[agentID]
	if !ok {
		limits = p.cfg.Media
	}
	works := make([]work, len(files))
	for i, f := range files {
		if f.Size == 0 {
			f.Size = len(f.Data)
		}
		w := work{index: i, limits: &limits, file: f}
		if f.Kind == chat.Video {
			w.found = sniff(f.Data, f.Name, f.MediaType)
		}
		w.checkSize()
		works[i] = w
	}
	if err := refused(works); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(files, func(f chat.File) bool { return f.Kind == chat.Image }) {
		return files, nil
	}
	return each(ctx, works, func(ctx context.Context, w *work) error {
		if w.file.Kind != chat.Image {
			return nil
		}
		return p.image(ctx, w)
	})
}

// widest are limits that refuse nothing that some agent takes, and make no image
// smaller than some agent wants it. The formation's own count when it has no agent.
func widest(formation manifest.Media, agents map[string]manifest.Media) manifest.Media {
	first, out := true, formation
	for _, m := range agents {
		if first {
			first, out = false, m
			continue
		}
		out.Vision.MaxSizeMB = wider(out.Vision.MaxSizeMB, m.Vision.MaxSizeMB)
		out.Vision.MaxWidth = wider(out.Vision.MaxWidth, m.Vision.MaxWidth)
		out.Vision.MaxHeight = wider(out.Vision.MaxHeight, m.Vision.MaxHeight)
		out.Vision.Resize = out.Vision.Resize && m.Vision.Resize
		out.Audio.MaxSizeMB = wider(out.Audio.MaxSizeMB, m.Audio.MaxSizeMB)
		out.Video.MaxSizeMB = wider(out.Video.MaxSizeMB, m.Video.MaxSizeMB)
		out.Video.MaxDuration = wider(out.Video.MaxDuration, m.Video.MaxDuration)
		out.Documents.MaxSizeMB = wider(out.Documents.MaxSizeMB, m.Documents.MaxSizeMB)
	}
	return out
}

// wider returns the larger of two limits; 0 is none at all.
func wider[T ~int | ~int64](a, b T) T {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

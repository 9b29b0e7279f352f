package media_test

import (
	"bytes"
	"errors"
	"image"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/manifest"
)

// narrow takes less than the formation, wide more; the formation's own limits are
// those of newPreparer.
func narrowAndWide(c *media.Config) {
	narrow, wide := limits(), limits()
	narrow.Vision.MaxWidth, narrow.Vision.MaxHeight = 32, 32
	narrow.Video.MaxDuration = 100 * time.Second
	wide.Vision.Resize, wide.Vision.MaxSizeMB = false, 3
	wide.Audio.MaxSizeMB, wide.Documents.MaxSizeMB = 2, 2
	c.Agents = map[string]manifest.Media{"narrow": narrow, "wide": wide}
}

func TestMeasure_HoldsFilesAgainstTheLimitsOfWhoIsShownThem(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, narrowAndWide)
	const mega = 1 << 20
	large := func(head string, size int) []byte { return append([]byte(head), make([]byte, size)...) }
	tests := []struct {
		name    string
		data    []byte
		refusal string // of narrow
	}{
		{"a recording", large("fLaC", mega), "files[0] (file-1): 1.0 MiB are more than 1 (audio max_size_mb)"},
		{"a text", bytes.Repeat([]byte("word "), mega/4), "files[0] (file-1): 1.2 MiB are more than 1 (documents max_size_mb)"},
		{"a film", mp4("isom", 200, "vide"), "files[0] (file-1): 200.0 seconds are more than 100 (video max_duration_seconds)"},
		{"a large image", append(pngOf(t, 20, 20), make([]byte, mega)...), "files[0] (file-1): 1.0 MiB are more than 1 (vision image.max_size_mb)"},
		{"a short film", mp4("isom", 50, "vide"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			upload := media.Upload{Data: tt.data}
			// Nobody is named: some agent may be shown it.
			files, err := p.Prepare(t.Context(), batch(upload))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Measure(t.Context(), "wide", files); err != nil {
				t.Errorf("wide: %v", err)
			}
			_, measured := p.Measure(t.Context(), "narrow", files)
			_, named := p.Prepare(t.Context(), media.Batch{Files: []media.Upload{upload}, Agent: "narrow"})
			for way, err := range map[string]error{"measured": measured, "named": named} {
				var refused *media.RefusedError
				if tt.refusal == "" && err != nil || tt.refusal != "" && (!errors.As(err, &refused) || !refused.Refusals[0].TooLong || err.Error() != tt.refusal) {
					t.Errorf("%s: got %v, want %q", way, err, tt.refusal)
				}
			}
		})
	}
}

func TestMeasure_MakesImagesAsSmallAsTheAgentWantsThem(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, narrowAndWide)
	data := pngOf(t, 640, 160)
	files, err := p.Prepare(t.Context(), batch(media.Upload{Data: data}, media.Upload{Data: []byte("words")}))
	if err != nil || !bytes.Equal(files[0].Data, data) {
		t.Fatalf("an agent wants it whole: %v", err)
	}
	whole, err := p.Measure(t.Context(), "wide", files)
	if err != nil || !bytes.Equal(whole[0].Data, data) {
		t.Errorf("wide: %v", err)
	}
	small, err := p.Measure(t.Context(), "narrow", files)
	if err != nil || len(small) != 2 || small[1].Text != "words" {
		t.Fatalf("narrow: %+v, %v", small, err)
	}
	if c, _, err := image.DecodeConfig(bytes.NewReader(small[0].Data)); err != nil || c.Width != 32 || c.Height != 8 {
		t.Errorf("narrow: %d x %d, %v", c.Width, c.Height, err)
	}
	if !bytes.Equal(files[0].Data, data) {
		t.Error("the files of others were changed")
	}
	again, err := p.Measure(t.Context(), "narrow", small)
	if err != nil || !bytes.Equal(again[0].Data, small[0].Data) {
		t.Errorf("once more: %v", err)
	}
}

func TestPrepare_SpokenMessagesHaveTheLimitsOfWhoListens(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, narrowAndWide)
	sound := []media.Upload{{Data: append([]byte("fLaC"), make([]byte, 1<<20)...)}}
	if _, err := p.Prepare(t.Context(), media.Batch{Files: sound, Spoken: true}); err == nil || !strings.Contains(err.Error(), "audio max_size_mb") {
		t.Errorf("the formation listens: %v", err)
	}
	files, err := p.Prepare(t.Context(), media.Batch{Files: sound, Spoken: true, Agent: "wide"})
	if err != nil || files[0].Kind != chat.Audio || files[0].Size != len(sound[0].Data) {
		t.Errorf("wide listens: %v", err)
	}
}

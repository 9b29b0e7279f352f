package manifest_test

import (
	"testing"
	"time"

	"github.com/agentformation/service/pkg/manifest"
)

func TestParseDuration_ReadsOneUnitOrSeconds(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "90s": 90 * time.Second, "15m": 15 * time.Minute, "2h": 2 * time.Hour,
		"45": 45 * time.Second, "0": 0, "1.5": 1500 * time.Millisecond, "0.5h": 30 * time.Minute, "87600h": 87600 * time.Hour,
	} {
		if got, err := manifest.ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "s", "ms", "-5", "+5", "5 s", " 5", "1h30m", "5d", "5sm", "5S", "1e3", "0x5", "nan", "inf", "1.2.3", ".", "87601h", "9999999999999999999999h", "٣s",
	} {
		if got, err := manifest.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %s", in, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"500ms", "90s", "15m", "2h", "5", "1.5h", "-1", "1h30m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := manifest.ParseDuration(s)
		if err == nil && (d < 0 || d > 10*365*24*time.Hour) {
			t.Errorf("ParseDuration(%q) = %s", s, d)
		}
	})
}

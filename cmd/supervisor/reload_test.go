package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestReload_MayTakeTheDrainTimeAndHalfAMinute(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]time.Duration{
		"":                                  time.Minute, // the drain time is 30 s
		"formations: {drain_timeout: 5m}\n": 5*time.Minute + 30*time.Second,
		"formations: {drain_timeout: 0}\n":  30 * time.Second,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		a := &app{home: dir, lookupEnv: os.LookupEnv}
		h, err := a.openHome()
		if err != nil {
			t.Fatal(err)
		}
		if got := h.reloadTimeout(); got != want {
			t.Errorf("%q: %s, want %s", settings, got, want)
		}
	}
}

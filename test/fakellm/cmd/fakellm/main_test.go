package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRun_RefusesWhatItShouldNotServe(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(rules, []byte(`{"usr":"typo"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-listen", "0.0.0.0:0"}, "loopback"},
		{[]string{"-listen", "nonsense"}, "nonsense"},
		{[]string{"-rules", "/does/not/exist"}, "read the rules"},
		{[]string{"-rules", rules}, "usr"},
	} {
		if err := run(t.Context(), c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.want)
		}
	}
}

func TestRun_ServesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	ready := filepath.Join(t.TempDir(), "url")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-ready", ready}) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var url []byte
	for len(url) == 0 {
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		case <-tick.C:
			url, _ = os.ReadFile(ready)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(url)+"/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("status %d, error %v", res.StatusCode, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/client"
)

func TestSeveral_TheWorstDecidesTheExitCode(t *testing.T) {
	t.Parallel()
	status := func(n int) error { return fmt.Errorf("x: %w", &client.Error{Status: n}) }
	gone := &client.Error{Name: client.NameUnreachable}
	for name, tc := range map[string]struct {
		errs []error
		want int
	}{
		"missing, conflict":      {[]error{status(404), status(409)}, exitConflict},
		"conflict, missing":      {[]error{status(409), status(404)}, exitConflict},
		"failed, conflict":       {[]error{errors.New("x"), status(409)}, exitFailed},
		"unavailable, failed":    {[]error{gone, errors.New("x"), nil}, exitUnavailable},
		"unauthorised, the rest": {[]error{gone, status(401), errors.New("x"), status(404)}, exitUnauthorised},
	} {
		if got := exitCode(fmt.Errorf("wrapped: %w", several(tc.errs))); got != tc.want {
			t.Errorf("%s: exit code %d, want %d", name, got, tc.want)
		}
	}
	if several([]error{nil, nil}) != nil {
		t.Error("no error is an error")
	}
}

func TestStatus_ColoursOnlyATerminalThatWantsThem(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("GET /rpc/formations", reply{status: 200, body: `{"data":{"formations":[{"id":"hello"},{"id":"ab"}]}}`})
	f.on("GET /rpc/formations/hello", reply{status: 200, body: `{"data":{"id":"hello","status":"running","healthy":true}}`})
	f.on("GET /rpc/formations/ab", reply{status: 200, body: `{"data":{"id":"ab","status":"crashed","port":8000}}`})
	s := newSession(t, f)
	s.outTTY = true
	if code := s.run(t.Context(), "status"); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	coloured := s.out.String()
	if !strings.Contains(coloured, "\x1b[32mrunning\x1b[0m") || !strings.Contains(coloured, "\x1b[31mcrashed\x1b[0m") {
		t.Errorf("printed %q", coloured)
	}
	s.noColour = true
	if s.run(t.Context(), "status"); strings.Contains(s.out.String(), "\x1b") {
		t.Errorf("printed %q, although no colours are wanted", s.out.String())
	}
	bare := s.out.String()
	s.outTTY, s.noColour = false, false
	if s.run(t.Context(), "status"); s.out.String() != bare {
		t.Errorf("printed %q, want %q", s.out.String(), bare)
	}
	for _, c := range []colour{bold, dim, red, green, yellow} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+string(c)+"m", "")
	}
	if coloured = strings.ReplaceAll(coloured, "\x1b[0m", ""); coloured != bare {
		t.Errorf("with colours the columns are others:\n%s\n%s", coloured, bare)
	}
}

func TestStart_CountsAtATerminal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	for _, id := range []string{"one", "two"} {
		f.on("POST /rpc/formations/"+id+"/start", reply{
			status: 200, body: "event: progress\ndata: {\"stage\":\"spawning\",\"message\":\"start\"}\n\n" +
				strings.ReplaceAll(completeEvent, "hello", id),
		})
	}
	s := newSession(t, f)
	s.errTTY = true
	if code := s.run(t.Context(), "start", "one", "two"); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	if shown := s.er.String(); !strings.Contains(shown, "(1 of 2)") || !strings.Contains(shown, "(2 of 2)") || strings.Contains(shown, "\n") {
		t.Errorf("shown %q", shown)
	}
}

func TestBytesText_ShowsOneUnit(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 20 << 20: "20.0 MiB", 3 << 40: "3.0 TiB", 5000 << 40: "5000.0 TiB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestPointInTime_ReadsTimesDaysAndAges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		"2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), "2026-01-02 03:04": time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		"2h": now.Add(-2 * time.Hour), "7d": now.Add(-7 * 24 * time.Hour), "0s": now,
	} {
		if got, err := pointInTime("--since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"now", "-2h", "d", "-1d", "2026-13-01", "99999d"} {
		if _, err := pointInTime("--since", text, now); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// setServer puts keys into the block "server" of a home's settings.
func setServer(t *testing.T, made InitResult, keys string) {
	t.Helper()
	text := readFile(t, made.ConfigPath)
	writeFile(t, made.ConfigPath, strings.Replace(text, "server:\n", "server:\n  "+keys+"\n", 1))
}

// setFormations does so for the block "formations".
func setFormations(t *testing.T, made InitResult, keys string) {
	t.Helper()
	text := readFile(t, made.ConfigPath)
	writeFile(t, made.ConfigPath, strings.Replace(text, "formations:\n", "formations:\n  "+keys+"\n", 1))
}

// refusedFor returns how many requests of n were refused as too many, and what
// the last refusal said.
func refusedFor(t *testing.T, n int, ask func() error) (refused int, last *client.Error) {
	t.Helper()
	for range n {
		err := ask()
		var e *client.Error
		switch {
		case err == nil:
		case errors.As(err, &e) && e.Status == http.StatusTooManyRequests:
			refused++
			last = e
		default:
			t.Fatal(err)
		}
	}
	return refused, last
}

func TestLimits_BoundEachKeyAndAddressFromTheSettingsOn(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	setServer(t, made, "limits: {requests_per_minute: 1, burst: 3}")
	text := readFile(t, made.ConfigPath)
	writeFile(t, made.ConfigPath, strings.Replace(text, "  keys:\n", "  keys:\n    - {id: second, secret: s2}\n", 1))
	d := start(t, home, made)
	list := func(api *client.Server) func() error {
		return func() error {
			_, err := api.List(t.Context(), "")
			return err
		}
	}
	refused, last := refusedFor(t, 5, list(d.server(t, made.KeyID, made.Secret)))
	if refused != 2 || last.Name != "RateLimited" || !strings.Contains(last.Message, "server.limits.requests_per_minute") {
		t.Errorf("%d of 5 refused, %+v; want 2 for a burst of 3", refused, last)
	}
	if refused, _ := refusedFor(t, 3, list(d.server(t, "second", "s2"))); refused != 0 {
		t.Errorf("another key was refused %d times", refused)
	}
	for range 10 {
		res := d.get(t, "/health")
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("health: %s", res.Status)
		}
	}
	proxied := 0
	for range 5 {
		res := d.get(t, "/api/nobody/")
		res.Body.Close()
		if res.StatusCode == http.StatusTooManyRequests {
			if proxied++; res.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
	}
	if proxied != 2 {
		t.Errorf("%d of 5 requests to formations refused, want 2", proxied)
	}
}

func TestLimits_AreOffUnlessSetAndChangeWithAReload(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.start()
	list := func() error {
		_, err := s.api().List(t.Context(), "")
		return err
	}
	if refused, _ := refusedFor(t, 200, list); refused != 0 {
		t.Errorf("%d of 200 refused without a setting", refused)
	}
	setServer(t, s.made, "limits: {requests_per_minute: 2}")
	s.reload()
	if refused, _ := refusedFor(t, 3, list); refused != 1 {
		t.Errorf("%d of 3 refused, want 1: without burst a minute's share may come at once", refused)
	}
	writeFile(t, s.made.ConfigPath, strings.Replace(readFile(t, s.made.ConfigPath), "requests_per_minute: 2", "requests_per_minute: 0", 1))
	s.reload()
	if refused, _ := refusedFor(t, 50, list); refused != 0 {
		t.Errorf("%d of 50 refused when it is off again", refused)
	}
}

func TestMetrics_NeedTheTokenWhenThereIsOne(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settings, given string
		status          int
	}{
		"no token":    {"", "", http.StatusOK},
		"none given":  {"metrics: {token: 0pen-sesame}\n", "", http.StatusUnauthorized},
		"wrong":       {"metrics: {token: 0pen-sesame}\n", "Bearer 0pen-sesam", http.StatusUnauthorized},
		"no bearer":   {"metrics: {token: 0pen-sesame}\n", "0pen-sesame", http.StatusUnauthorized},
		"the token":   {"metrics: {token: 0pen-sesame}\n", "Bearer 0pen-sesame", http.StatusOK},
		"token and ?": {"metrics: {token: 0pen-sesame}\n", "Bearer 0pen-sesame?", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, made := initHome(t)
			writeFile(t, made.ConfigPath, readFile(t, made.ConfigPath)+tc.settings)
			d := start(t, home, made)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+"/metrics", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if tc.given != "" {
				req.Header.Set("Authorization", tc.given)
			}
			res, err := d.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tc.status {
				t.Fatalf("%s, %v: %s", res.Status, err, text)
			}
			if good := strings.Contains(string(text), "\n# TYPE "); good != (tc.status == http.StatusOK) {
				t.Errorf("answer: %s", text)
			}
			if strings.Contains(string(text), "sesame") {
				t.Errorf("the answer holds the token: %s", text)
			}
		})
	}
}

// rotated are the parts of a log beside itself.
func rotated(t *testing.T, path string) []string {
	t.Helper()
	parts, err := filepath.Glob(path + ".[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// wantNumbered looks for the first n lines that the formation hello was asked to
// write, each once and in order.
func (s *served) wantNumbered(n int) {
	s.t.Helper()
	logs, err := s.api().Logs(s.t.Context(), "hello", client.LogsRequest{Lines: 10000, Stream: "stdout"})
	if err != nil {
		s.t.Fatal(err)
	}
	var got, want []string
	for _, line := range logs.Logs.Stdout {
		if _, text, ok := strings.Cut(line, "out "); ok {
			number, _, _ := strings.Cut(text, ",")
			got = append(got, number)
		}
	}
	for i := range n {
		want = append(want, strconv.Itoa(i))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("of %d lines that were written one by one %d are left: %v", n, len(got), got)
	}
}

func TestRotation_OfEveryLogWhileAllGoOnWriting(t *testing.T) {
	t.Parallel()
	s := newServed(t, "logging: {output: logs/own.log}\n")
	setFormations(t, s.made, "log_max_size: 64K\n  log_max_files: 1000")
	s.logFile = filepath.Join(s.home, "logs/own.log")
	if err := os.MkdirAll(filepath.Dir(s.logFile), 0o750); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.logFile, strings.Repeat("of an earlier life\n", 5000)) // more than one part holds
	s.start()
	s.deploy("hello")
	out, audit := filepath.Join(s.home, "logs/hello-out.log"), filepath.Join(s.home, "logs/audit.log")
	n := 0
	write := func() {
		t.Helper()
		res := get(t, s.http, fmt.Sprintf("%s/api/hello/log?%d,%s", s.url, n, strings.Repeat("x", 2000)))
		res.Body.Close()
		n++
		for range 5 { // records of the audit log
			if _, err := s.api().Get(t.Context(), "hello"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for turn := range 2 { // the second with the program that a reload brought
		deploytest.Eventually(t, "the logs are rotated", func() bool {
			write()
			return len(rotated(t, out)) > turn && len(rotated(t, audit)) > turn && len(rotated(t, s.logFile)) > 0
		})
		if turn == 0 {
			s.reload()
		}
	}
	s.wantNumbered(n)
	s.stop() // nothing is rotated while the parts are read
	if text := readFile(t, s.logFile); strings.Contains(text, "earlier life") || !strings.Contains(text, `"message":"request"`) {
		t.Errorf("the supervisor's log after its rotation:\n%s", text)
	}
	whole := readFile(t, s.logFile)
	for _, part := range rotated(t, s.logFile) {
		whole += readFile(t, part)
	}
	for text, want := range map[string]int{"of an earlier life": 5000, "supervisor is ready": 2, "reloading": 1} {
		if n := strings.Count(whole, text); n != want {
			t.Errorf("%q is %d times in the parts of the supervisor's log, want %d", text, n, want)
		}
	}
}

func TestRotation_KeepsNoMorePartsThanSet(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	setFormations(t, made, "log_max_size: 64K\n  log_max_files: 2")
	d := start(t, home, made)
	bundle := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	if _, err := d.server(t, made.KeyID, made.Secret).Deploy(t.Context(), client.DeployRequest{ID: "hello", Bundle: bytes.NewReader(bundle)}, nil); err != nil {
		t.Fatal(err)
	}
	outLog := filepath.Join(home, "logs/hello-out.log")
	first, n := "", 0
	deploytest.Eventually(t, "the first lines have gone with their part", func() bool {
		res := d.get(t, fmt.Sprintf("/api/hello/log?%d,%s", n, strings.Repeat("y", 2000)))
		res.Body.Close()
		n++
		parts := rotated(t, outLog)
		if len(parts) > 2 {
			t.Fatalf("parts %v, want 2 at most", parts)
		}
		if len(parts) == 2 && first == "" {
			first = readFile(t, outLog+".2")
		}
		return first != "" && len(parts) == 2 && readFile(t, outLog+".2") != first
	})
}

func TestRotation_IsOffWhenTheSettingsSaySo(t *testing.T) {
	t.Parallel()
	cfg := defaults("/nowhere")
	s := &Supervisor{cfg: cfg}
	if r := s.rotator(); r == nil || r.MaxSize != 10<<20 || r.MaxFiles != 10 {
		t.Errorf("by default: %+v", r)
	}
	s.cfg.Formations.LogRotation = false
	if r := s.rotator(); r != nil {
		t.Errorf("turned off: %+v", r)
	}
}

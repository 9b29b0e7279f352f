package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func show(t *testing.T, c Config) string {
	t.Helper()
	var b strings.Builder
	if err := c.Show(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestShow_TellsEveryValueAndWhereItComesFrom(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, `server_id: "on"
server: {trusted_proxies: [10.0.0.0/8]}
metrics: {token: hunter2}
notify: {webhook: "https://user:hunter2@hooks.example/hunter2?t=hunter2", secret: hunter2}
auth: {keys: [{id: a, secret: hunter2}, {id: a, secret: hunter2, valid_until: "2026-01-02T15:04:05+01:00"}], key: b, secret: hunter2}
formations:
  keep_backups: 3
  port_range: [8100, 8200]
  default_memory: 300M
  docker: {image: x}
  limits: {zzz: {cpu: 500m}, default: {memory: 1G}}
`, map[string]string{"SVC_PORT": "7000"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen = "127.0.0.1:0"
	text := show(t, cfg)
	if strings.Contains(text, "hunter2") {
		t.Errorf("a secret is shown:\n%s", text)
	}
	for _, line := range []string{
		"# the management API listens on 127.0.0.1:0 (--listen)",
		`server_id: "on"  # config.yaml:1`,
		"  host: 0.0.0.0  # default",
		"  port: 7000  # SVC_PORT",
		"  trusted_proxies: [10.0.0.0/8]  # config.yaml:2",
		`  token: "***"  # config.yaml:3`,
		`  webhook: "https://hooks.example/***"  # config.yaml:4`,
		`  keys: [{id: a, secret: "***"}, {id: a, secret: "***", valid_until: "2026-01-02T14:04:05Z"}, {id: b, secret: "***"}]  # config.yaml:5`,
		"  keep_versions: 3  # config.yaml:7",
		"  port_range_start: 8100  # config.yaml:8",
		"  default_memory: 300MiB  # config.yaml:9",
		"  max_memory: null  # default",
		"  orphan_timeout: never  # default",
		"    probation: 10s  # default",
		"    base_ms: 100ms  # default",
		"    zzz:",
		"      cpu: 0.5  # config.yaml:11",
	} {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
	for _, word := range []string{"cpu: 0 ", "docker", "keep_backups", "max_restarts", "port_range:"} {
		if strings.Contains(text, word) {
			t.Errorf("%s is shown:\n%s", word, text)
		}
	}
}

// What is shown is a settings file with the same meaning, masks aside.
func TestShow_CanBeReadAgain(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"defaults": "",
		"all": `
server_id: "007"
header_prefix: Acme
server: {host: "::1", tls: {cert: a b.pem, key: "k: #.pem"}, limits: {requests_per_minute: 9}}
formations:
  env_allow: [A, "true"]
  restart: {base_ms: 6, max_ms: 7s}
  health_check_timeout: 500ms
  drain_timeout: 90
  orphan_timeout: 1m
  deployment: {health_check: {timeout: 0}}
  user_range: 200000-200999
  limits: {default: {memory: 512MiB, cpu: 1.5, pids: 100, files: 1000, disk: 1073741825}}
  log_max_size: 100000
logging: {output: stderr, format: console}
`,
	} {
		cfg, err := parseText(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseText(t, show(t, cfg), nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, show(t, cfg))
		}
		cfg.origin, again.origin = nil, nil
		got, want := fmt.Sprintf("%+v", again), fmt.Sprintf("%+v", cfg)
		if diff := cmp.Diff(strings.Fields(want), strings.Fields(got)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", name, diff)
		}
	}
}

func TestCheckConfig_FindsWhatOnlyAStartWould(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := CheckConfig(path); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a file: %v", err)
	}
	writeFile(t, path, "rce: {port: 1}\n")
	if warnings, err := CheckConfig(path); err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], path+":1:1: rce ") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	writeFile(t, path, "server: {prot: 1}\n")
	if _, err := CheckConfig(path); err == nil || !strings.HasPrefix(err.Error(), path+":1:10: server.prot") {
		t.Errorf("a fault: %v", err)
	}
	writeFile(t, path, "server: {tls: {cert: c.pem, key: k.pem}}\n")
	if _, err := CheckConfig(path); err == nil || !strings.Contains(err.Error(), filepath.Join(filepath.Dir(path), "c.pem")) {
		t.Errorf("no certificate: %v", err)
	}
	makeCertificate(t, filepath.Dir(path), "localhost")
	if _, err := CheckConfig(path); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), "k.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckConfig(path); err == nil {
		t.Error("without its key it is accepted")
	}
}

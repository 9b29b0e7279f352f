package supervisor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/limits"
)

func parseText(t testing.TB, text string, env map[string]string) (Config, error) {
	t.Helper()
	return parseConfig("/home", "config.yaml", []byte(text), func(name string) string { return env[name] })
}

func TestInit_WritesAConfigThatLoads(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "h")
	made, err := Init(InitOptions{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	if !made.Created || made.URL != "http://127.0.0.1:7890" {
		t.Errorf("result = %+v", made)
	}
	st, err := os.Stat(made.ConfigPath)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("config mode = %v, %v; want 0600", st.Mode(), err)
	}
	if !regexp.MustCompile(`^svc_pk_[0-9a-f]{24}$`).MatchString(made.KeyID) || !regexp.MustCompile(`^svc_sk_[0-9a-f]{56}$`).MatchString(made.Secret) {
		t.Errorf("key pair %q, %q has the wrong form", made.KeyID, made.Secret)
	}
	text, err := os.ReadFile(made.ConfigPath)
	if err != nil || strings.Contains(string(text), "rce") {
		t.Errorf("the file holds a sandbox token before there is a sandbox: %v", err)
	}
	cfg, err := LoadConfig(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Server.Host != "127.0.0.1" || !cfg.Auth.Enabled || len(cfg.Warnings) != 0 ||
		!regexp.MustCompile(`^server-[0-9A-Za-z-]{0,16}-[0-9a-f]{8}$`).MatchString(cfg.ServerID) {
		t.Errorf("loaded %+v", cfg)
	}
	again, err := Init(InitOptions{Home: home, Port: 1})
	if err != nil || again.Created || again.Secret != made.Secret {
		t.Errorf("a second init changed the home: %+v, %v", again, err)
	}
	if other, err := Init(InitOptions{Home: filepath.Join(t.TempDir(), "o"), Host: "0.0.0.0", Port: 7999}); err != nil ||
		other.Secret == made.Secret || other.URL != "http://127.0.0.1:7999" {
		t.Errorf("another home: %+v, %v", other, err)
	}
	if entries, _ := os.ReadDir(home); len(entries) != 1 {
		t.Errorf("init left %v", entries)
	}
}

func TestInit_LeavesNoSettingsThatDoNotLoad(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "h")
	if _, err := Init(InitOptions{Home: home, Port: 99999}); err == nil {
		t.Error("a port that is none was taken")
	}
	if made, err := Init(InitOptions{Home: home, Port: 7999}); err != nil || !made.Created {
		t.Errorf("the next one: created %t, error %v", made.Created, err)
	}
}

func TestLoadConfig_WithoutAFileSaysHowToMakeOne(t *testing.T) {
	t.Parallel()
	_, err := LoadConfig(t.TempDir(), nil)
	if fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "supervisor init --home") {
		t.Errorf("error = %v", err)
	}
}

func TestLoadConfig_RefusesAHomeTooLongForSockets(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		func() error { _, err := LoadConfig("/"+strings.Repeat("x", 90), nil); return err }(),
		func() error { _, err := Init(InitOptions{Home: "/" + strings.Repeat("x", 90)}); return err }(),
	} {
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "91 bytes") {
			t.Errorf("error = %v", err)
		}
	}
}

// everyKey sets every key that acts to something that is not its default.
const everyKey = `
server_id: server-x
header_prefix: Acme
server:
  host: 10.1.2.3
  port: 80
  trusted_proxies: [10.0.0.0/8, 192.168.1.1]
  tls: {cert: c.pem, key: /etc/k.pem}
  limits: {requests_per_minute: 60, burst: 5}
metrics: {token: t}
notify: {webhook: https://hooks.example/T0/B1, secret: n}
limits: {bundle: {max_bytes: 10M, max_unpacked_bytes: 1GiB, max_entries: 7, max_ratio: 8}}
auth:
  enabled: false
  timestamp_tolerance: 2m
  require_body_hash: true
  keys:
    - {id: a, secret: x}
    - id: b
      secret: "y: z"
formations:
  formations_dir: f
  logs_dir: /var/log/x
  bind_host: 0.0.0.0
  port_range_start: 9000
  port_range_end: 9100
  max_formations: 3
  env_allow: [HTTP_PROXY, REGION]
  auto_restart: false
  restart: {max: 4, window_seconds: 5, base_ms: 6, max_ms: 7s, healthy_seconds: 8}
  health_check_interval: 9
  health_check_timeout: 500ms
  drain_timeout: 11
  orphan_timeout: 30s
  deployment: {health_check: {timeout: 0}, force_kill_timeout: 12, probation: 13}
  keep_versions: 14
  default_memory: 256M
  max_memory: 2G
  user_range: 200000-200999
  limits:
    default: {memory: 512MiB, cpu: 1.5, pids: 100, files: 1000, disk: 1G}
    hello: {cpu: 500m}
  log_rotation_enabled: false
  log_max_size: 1M
  log_max_files: 3
logging: {level: debug, audit_log: a.log, format: json, output: s.log}
`

func TestParseConfig_ReadsEveryKeyThatActs(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, everyKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults("/home")
	want.ServerID, want.HeaderPrefix = "server-x", "Acme"
	want.Server.Host, want.Server.Port = "10.1.2.3", 80
	want.Server.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.1.1/32")}
	want.Server.TLS = TLSSettings{Cert: "c.pem", Key: "/etc/k.pem"}
	want.Server.Limits = RateSettings{PerMinute: 60, Burst: 5}
	want.Notify.Webhook = "https://hooks.example/T0/B1"
	want.Limits.Bundle = BundleLimits{MaxBytes: 10 << 20, MaxUnpacked: 1 << 30, MaxEntries: 7, MaxRatio: 8}
	want.Auth = AuthSettings{
		TimestampTolerance: 2 * time.Minute, RequireBodyHash: true,
		Keys: []auth.Key{{ID: "a", Secret: "x"}, {ID: "b", Secret: "y: z"}},
	}
	f := &want.Formations
	f.Dir, f.LogsDir, f.BindHost, f.PortFirst, f.PortLast, f.MaxFormations = "f", "/var/log/x", "0.0.0.0", 9000, 9100, 3
	f.EnvAllow, f.AutoRestart = []string{"HTTP_PROXY", "REGION"}, false
	f.Restart = Restart{Max: 4, Window: 5 * time.Second, Base: 6 * time.Millisecond, MaxDelay: 7 * time.Second, Healthy: 8 * time.Second}
	f.HealthInterval, f.HealthTimeout = 9*time.Second, 500*time.Millisecond
	f.DrainTimeout, f.OrphanTimeout = 11*time.Second, 30*time.Second
	f.Deployment.HealthCheck.Timeout, f.Deployment.ForceKillTimeout = 0, 12*time.Second
	f.Deployment.Probation, f.KeepVersions = 13*time.Second, 14
	f.DefaultMemory, f.MaxMemory, f.UserRange = 256<<20, 2<<30, &limits.UserRange{First: 200000, Last: 200999}
	f.Limits = map[string]ResourceLimits{
		"default": {Memory: 512 << 20, CPU: 1.5, Pids: 100, Files: 1000, Disk: 1 << 30}, "hello": {CPU: 0.5},
	}
	f.LogRotation, f.LogMaxSize, f.LogMaxFiles = false, 1<<20, 3
	want.Logging = LogSettings{Level: "debug", AuditLog: "a.log", Format: "json", Output: "s.log"}
	if cfg.Metrics.Token != "t" || cfg.Notify.Secret != "n" { // they print as ***
		t.Error("a secret is not the one of the file")
	}
	cfg.Metrics, cfg.Notify.Secret = want.Metrics, want.Notify.Secret
	cfg.origin = nil
	if got, want := fmt.Sprintf("%+v", cfg), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("config (-want +got):\n%s", cmp.Diff(strings.Fields(want), strings.Fields(got)))
	}
	for i, k := range want.Auth.Keys { // secrets print as ***, so compare them apart
		if cfg.Auth.Keys[i] != k {
			t.Errorf("key %d differs", i)
		}
	}
}

func TestParseConfig_OtherSpellings(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, `
auth: {key: old, secret: s}
formations:
  port_range: [8100, 8200]
  max_restarts: 3
  restart_delay: 2
  restart: {healthy_seconds: 42}
  orphan_timeout: never
  env_allow:
  keep_backups: 7
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := cfg.Formations
	if f.PortFirst != 8100 || f.PortLast != 8200 || f.Restart.Max != 3 || f.Restart.Base != 2*time.Second || f.OrphanTimeout != 0 ||
		f.KeepVersions != 7 || f.Deployment.Probation != 42*time.Second {
		t.Errorf("formations = %+v", f)
	}
	if len(cfg.Auth.Keys) != 1 || cfg.Auth.Keys[0] != (auth.Key{ID: "old", Secret: "s"}) {
		t.Errorf("keys = %v", cfg.Auth.Keys)
	}
}

func TestParseConfig_EnvironmentWinsOverTheFile(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "server: {host: 1.1.1.1, port: 1}\nlogging: {level: info}\n", map[string]string{
		"SVC_HOST": "127.0.0.1", "SVC_PORT": "7000", "SVC_AUTH_ENABLED": "false", "SVC_LOG_LEVEL": "warn",
	})
	if err != nil || cfg.Server.Host != "127.0.0.1" || cfg.Server.Port != 7000 || cfg.Auth.Enabled || cfg.Logging.Level != "warn" {
		t.Errorf("config = %+v, %v", cfg, err)
	}
	_, err = parseText(t, "", map[string]string{"SVC_PORT": "many", "SVC_AUTH_ENABLED": "perhaps"})
	if err == nil || !strings.Contains(err.Error(), "SVC_PORT") || !strings.Contains(err.Error(), "SVC_AUTH_ENABLED") {
		t.Errorf("bad variables: %v", err)
	}
}

func TestParseConfig_WarnsOfKeysWithoutEffect(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "rce:\n  port: 1\nformations:\n  pids_dir: x\n  docker: {image: x}\nserver:\n  idle_timeout: 1\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"config.yaml:1:1: rce has no effect in this release",
		"config.yaml:4:3: formations.pids_dir has no effect in this release",
		"config.yaml:5:3: formations.docker has no effect in this release",
		"config.yaml:7:3: server.idle_timeout has no effect in this release",
	}
	if diff := cmp.Diff(want, cfg.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestParseConfig_NamesEveryFaultWithItsPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"unknown key with a near one": {"server:\n  prot: 1\n", `config.yaml:2:3: server.prot: unknown key; did you mean "port"?`},
		"unknown key":                 {"zzzzzz: 1\n", "config.yaml:1:1: zzzzzz: unknown key; here it may be one of auth, formations"},
		"unknown key in a list":       {"auth:\n  keys:\n    - id: a\n      secrets: x\n", `config.yaml:4:7: auth.keys[0].secrets: unknown key; did you mean "secret"?`},
		"text for a number":           {"server:\n  port: http\n", `config.yaml:2:9: server.port: want a whole number of 0 or more, not "http"`},
		"negative number":             {"formations: {max_formations: -1}\n", `formations.max_formations: want a whole number`},
		"port too large":              {"server: {port: 70000}\n", "config.yaml:1:16: server.port: want a port from 0 (any free one) to 65535, not 70000"},
		"not a bool":                  {"auth: {enabled: yes}\n", `auth.enabled: want true or false, not "yes"`},
		"not a duration":              {"formations: {drain_timeout: soon}\n", `a number of seconds, not "soon"`},
		"not a size":                  {"limits: {bundle: {max_bytes: 10X}}\n", `limits.bundle.max_bytes: want a number of bytes such as 1048576, 10M or 1GiB, not "10X"`},
		"size beyond all":             {"limits: {bundle: {max_bytes: 9999999999G}}\n", "want a number of bytes"},
		"not a network":               {"server: {trusted_proxies: [10.0.0.0/99]}\n", `server.trusted_proxies[0]: want an address range`},
		"not a time":                  {"auth: {keys: [{id: a, secret: b, valid_until: soon}]}\n", `auth.keys[0].valid_until: want a time such as 2026-01-02T15:04:05Z, not "soon"`},
		"id twice":                    {"auth: {keys: [{id: a, secret: b}, {id: a, secret: c}]}\n", "auth.keys: auth.keys[1]: id a occurs twice; set valid_until of the older one"},
		"list for a value":            {"server_id: [a]\n", "server_id: want a single value"},
		"value for a list":            {"auth: {keys: a}\n", "auth.keys: want a list"},
		"value for a block":           {"server: 1\n", "config.yaml:1:9: server: want a block of keys"},
		"alias for a block":           {"server: *x\n", "want a block of keys"},
		"the file is a list":          {"- a\n", "the file: want a block of keys"},
		"two documents":               {"server_id: a\n---\nserver_id: b\n", "2 documents, want one"},
		"bad yaml":                    {"server:\n  host: [\n", "config.yaml:2:9: not well-formed YAML"},
		"range upside down":           {"formations: {port_range: [9000, 8000]}\n", "the range 9000-8000 is no range of ports"},
		"privileged ports":            {"formations: {port_range_start: 80}\n", "the range 80-9000 is no range of ports"},
		"three ports":                 {"formations: {port_range: [1, 2, 3]}\n", "want two ports, the first and the last"},
		"host name to bind":           {"formations: {bind_host: localhost}\n", "want an IP address such as 127.0.0.1"},
		"level":                       {"logging: {level: loud}\n", `logging.level: want trace, debug, info, warn, error or disabled, not "loud"`},
		"prefix":                      {"header_prefix: a-b\n", "header_prefix: want letters and digits"},
		"key without secret":          {"auth: {keys: [{id: a}]}\n", "config.yaml:1:14: auth.keys: auth.keys[0]: id and secret must both be set"},
		"key twice":                   {"auth: {keys: [{id: a, secret: b}, {id: a, secret: c}]}\n", "id a occurs twice"},
		"no formations allowed":       {"formations: {max_formations: 0}\n", "formations.max_formations: want 1 or more"},
		"half of TLS":                 {"server:\n  tls: {cert: a}\n", "config.yaml:2:8: server.tls: cert and key go together"},
		"burst alone":                 {"server: {limits: {burst: 1}}\n", "server.limits.burst: set requests_per_minute too"},
		"webhook":                     {"notify: {webhook: hooks.example}\n", "notify.webhook: want an address that begins with http"},
		"log format":                  {"logging: {format: xml}\n", `logging.format: want json or console, not "xml"`},
		"log output":                  {"logging: {output: \"\"}\n", "logging.output: want stdout, stderr or a file"},
		"log size":                    {"formations: {log_max_size: 1K}\n", "formations.log_max_size: want at least 65536 bytes, not 1024"},
		"log files":                   {"formations: {log_max_files: 0}\n", "formations.log_max_files: want 1 or more"},
		"versions":                    {"formations: {keep_versions: 0}\n", "formations.keep_versions: want 1 or more"},
		"users":                       {"formations: {user_range: 5}\n", "formations.user_range: \"5\" is no range of user ids"},
		"limits of nobody":            {"formations: {limits: {A: {cpu: 1}}}\n", "config.yaml:1:23: formations.limits.A: want default or the id of a formation"},
		"limits twice":                {"formations: {limits: {abc: {cpu: 1}, \"abc\": {cpu: 2}}}\n", "not well-formed YAML"},
		"limit of a kind":             {"formations: {limits: {default: {memmory: 1G}}}\n", `formations.limits.default.memmory: unknown key; did you mean "memory"?`},
		"limit too small":             {"formations: {limits: {default: {memory: 1M}}}\n", "formations.limits.default: memory: 1 MiB is too little"},
		"processors":                  {"formations: {limits: {default: {cpu: many}}}\n", `"many" is no number of processors`},
		"memory":                      {"formations: {max_memory: 1K}\n", "formations.max_memory: memory: 1 KiB is too little"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parseText(t, tc.text, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v\nwant   %s", err, tc.want)
			}
			if fault.KindOf(err) != fault.Invalid || fault.NameOf(err) != "ConfigError" {
				t.Errorf("kind %v, name %q; want a ConfigError", fault.KindOf(err), fault.NameOf(err))
			}
		})
	}
}

func TestParseConfig_TellsAllFaultsInOrder(t *testing.T) {
	t.Parallel()
	_, err := parseText(t, "logging: {level: loud}\nserver: {prot: 1, port: x}\n", nil)
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "config.yaml:1:") || !strings.HasPrefix(lines[2], "config.yaml:2:") {
		t.Errorf("faults:\n%s", err)
	}
}

func TestParseConfig_NeverQuotesASecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"auth:\n  keys:\n    - id: a\n      secret: hunter2\n   bad\n",
		"auth: {keys: [{id: a, secret: [hunter2]}]}\n",
		"auth: {key: a, secret: {x: hunter2}}\n",
		"auth:\n  secret: \"hunter2\n",
	} {
		_, err := parseText(t, text, nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(initialConfig(InitOptions{}))
	f.Add("server: {port: 1}\nauth: {keys: [{id: a, secret: b}]}\n")
	f.Add("a: &x {b: *x}\n<<: *x\n? [c]\n: !!int d\n")
	f.Fuzz(func(t *testing.T, text string) {
		cfg, err := parseText(t, text, nil)
		if err != nil {
			if fault.NameOf(err) != "ConfigError" {
				t.Fatalf("%q: %v is no ConfigError", text, err)
			}
			return
		}
		if cfg.Formations.PortFirst < 1024 || cfg.Formations.MaxFormations < 1 || cfg.Server.Port > 65535 {
			t.Fatalf("%q was accepted as %+v", text, cfg)
		}
	})
}

func TestParse_ABudgetPolicyIsReadForEveryFormation(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, `formations:
  budgets:
    default: {formation: {tokens_per_day: 1000, amount_per_day: 2.5}, warn_at: 0.5}
    greeter: {agents: {poet: {tokens_per_day: 7}}, user: {amount_per_day: 0}}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"other":   `{"formation":{"tokens_per_day":1000,"amount_per_day":2.5},"agent":{},"user":{},"warn_at":0.5}`,
		"greeter": `{"formation":{},"agent":{},"user":{"amount_per_day":0},"agents":{"poet":{"tokens_per_day":7}}}`,
	} {
		if got := string(cfg.budgetsOf(id)); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if got := new(Config).budgetsOf("other"); got != nil {
		t.Errorf("without a policy: %s", got)
	}
	_, err = parseText(t, `formations:
  budgets:
    No!: {}
    one: {formation: {tokens_per_day: -1, amount_per_day: much}, warn_at: 2}
`, nil)
	for _, want := range []string{
		"config.yaml:3:5: formations.budgets.No!: want default or the id of a formation",
		`config.yaml:4:39: formations.budgets.one.formation.tokens_per_day: want a whole number of 0 or more, not "-1"`,
		`formations.budgets.one.formation.amount_per_day: want an amount of money from 0 to 1000000000, not "much"`,
		`formations.budgets.one.warn_at: want a number above 0 and at most 1, not "2"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

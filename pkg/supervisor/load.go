package supervisor

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/limits"
	"github.com/agentformation/service/pkg/supervisor/notify"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// configName is the settings file in the home directory.
const configName = "config.yaml"

// defaultLimits is the key of the limits for formations that are not named.
const defaultLimits = "default"

// MaxHome is the longest home directory, in bytes: a child's control socket
// lies in <home>/run/<8 hex>.
const MaxHome = process.MaxRunDir - len("/run/12345678")

// LoadConfig reads home/config.yaml, then lets the environment (SVC_HOST,
// SVC_PORT, SVC_AUTH_ENABLED, SVC_LOG_LEVEL, SVC_CACHE_DIR, HF_ENDPOINT and
// SVC_ONNXRUNTIME_{LIB,URL,SHA256}, through getenv, which may be nil) override it. Faults of the file are fault.Invalid "ConfigError", all at once,
// each with line, column and what would be right; without a file the error is
// fault.NotFound and says how to make one.
func LoadConfig(home string, getenv func(string) string) (Config, error) {
	abs, err := checkHome(home)
	if err != nil {
		return Config{}, err
	}
	path := filepath.Join(abs, configName)
	read := stampOf(path) // before the text: a change in between is noticed later
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return Config{}, fault.Wrap(fault.NotFound, "NotInitialised",
			fmt.Sprintf("%s does not exist; make it with: supervisor init --home %s", path, home), err)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read settings: %w", err)
	}
	cfg, err := parseConfig(abs, path, text, getenv)
	cfg.read = read
	return cfg, err
}

func parseConfig(home, file string, text []byte, getenv func(string) string) (Config, error) {
	cfg := defaults(home)
	s := &settings{file: file, at: map[string]place{}}
	if err := s.decode(text, &cfg); err != nil {
		return Config{}, err
	}
	cfg.origin = make(map[string]string)
	for key, at := range s.at {
		cfg.origin[key] = fmt.Sprintf("%s:%d", filepath.Base(file), at.line)
	}
	s.environment(&cfg, getenv)
	s.aliases(&cfg)
	s.check(&cfg)
	if err := s.result(); err != nil {
		return Config{}, err
	}
	cfg.Warnings = s.lines(s.warnings)
	return cfg, nil
}

// checkHome returns home as an absolute path, short enough for the sockets
// that lie below it.
func checkHome(home string) (string, error) {
	if home == "" {
		return "", fault.New(fault.Invalid, "ConfigError", "no home directory is given")
	}
	abs, err := filepath.Abs(home)
	if err != nil {
		return "", fmt.Errorf("resolve home directory: %w", err)
	}
	if len(abs) > MaxHome {
		return "", fault.Errorf(fault.Invalid, "ConfigError",
			"the home directory %s has a path of %d bytes; at most %d leave room for the sockets below it", abs, len(abs), MaxHome)
	}
	return abs, nil
}

// wrong records a fault of a key; it stands at the key's place when it was set.
func (s *settings) wrong(key, format string, args ...any) {
	s.faults = append(s.faults, settingsNote{place: s.at[key], text: key + ": " + fmt.Sprintf(format, args...)})
}

// environment applies the variables that win over the file.
func (s *settings) environment(cfg *Config, getenv func(string) string) {
	if getenv == nil {
		return
	}
	take := func(name, key string, use func(value string)) {
		if v := getenv(name); v != "" {
			cfg.origin[key] = name
			use(v)
		}
	}
	take("SVC_HOST", "server.host", func(v string) { cfg.Server.Host = v })
	take("SVC_LOG_LEVEL", "logging.level", func(v string) { cfg.Logging.Level = v })
	take("SVC_PORT", "server.port", func(v string) {
		port, err := strconv.Atoi(v)
		if err != nil {
			s.wrong("SVC_PORT", "want a port number, not %q", v)
		}
		cfg.Server.Port = port
	})
	take("SVC_AUTH_ENABLED", "auth.enabled", func(v string) {
		on, err := strconv.ParseBool(v)
		if err != nil {
			s.wrong("SVC_AUTH_ENABLED", "want true or false, not %q", v)
			on = true
		}
		cfg.Auth.Enabled = on
	})
	take("SVC_CACHE_DIR", "SVC_CACHE_DIR", func(v string) {
		if !filepath.IsAbs(v) {
			s.wrong("SVC_CACHE_DIR", "want an absolute path, not %q", v)
		}
		cfg.CacheDir = v
	})
	m := &cfg.Models
	take(envHub, "models.hub", func(v string) { m.Hub = address(v) })
	take(hub.LibraryEnv, "models.onnxruntime.library", func(v string) { m.ONNX.Library = v })
	take("SVC_ONNXRUNTIME_URL", "models.onnxruntime.url", func(v string) { m.ONNX.URL = address(v) })
	take("SVC_ONNXRUNTIME_SHA256", "models.onnxruntime.sha256", func(v string) { m.ONNX.SHA256 = v })
}

// aliases moves the other spellings of a key to the key itself.
func (s *settings) aliases(cfg *Config) {
	f := &cfg.Formations
	same := func(alias, key string) {
		if at, ok := cfg.origin["formations."+alias]; ok {
			cfg.origin["formations."+key] = at
		}
	}
	if n := len(f.PortRange); n == 2 {
		f.PortFirst, f.PortLast = f.PortRange[0], f.PortRange[1]
		same("port_range", "port_range_start")
		same("port_range", "port_range_end")
	} else if n != 0 {
		s.wrong("formations.port_range", "want two ports, the first and the last")
	}
	for alias, n := range map[string]*int{"max_restarts": f.MaxRestarts, "max_restart_count": f.MaxRestartCount} {
		if n != nil {
			f.Restart.Max = *n
			same(alias, "restart.max")
		}
	}
	if f.RestartDelay != nil {
		f.Restart.Base = *f.RestartDelay
		same("restart_delay", "restart.base_ms")
	}
	if f.KeepBackups != nil {
		f.KeepVersions = *f.KeepBackups
		same("keep_backups", "keep_versions")
	}
	if _, set := s.at["formations.deployment.probation"]; !set {
		f.Deployment.Probation = f.Restart.Healthy
		same("restart.healthy_seconds", "deployment.probation")
	}
	if a := &cfg.Auth; a.Key != "" || a.Secret != "" {
		a.Keys = append(a.Keys, auth.Key{ID: a.Key, Secret: a.Secret})
		a.Key, a.Secret = "", ""
		if _, set := cfg.origin["auth.keys"]; !set {
			cfg.origin["auth.keys"] = cmp.Or(cfg.origin["auth.key"], cfg.origin["auth.secret"])
		}
	}
}

// check refuses what could not work, before anything is started.
func (s *settings) check(cfg *Config) {
	f := &cfg.Formations
	s.checkServer(cfg)
	s.checkLogging(cfg)
	if f.PortFirst < 1024 || f.PortLast > 65535 || f.PortFirst > f.PortLast {
		s.wrong("formations.port_range_start", "the range %d-%d is no range of ports from 1024 to 65535", f.PortFirst, f.PortLast)
	}
	if _, err := netip.ParseAddr(f.BindHost); err != nil {
		s.wrong("formations.bind_host", "want an IP address such as 127.0.0.1, not %q", f.BindHost)
	}
	if !isWord(cfg.HeaderPrefix) {
		s.wrong("header_prefix", "want letters and digits, not %q", cfg.HeaderPrefix)
	}
	if _, err := auth.New(auth.Config{Keys: cfg.Auth.Keys}); err != nil {
		s.wrong("auth.keys", "%s", err)
	}
	for key, n := range map[string]int{
		"formations.max_formations": f.MaxFormations, "formations.restart.max": f.Restart.Max,
		"formations.keep_versions": f.KeepVersions, "formations.log_max_files": f.LogMaxFiles,
		"limits.bundle.max_entries": cfg.Limits.Bundle.MaxEntries, "limits.bundle.max_ratio": cfg.Limits.Bundle.MaxRatio,
	} {
		if n < 1 {
			s.wrong(key, "want 1 or more")
		}
	}
	s.checkLimits(f)
	s.checkModels(cfg)
}

func (s *settings) checkServer(cfg *Config) {
	c := cfg.Server
	if c.Port > 65535 {
		s.wrong("server.port", "want a port from 0 (any free one) to 65535, not %d", c.Port)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		s.wrong("server.tls", "cert and key go together: set both, or none")
	}
	if c.Limits.Burst > 0 && c.Limits.PerMinute == 0 {
		s.wrong("server.limits.burst", "set requests_per_minute too: without it nothing is limited")
	}
	if w := cfg.Notify.Webhook; w != "" {
		if _, err := notify.New(notify.Config{URL: string(w)}); err != nil {
			s.wrong("notify.webhook", "want an address that begins with http:// or https://")
		}
	}
}

func (s *settings) checkLogging(cfg *Config) {
	if _, err := zerolog.ParseLevel(cfg.Logging.Level); err != nil {
		s.wrong("logging.level", "want trace, debug, info, warn, error or disabled, not %q", cfg.Logging.Level)
	}
	switch cfg.Logging.Format {
	case "", logJSON, logConsole:
	default:
		s.wrong("logging.format", "want json or console, not %q", cfg.Logging.Format)
	}
	if cfg.Logging.Output == "" {
		s.wrong("logging.output", "want stdout, stderr or a file")
	}
	const least = 64 << 10
	if n := cfg.Formations.LogMaxSize; n < least {
		s.wrong("formations.log_max_size", "want at least %d bytes, not %d", least, n)
	}
}

// checkLimits refuses limits under which no formation could start.
func (s *settings) checkLimits(f *FormationSettings) {
	for id, l := range f.Limits {
		key := "formations.limits." + id
		if id != defaultLimits && !isID(id) {
			s.wrong(key, "want default or the id of a formation")
		}
		if err := l.limits().Check(); err != nil {
			s.wrong(key, "%s", err)
		}
	}
	for id := range f.Budgets {
		if id != defaultLimits && !isID(id) {
			s.wrong("formations.budgets."+id, "want default or the id of a formation")
		}
	}
	for key, paths := range map[string][]string{
		"formations.readable_paths": f.Readable, "formations.writable_paths": f.Writable,
	} {
		for i, path := range paths {
			if !filepath.IsAbs(path) {
				s.wrong(fmt.Sprintf("%s[%d]", key, i), "want an absolute path, not %q", path)
			}
		}
	}
	if root := f.CgroupRoot; root != "" && root != "none" && !filepath.IsAbs(root) {
		s.wrong("formations.cgroup_root", "want an absolute path, or none, not %q", root)
	}
	for key, n := range map[string]size{"formations.default_memory": f.DefaultMemory, "formations.max_memory": f.MaxMemory} {
		if err := (limits.Limits{Memory: int64(n)}).Check(); err != nil {
			s.wrong(key, "%s", err)
		}
	}
}

// isID tells whether id could be that of a formation (server.md 4.1).
func isID(id string) bool {
	inner := strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-")
	return len(id) >= 3 && len(id) <= 50 && inner == "" && id[0] != '-' && id[len(id)-1] != '-'
}

// isWord tells whether p can be part of a header name without surprises.
func isWord(p string) bool {
	return p != "" && len(p) <= 32 && !slices.ContainsFunc([]byte(p), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z')
	})
}

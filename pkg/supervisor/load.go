package supervisor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// configName is the settings file in the home directory.
const configName = "config.yaml"

// maxHome is the longest home directory, in bytes: a child's control socket
// lies in <home>/run/<8 hex>.
const maxHome = process.MaxRunDir - len("/run/12345678")

// LoadConfig reads home/config.yaml, then lets the environment (SVC_HOST,
// SVC_PORT, SVC_AUTH_ENABLED, SVC_LOG_LEVEL, through getenv, which may be nil)
// override it. Faults of the file are fault.Invalid "ConfigError", all at once,
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
	if len(abs) > maxHome {
		return "", fault.Errorf(fault.Invalid, "ConfigError",
			"the home directory %s has a path of %d bytes; at most %d leave room for the sockets below it", abs, len(abs), maxHome)
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
	if v := getenv("SVC_HOST"); v != "" {
		cfg.Server.Host = v
	}
	if v := getenv("SVC_LOG_LEVEL"); v != "" {
		cfg.Logging.Level = v
	}
	if v := getenv("SVC_PORT"); v != "" {
		port, err := strconv.Atoi(v)
		if err != nil {
			s.wrong("SVC_PORT", "want a port number, not %q", v)
		}
		cfg.Server.Port = port
	}
	if v := getenv("SVC_AUTH_ENABLED"); v != "" {
		on, err := strconv.ParseBool(v)
		if err != nil {
			s.wrong("SVC_AUTH_ENABLED", "want true or false, not %q", v)
			on = true
		}
		cfg.Auth.Enabled = on
	}
}

// aliases moves the other spellings of a key to the key itself.
func (s *settings) aliases(cfg *Config) {
	f := &cfg.Formations
	if n := len(f.PortRange); n == 2 {
		f.PortFirst, f.PortLast = f.PortRange[0], f.PortRange[1]
	} else if n != 0 {
		s.wrong("formations.port_range", "want two ports, the first and the last")
	}
	for _, n := range []*int{f.MaxRestarts, f.MaxRestartCount} {
		if n != nil {
			f.Restart.Max = *n
		}
	}
	if f.RestartDelay != nil {
		f.Restart.Base = *f.RestartDelay
	}
	if a := &cfg.Auth; a.Key != "" || a.Secret != "" {
		a.Keys = append(a.Keys, auth.Key{ID: a.Key, Secret: a.Secret})
		a.Key, a.Secret = "", ""
	}
}

// check refuses what could not work, before anything is started.
func (s *settings) check(cfg *Config) {
	f := &cfg.Formations
	if cfg.Server.Port > 65535 {
		s.wrong("server.port", "want a port from 0 (any free one) to 65535, not %d", cfg.Server.Port)
	}
	if f.PortFirst < 1024 || f.PortLast > 65535 || f.PortFirst > f.PortLast {
		s.wrong("formations.port_range_start", "the range %d-%d is no range of ports from 1024 to 65535", f.PortFirst, f.PortLast)
	}
	if _, err := netip.ParseAddr(f.BindHost); err != nil {
		s.wrong("formations.bind_host", "want an IP address such as 127.0.0.1, not %q", f.BindHost)
	}
	if _, err := zerolog.ParseLevel(cfg.Logging.Level); err != nil {
		s.wrong("logging.level", "want trace, debug, info, warn, error or disabled, not %q", cfg.Logging.Level)
	}
	if !isWord(cfg.HeaderPrefix) {
		s.wrong("header_prefix", "want letters and digits, not %q", cfg.HeaderPrefix)
	}
	if _, err := auth.New(auth.Config{Keys: cfg.Auth.Keys}); err != nil {
		s.wrong("auth.keys", "%s", err)
	}
	for key, n := range map[string]int{
		"formations.max_formations": f.MaxFormations, "formations.restart.max": f.Restart.Max,
		"limits.bundle.max_entries": cfg.Limits.Bundle.MaxEntries, "limits.bundle.max_ratio": cfg.Limits.Bundle.MaxRatio,
	} {
		if n < 1 {
			s.wrong(key, "want 1 or more")
		}
	}
}

// isWord tells whether p can be part of a header name without surprises.
func isWord(p string) bool {
	return p != "" && len(p) <= 32 && !slices.ContainsFunc([]byte(p), func(b byte) bool {
		return (b < '0' || b > '9') && (b < 'A' || b > 'Z') && (b < 'a' || b > 'z')
	})
}

package supervisor

import (
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/auth"
)

// Config is the supervisor's settings. The fields with a conf tag are the keys
// of config.yaml (server.md 7.2); integers there are seconds for durations and
// bytes for sizes. LoadConfig fills it in; the zero value is not usable.
type Config struct {
	// Home is the directory everything lives under, absolute.
	Home string         `conf:"-"`
	Log  zerolog.Logger `conf:"-"`
	// Runtime is the formation-runtime program. "" means the file of that name
	// beside the running program, else the one in PATH.
	Runtime string `conf:"-"`
	// Listen replaces server.host and server.port, as "host:port".
	Listen string `conf:"-"`
	// OnReady is called once, when requests are answered; may be nil.
	OnReady func(Ready) `conf:"-"`
	// LookupEnv finds the variables named by formations.env_allow; nil finds none.
	LookupEnv func(name string) (string, bool) `conf:"-"`
	// Warnings tell which keys of the file have no effect in this release.
	Warnings []string `conf:"-"`
	// read is the state of the file that the settings came from.
	read stamp

	ServerID     string            `conf:"server_id"`
	HeaderPrefix string            `conf:"header_prefix"`
	Server       ServerSettings    `conf:"server"`
	Limits       LimitSettings     `conf:"limits"`
	Auth         AuthSettings      `conf:"auth"`
	Formations   FormationSettings `conf:"formations"`
	Logging      LogSettings       `conf:"logging"`

	Metrics  unused `conf:"metrics"`
	Notify   unused `conf:"notify"`
	RCE      unused `conf:"rce"`
	Runtimes unused `conf:"runtime"`
}

// Ready is what a started supervisor tells its caller.
type Ready struct {
	Addr       netip.AddrPort // the management API
	Formations int            // known to the registry
}

// ServerSettings are the keys of "server".
type ServerSettings struct {
	Host           string         `conf:"host"`
	Port           int            `conf:"port"`
	TrustedProxies []netip.Prefix `conf:"trusted_proxies"` // whose X-Forwarded-For is believed

	TLS          refused `conf:"tls"`
	Limits       unused  `conf:"limits"`
	ReadTimeout  unused  `conf:"read_timeout"`
	WriteTimeout unused  `conf:"write_timeout"`
	IdleTimeout  unused  `conf:"idle_timeout"`
}

// LimitSettings are the keys of "limits".
type LimitSettings struct {
	Bundle BundleLimits `conf:"bundle"`
}

// BundleLimits bound one uploaded bundle.
type BundleLimits struct {
	MaxBytes    size `conf:"max_bytes"`
	MaxUnpacked size `conf:"max_unpacked_bytes"`
	MaxEntries  int  `conf:"max_entries"`
	MaxRatio    int  `conf:"max_ratio"`
}

// AuthSettings are the keys of "auth".
type AuthSettings struct {
	Enabled            bool          `conf:"enabled"`
	TimestampTolerance time.Duration `conf:"timestamp_tolerance"`
	RequireBodyHash    bool          `conf:"require_body_hash"`
	Keys               []auth.Key    `conf:"keys"`

	// Key and Secret are an older way to write one key; LoadConfig moves them
	// to Keys.
	Key    string      `conf:"key"`
	Secret auth.Secret `conf:"secret"`
}

// FormationSettings are the keys of "formations".
type FormationSettings struct {
	Dir            string        `conf:"formations_dir"` // relative to Home
	LogsDir        string        `conf:"logs_dir"`       // relative to Home
	BindHost       string        `conf:"bind_host"`
	PortFirst      int           `conf:"port_range_start"`
	PortLast       int           `conf:"port_range_end"` // inclusive
	MaxFormations  int           `conf:"max_formations"`
	EnvAllow       []string      `conf:"env_allow"` // names of variables that children see
	AutoRestart    bool          `conf:"auto_restart"`
	Restart        Restart       `conf:"restart"`
	HealthInterval time.Duration `conf:"health_check_interval"`
	HealthTimeout  time.Duration `conf:"health_check_timeout"`
	DrainTimeout   time.Duration `conf:"drain_timeout"`
	// OrphanTimeout is how long a child lives without a supervisor; 0 is for ever.
	OrphanTimeout time.Duration `conf:"orphan_timeout"`
	Deployment    Deployment    `conf:"deployment"`

	// Other ways to write the keys above; LoadConfig applies them.
	PortRange       []int          `conf:"port_range"`
	MaxRestarts     *int           `conf:"max_restarts"`
	MaxRestartCount *int           `conf:"max_restart_count"`
	RestartDelay    *time.Duration `conf:"restart_delay"`

	RuntimeType        unused `conf:"runtime_type"`
	KeepVersions       unused `conf:"keep_versions"`
	KeepBackups        unused `conf:"keep_backups"`
	PidsDir            unused `conf:"pids_dir"`
	Docker             unused `conf:"docker"`
	Singularity        unused `conf:"singularity"`
	Budgets            unused `conf:"budgets"`
	Limits             unused `conf:"limits"`
	UserRange          unused `conf:"user_range"`
	StartupHealthDelay unused `conf:"startup_health_delay"`
	LogRotationEnabled unused `conf:"log_rotation_enabled"`
	LogMaxSize         unused `conf:"log_max_size"`
	LogMaxFiles        unused `conf:"log_max_files"`
	UnhealthyThreshold unused `conf:"unhealthy_threshold"`
	StartupTimeout     unused `conf:"startup_timeout"`
	DefaultMemory      unused `conf:"default_memory"`
	MaxMemory          unused `conf:"max_memory"`
}

// Restart is the restart policy of children.
type Restart struct {
	Max      int           `conf:"max"`
	Window   time.Duration `conf:"window_seconds"`
	Base     time.Duration `conf:"base_ms" unit:"ms"`
	MaxDelay time.Duration `conf:"max_ms" unit:"ms"`
	Healthy  time.Duration `conf:"healthy_seconds"`
}

// Deployment are the keys of "formations.deployment".
type Deployment struct {
	HealthCheck        HealthCheck   `conf:"health_check"`
	ForceKillTimeout   time.Duration `conf:"force_kill_timeout"`
	StagingHealthDelay unused        `conf:"staging_health_delay"`
	Probation          unused        `conf:"probation"`
}

// HealthCheck bounds the readiness of a new child.
type HealthCheck struct {
	Timeout    time.Duration `conf:"timeout"` // 0 is 300 s
	Enabled    unused        `conf:"enabled"`
	Endpoint   unused        `conf:"endpoint"`
	Interval   unused        `conf:"interval"`
	MaxRetries unused        `conf:"max_retries"`
}

// LogSettings are the keys of "logging".
type LogSettings struct {
	Level    string `conf:"level"`
	AuditLog string `conf:"audit_log"` // relative to Home
	Format   unused `conf:"format"`
	Output   unused `conf:"output"`
}

// defaults returns the settings of server.md 7.2 for a home directory.
func defaults(home string) Config {
	return Config{
		Home:         home,
		Log:          zerolog.Nop(),
		HeaderPrefix: "SVC",
		Server:       ServerSettings{Host: "0.0.0.0", Port: 7890},
		Limits:       LimitSettings{Bundle: BundleLimits{MaxBytes: 1 << 30, MaxUnpacked: 4 << 30, MaxEntries: 50000, MaxRatio: 100}},
		Auth:         AuthSettings{Enabled: true, TimestampTolerance: 300 * time.Second},
		Formations: FormationSettings{
			Dir: "formations", LogsDir: "logs", BindHost: "127.0.0.1", PortFirst: 8000, PortLast: 9000,
			MaxFormations: 100, AutoRestart: true,
			Restart:        Restart{Max: 10, Window: time.Minute, Base: 100 * time.Millisecond, MaxDelay: 30 * time.Second, Healthy: 10 * time.Second},
			HealthInterval: 30 * time.Second, HealthTimeout: 5 * time.Second, DrainTimeout: 30 * time.Second,
			Deployment: Deployment{HealthCheck: HealthCheck{Timeout: 30 * time.Second}, ForceKillTimeout: 5 * time.Second},
		},
		Logging: LogSettings{Level: "info", AuditLog: "logs/audit.log"},
	}
}

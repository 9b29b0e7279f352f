package supervisor

import (
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/redact"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/limits"
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
	// CacheDir holds the models that all formations share, absolute; LoadConfig
	// takes it from SVC_CACHE_DIR, or cache in Home.
	CacheDir string `conf:"-"`
	// LookupEnv finds the variables named by formations.env_allow, and those of the
	// embedding process; nil finds none.
	LookupEnv func(name string) (string, bool) `conf:"-"`
	// Warnings tell which keys of the file have no effect in this release.
	Warnings []string `conf:"-"`
	// Reload gets SIGHUP, at which Run replaces the program in place; nil never does.
	Reload chan os.Signal `conf:"-"`
	// Self says how this program was started; a reload starts it so again.
	Self Self `conf:"-"`
	// read is the state of the file that the settings came from.
	read stamp
	// origin tells where a key got its value, for Show: "config.yaml:3" or the
	// name of a variable. A key that is not in it has its default.
	origin map[string]string
	// redact stands before the log that OpenLog opened; nil when it did not.
	redact *redact.Redactor

	ServerID     string            `conf:"server_id"`
	HeaderPrefix string            `conf:"header_prefix"`
	Server       ServerSettings    `conf:"server"`
	Limits       LimitSettings     `conf:"limits"`
	Auth         AuthSettings      `conf:"auth"`
	Formations   FormationSettings `conf:"formations"`
	Logging      LogSettings       `conf:"logging"`

	Metrics MetricSettings `conf:"metrics"`
	Notify  NotifySettings `conf:"notify"`
	Models  ModelSettings  `conf:"models"`

	RCE      unused `conf:"rce"`
	Runtimes unused `conf:"runtime"`
}

// Self is a program's own start.
type Self struct {
	Path string   // of the program, as it was when the process began
	Args []string // the program's name first
	Env  []string
}

// Ready is what a started supervisor tells its caller.
type Ready struct {
	Addr       netip.AddrPort // the management API
	TLS        bool           // it speaks TLS
	Formations int            // known to the registry
}

// ServerSettings are the keys of "server".
type ServerSettings struct {
	Host           string         `conf:"host"`
	Port           int            `conf:"port"`
	TrustedProxies []netip.Prefix `conf:"trusted_proxies"` // whose X-Forwarded-For is believed
	TLS            TLSSettings    `conf:"tls"`
	Limits         RateSettings   `conf:"limits"`

	ReadTimeout  unused `conf:"read_timeout"`
	WriteTimeout unused `conf:"write_timeout"`
	IdleTimeout  unused `conf:"idle_timeout"`
}

// TLSSettings are the keys of "server.tls": files in PEM form, relative to Home.
// Both or none are set.
type TLSSettings struct {
	Cert string `conf:"cert"` // the certificate, then those that signed it
	Key  string `conf:"key"`
}

// On tells whether the management API speaks TLS.
func (t TLSSettings) On() bool { return t.Cert != "" }

// RateSettings are the keys of "server.limits", per key and per peer address.
type RateSettings struct {
	PerMinute int `conf:"requests_per_minute"` // 0 is no limit
	Burst     int `conf:"burst"`               // requests at once; 0 is as many as PerMinute
}

// MetricSettings are the keys of "metrics".
type MetricSettings struct {
	Token auth.Secret `conf:"token"` // demanded by /metrics when set
}

// NotifySettings are the keys of "notify".
type NotifySettings struct {
	Webhook address     `conf:"webhook"` // "" sends nothing
	Secret  auth.Secret `conf:"secret"`  // signs each notice when set
}

// ModelSettings are the keys of "models": where local embedding models and what
// runs them come from.
type ModelSettings struct {
	Hub  address         `conf:"hub"` // "" is the public hub
	ONNX RuntimeSettings `conf:"onnxruntime"`
}

// RuntimeSettings are the keys of "models.onnxruntime".
type RuntimeSettings struct {
	// Library is the shared library, relative to Home; "" is what is in the cache.
	Library string `conf:"library"`
	// URL is an archive to fetch the library from, and SHA256 that of the archive;
	// both "" is the official release.
	URL    address `conf:"url"`
	SHA256 string  `conf:"sha256"`
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
	Key    string      `conf:"key" alias:"true"`
	Secret auth.Secret `conf:"secret" alias:"true"`
}

// First returns the first key that has no end, for a client on this machine; the
// zero value when there is none.
func (a AuthSettings) First() auth.Key {
	for _, k := range a.Keys {
		if k.Until.IsZero() {
			return k
		}
	}
	return auth.Key{}
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

	// KeepVersions bounds the versions of a formation, the current one included.
	KeepVersions int `conf:"keep_versions"`
	// Limits is the policy per formation; "default" is for all that are not named.
	// DefaultMemory is its memory when it has none, MaxMemory caps all of them.
	Limits        map[string]ResourceLimits `conf:"limits"`
	DefaultMemory size                      `conf:"default_memory"`
	MaxMemory     size                      `conf:"max_memory"`
	// Budgets is the policy for what models may cost per formation; "default" is for
	// all that are not named. A child learns it when it starts.
	Budgets map[string]BudgetSettings `conf:"budgets"`
	// UserRange is the users that formations run as, one each, when the supervisor
	// is root; nil leaves them the supervisor's own.
	UserRange *limits.UserRange `conf:"user_range"`
	// Landlock closes the file system to children but for what they need, Readable
	// and Writable (absolute). CgroupRoot is where cgroups are made: "" finds it,
	// "none" makes none.
	Landlock   bool     `conf:"landlock"`
	Readable   []string `conf:"readable_paths"`
	Writable   []string `conf:"writable_paths"`
	CgroupRoot string   `conf:"cgroup_root"`
	// LogRotation keeps each log below LogMaxSize, with LogMaxFiles older parts.
	LogRotation bool `conf:"log_rotation_enabled"`
	LogMaxSize  size `conf:"log_max_size"`
	LogMaxFiles int  `conf:"log_max_files"`

	// Other ways to write the keys above; LoadConfig applies them.
	PortRange       []int          `conf:"port_range" alias:"true"`
	MaxRestarts     *int           `conf:"max_restarts" alias:"true"`
	MaxRestartCount *int           `conf:"max_restart_count" alias:"true"`
	RestartDelay    *time.Duration `conf:"restart_delay" alias:"true"`
	KeepBackups     *int           `conf:"keep_backups" alias:"true"`

	RuntimeType        unused `conf:"runtime_type"`
	PidsDir            unused `conf:"pids_dir"`
	Docker             unused `conf:"docker"`
	Singularity        unused `conf:"singularity"`
	StartupHealthDelay unused `conf:"startup_health_delay"`
	UnhealthyThreshold unused `conf:"unhealthy_threshold"`
	StartupTimeout     unused `conf:"startup_timeout"`
}

// ResourceLimits are the keys of "formations.limits.<id>"; 0 is none, or that of
// the default.
type ResourceLimits struct {
	Memory size  `conf:"memory"`
	CPU    cores `conf:"cpu"`
	Pids   int   `conf:"pids"`
	Files  int   `conf:"files"`
	Disk   size  `conf:"disk"`
}

func (r ResourceLimits) limits() limits.Limits {
	return limits.Limits{Memory: int64(r.Memory), CPU: float64(r.CPU), Pids: r.Pids, Files: r.Files, Disk: int64(r.Disk)}
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
	HealthCheck      HealthCheck   `conf:"health_check"`
	ForceKillTimeout time.Duration `conf:"force_kill_timeout"`
	// Probation is how long a new version must serve before the old one ends. It
	// is restart.healthy_seconds unless set.
	Probation          time.Duration `conf:"probation"`
	StagingHealthDelay unused        `conf:"staging_health_delay"`
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
	Format   string `conf:"format"`    // "json" or "console"; "" is console at a terminal
	Output   string `conf:"output"`    // "stdout", "stderr" or a file, relative to Home
}

// defaults returns the settings of server.md 7.2 for a home directory.
func defaults(home string) Config {
	return Config{
		Home:         home,
		CacheDir:     filepath.Join(home, "cache"),
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
			Deployment:   Deployment{HealthCheck: HealthCheck{Timeout: 30 * time.Second}, ForceKillTimeout: 5 * time.Second, Probation: 10 * time.Second},
			KeepVersions: 5, Landlock: true, LogRotation: true, LogMaxSize: 10 << 20, LogMaxFiles: 10,
		},
		Logging: LogSettings{Level: "info", AuditLog: "logs/audit.log", Output: logStdout},
	}
}

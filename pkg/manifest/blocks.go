package manifest

import (
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // so that a formation is as valid on a host without time zones
)

// Runtime is the manifest's runtime block, or a version that pins nothing.
type Runtime struct {
	Version string
	// BuiltInMCPs are the built-in tool servers: all when nil, else these.
	BuiltInMCPs []string
}

// Scheduler runs jobs at times. It is nil when the block is absent: off.
type Scheduler struct {
	Enabled                bool          // true
	Timezone               string        // UTC
	CheckInterval          time.Duration // 1m
	MaxConcurrentJobs      int           // 10
	MaxFailuresBeforePause int           // 3
	MaxJobsPerUser         int           // 100
}

// RCE is the sandbox service that runs scripts. URL and Token are "" without
// the block.
type RCE struct {
	URL     string
	Token   string
	Timeout time.Duration // 60s, at most 300s
}

// The values of user_credentials.mode.
const (
	CredentialsRedirect = "redirect"
	CredentialsDynamic  = "dynamic"
)

// UserCredentials says how users give their own credentials.
type UserCredentials struct {
	Mode            string // redirect
	RedirectMessage string // "": the built-in one
	RequireHTTPS    bool   // true
	TTL             time.Duration
	MaxAttempts     int    // 3
	EncryptionKey   string // "": generated
	EncryptionSalt  string
}

// Artifacts is where generated files are kept.
type Artifacts struct {
	Enabled    bool
	Path       string // in the state directory
	Encrypted  bool
	Retention  string        // last_accessed or last_updated
	Keep       time.Duration // 0: for ever
	MaxSizeMB  int
	StorageKey string // storage.type: local
}

// Tuning lets the formation suggest better prompts. Nil when turned off.
type Tuning struct {
	Active    bool
	Interval  time.Duration
	AutoApply bool
}

// Coding is a coding program that agents may hand work to. Nil without the
// block.
type Coding struct {
	Client         string // the name of a known program, or "" with Command
	Command        string
	Args           []string
	Output         string // stream-json, json or text
	ParseResult    string
	ParseSessionID string
	Model          string
	Workdirs       []string
	Cleanup        string        // delete or keep
	Timeout        time.Duration // 30m
	MaxConcurrent  int           // 3
	Env            map[string]string
	Groups         []string
	ExtraArgs      []string
}

// Link is a place that a user may be sent to.
type Link struct {
	Label string
	URL   string
	Hint  string
}

// RateLimiting bounds how often an agent is asked or a tool server called, by all
// users together; 0 is no bound.
type RateLimiting struct {
	PerMinute int
	PerHour   int
	PerDay    int
	Burst     int // how many at once
}

func (d *decoder) rateLimiting(o *object, r *RateLimiting) {
	set(&r.PerMinute, o.integer("requests_per_minute", 1, unlimited))
	set(&r.PerHour, o.integer("requests_per_hour", 1, unlimited))
	set(&r.PerDay, o.integer("requests_per_day", 1, unlimited))
	set(&r.Burst, o.integer("burst_limit", 1, unlimited))
	o.end()
}

// RateLimit bounds requests per key and user; 0 is off.
type RateLimit struct {
	RequestsPerMinute int
	Burst             int
}

func (d *decoder) runtime(s *slot, r *Runtime) {
	if v, ok := s.text("a version"); ok {
		r.Version = v
	}
	if o := s.block(); o != nil {
		built := o.slot("built_in_mcps")
		if on, ok := built.boolean(); ok && !on {
			r.BuiltInMCPs = []string{}
		}
		built.list(func(_ int, item *slot) {
			if name, ok := item.text("a name"); ok {
				r.BuiltInMCPs = append(r.BuiltInMCPs, name)
			}
			item.end()
		})
		built.end()
		o.end()
	}
	s.end()
}

func (d *decoder) scheduler(o *object) *Scheduler {
	if o.absent() {
		return nil
	}
	c := &Scheduler{Enabled: true, Timezone: "UTC", CheckInterval: time.Minute, MaxConcurrentJobs: 10, MaxFailuresBeforePause: 3, MaxJobsPerUser: 100}
	set(&c.Enabled, o.boolean("enabled"))
	set(&c.Timezone, d.timezone(o, "timezone"))
	set(&c.CheckInterval, o.span("check_interval_minutes", time.Minute, time.Second))
	set(&c.MaxConcurrentJobs, o.integer("max_concurrent_jobs", 1, unlimited))
	set(&c.MaxFailuresBeforePause, o.integer("max_failures_before_pause", 1, unlimited))
	set(&c.MaxJobsPerUser, o.integer("max_jobs_per_user", 1, unlimited))
	o.end()
	return c
}

func (d *decoder) rce(o *object, r *RCE) {
	if o.absent() || o.n != nil && len(o.n.keys) == 0 {
		return
	}
	o.require("url", "url: https://host")
	set(&r.URL, o.url("url"))
	auth := o.block("auth")
	set(&r.Token, auth.secret("token"))
	auth.end()
	o.either("token", "auth")
	if o.n != nil && auth.n == nil {
		o.require("token", "token: ${{ secrets.RCE_TOKEN }}")
	}
	set(&r.Token, o.secret("token"))
	set(&r.Timeout, o.between("timeout_seconds", time.Millisecond, 300*time.Second))
	o.end()
}

func (d *decoder) userCredentials(o *object, u *UserCredentials) {
	set(&u.Mode, o.enum("mode", "a mode", CredentialsRedirect, CredentialsDynamic))
	set(&u.RedirectMessage, o.text("redirect_message"))
	set(&u.RequireHTTPS, o.boolean("require_https"))
	set(&u.TTL, o.span("credential_ttl_minutes", time.Minute, time.Second))
	set(&u.MaxAttempts, o.integer("max_attempts", 1, unlimited))
	e := o.block("encryption")
	set(&u.EncryptionKey, e.secret("key"))
	set(&u.EncryptionSalt, e.text("salt"))
	e.end()
	if flat := o.secret("encryption_key"); flat.v != nil {
		if e.take("key") != nil {
			o.faultAt("encryption_key", "", RuleConflict, `is another name of "encryption.key", which is set too; keep one`)
		}
		u.EncryptionKey = *flat.v
	}
	if u.Mode == CredentialsDynamic && o.n != nil {
		o.warnKey("mode", RuleNoEffect, "dynamic has no effect in this release; users are redirected")
	}
	o.inert("user_credentials")
	o.end()
}

func (d *decoder) artifacts(o *object, a *Artifacts) {
	set(&a.Enabled, o.boolean("enabled"))
	s := o.block("storage")
	set(&a.StorageKey, s.enum("type", "a kind of storage", "local"))
	if p := d.localPath(s, "path"); p != nil {
		a.Path = *p
	}
	s.end()
	e := o.block("encryption")
	set(&a.Encrypted, e.boolean("enabled"))
	e.end()
	r := o.block("retention")
	set(&a.Retention, r.enum("policy", "a policy", "last_accessed", "last_updated"))
	set(&a.Keep, r.span("duration", day, 0))
	r.end()
	set(&a.MaxSizeMB, o.integer("max_size_mb", 1, unlimited))
	o.end()
}

func (d *decoder) tuning(s *slot) *Tuning {
	t := &Tuning{Active: true, Interval: 24 * time.Hour, AutoApply: true}
	if on, ok := s.boolean(); ok && !on {
		t = nil
	}
	if o := s.block(); o != nil {
		set(&t.Active, o.boolean("active"))
		set(&t.Interval, o.span("interval_hours", time.Hour, time.Second))
		set(&t.AutoApply, o.boolean("auto_apply"))
		o.end()
	}
	s.end()
	return t
}

func (d *decoder) coding(o *object) *Coding {
	if o.absent() || o.n != nil && len(o.n.keys) == 0 {
		return nil
	}
	c := &Coding{Output: "text", Cleanup: "delete", Timeout: 30 * time.Minute, MaxConcurrent: 3}
	client := o.slot("client")
	if name, ok := client.text("a name"); ok {
		c.Client = name
	}
	if b := client.block(); b != nil {
		d.codingCommand(b, c)
		b.end()
	}
	client.end()
	d.codingCommand(o, c)
	o.either("client", "command")
	if o.n != nil && client.n == nil && o.take("command") == nil {
		o.require("client", "client: <name> or command: <program>")
	}
	set(&c.Model, o.text("model"))
	set(&c.Workdirs, o.texts("workdirs"))
	set(&c.Cleanup, o.enum("cleanup", "a way to clean up", "delete", "keep"))
	set(&c.Timeout, o.duration("timeout", time.Second))
	set(&c.MaxConcurrent, o.integer("max_concurrent", 1, unlimited))
	c.Env = o.envMap("env")
	set(&c.Groups, o.texts("groups"))
	set(&c.ExtraArgs, o.args("extra_args"))
	o.end()
	return c
}

func (d *decoder) codingCommand(o *object, c *Coding) {
	set(&c.Command, o.text("command"))
	set(&c.Args, o.args("args"))
	set(&c.Output, o.enum("output", "a form of output", "stream-json", "json", "text"))
	p := o.block("parse")
	set(&c.ParseResult, p.text("result"))
	set(&c.ParseSessionID, p.text("session_id"))
	p.end()
}

func (d *decoder) links(o *object) map[string]Link {
	out := map[string]Link{}
	o.each("links", func(name string, s *slot) {
		if b := s.block(); b != nil {
			var l Link
			set(&l.Label, b.text("label"))
			b.require("url", "url: https://host/settings")
			set(&l.URL, b.url("url"))
			set(&l.Hint, b.text("hint"))
			b.end()
			out[name] = l
		}
		s.end()
	})
	return out
}

// timezone reads the name of a time zone.
func (d *decoder) timezone(o *object, key string, more ...string) read[string] {
	r := o.word(key)
	if r.v == nil {
		return r
	}
	if slices.Contains(more, *r.v) {
		return r
	}
	if _, err := time.LoadLocation(*r.v); err != nil || *r.v == "Local" || strings.TrimSpace(*r.v) == "" {
		d.fault(o.n.get(key), o.key(key), RuleTimezone, "%q is no time zone; write one like UTC or Europe/Berlin", shown(o.n.get(key), key))
		r.v = nil
	}
	return r
}

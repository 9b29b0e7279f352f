// Package doctor looks at a host and a home directory and tells what would keep
// a supervisor from working well there, each with the way to mend it.
//
// It promises to change nothing, to need no running supervisor and no rights
// beyond those of its caller, and to end with ctx: a check that cannot look says
// so instead of guessing. The command line imports it.
package doctor

import (
	"context"
	"fmt"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, but less well or less safely than it could
	Fail Level = "fail" // it does not work
)

// Result is what one check found.
type Result struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	// Fix is what to do about it, "" when there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// Config says what to look at. What is zero is not looked at, except Root.
type Config struct {
	Home    string // absolute
	MaxHome int    // the longest Home, in bytes
	// Settings is the fault of the settings, Warnings what they say for nothing.
	// The fields below it are read from them, zero when they could not be.
	Settings error
	Warnings []string

	Formations, Logs string   // directories, absolute
	Secrets          []string // files that only their owner may read
	Certificate      string   // file of the certificate of the management API
	BindHost         string
	PortFirst        int // of the formations, inclusive
	PortLast         int
	Listen           string // of the management API, "host:port"
	OwnUsers         bool   // formations run as users of their own
	Limits           bool   // formations have limits

	Program string // this program's file
	Build   string // what this program says of its version
	Runtime string // the runtime's file; "" when there is none

	// PID is the supervisor of Home, 0 when none runs; Reach asks it for its
	// build and how many ports it holds.
	PID   int
	Reach func(ctx context.Context) (Reached, error)

	// Root is where /proc, /sys and /run are looked for; "" is the host's root.
	Root string
}

// Reached is what a running supervisor says of itself.
type Reached struct {
	URL        string
	Version    string
	Formations int
	Ports      int // of the range, that it holds
}

// check looks at one thing.
type check struct {
	name string
	look func(ctx context.Context, h *host) Result
}

// host is what the checks share.
type host struct {
	Config
	reached  Reached
	reachErr error
}

var checks = [...]check{
	{"settings", settings},
	{"home", homePath},
	{"permissions", permissions},
	{"disk", disk},
	{"supervisor", supervisor},
	{"runtime", runtimeProgram},
	{"address", address},
	{"ports", freePorts},
	{"certificate", certificate},
	{"files", openFiles},
	{"pidfd", pidfd},
	{"landlock", landlock},
	{"cgroup", cgroups},
	{"user", users},
	{"systemd", systemd},
	{"bubblewrap", bubblewrap},
	{"clock", clock},
}

// Run makes every check, in an order in which the first finding explains those
// behind it.
func Run(ctx context.Context, cfg Config) []Result {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	h := &host{Config: cfg}
	if cfg.Reach != nil {
		h.reached, h.reachErr = cfg.Reach(ctx)
	}
	results := make([]Result, 0, len(checks))
	for _, c := range checks {
		if r := c.look(ctx, h); r.Level != "" {
			r.Check = c.name
			results = append(results, r)
		}
	}
	return results
}

// nothing is the result of a check that does not concern this host.
func nothing() Result { return Result{} }

func ok(format string, args ...any) Result {
	return Result{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Result {
	return Result{Level: Warn, Found: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(fix, format string, args ...any) Result {
	return Result{Level: Fail, Found: fmt.Sprintf(format, args...), Fix: fix}
}

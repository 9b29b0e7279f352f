package limits

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/confine"
)

// GuardConfig says what a guard guards. ID, Limits, StateDir, VersionDir, RunDir
// and Stage are required; paths are absolute.
type GuardConfig struct {
	ID     string
	Limits Limits
	// StateDir is the formation's to write. VersionDir is its to read, and the init
	// command's to write. RunDir takes its sockets and temporary files. CacheDir is read by all formations;
	// "" is none.
	StateDir, VersionDir, RunDir, CacheDir string
	// Foreign says that VersionDir is an author's own directory: its owners and
	// modes stay as they are, and what the formation may not read it cannot run.
	Foreign bool
	// Home is the directory of the supervisor that holds the others. With a user
	// of its own a formation has to pass through; Home and what lies between is
	// opened to pass through (not to read) as far as it is not open already.
	Home string
	// ConfigDir holds the supervisor's settings, which no child may read.
	ConfigDir string
	// Stage is the formation-runtime program. A command with this program is the
	// child; any other is an init command.
	Stage string
	// UID is the user to run as, and the number of its group; 0 and -1 keep the
	// supervisor's. It takes root to set one.
	UID int
	// CgroupRoot, NoLandlock, Readable and Writable are those of the Policy.
	CgroupRoot         string
	NoLandlock         bool
	Readable, Writable []string
	// DiskEvery is the least time between two sums of the disk in use. 0 is 30 s.
	DiskEvery time.Duration
	Log       zerolog.Logger
}

// Guard holds one formation within its limits. It serves one process after the
// other: Command, Start, Started, Ended; for an adopted process Started and Ended.
type Guard struct {
	cfg GuardConfig
	log zerolog.Logger

	mu  sync.Mutex // guards run; held for the whole of Command, Started and Ended
	run *run       // nil between processes
}

// run is one guarded process and what was made for it.
type run struct {
	// child is what the program of the children is started with; nil for an init
	// command, which goes through the stage, and for an adopted process.
	child *confine.Spec
	tmp   string // its private temporary directory; "" when not known
	group *group // nil without a cgroup
	watch *watch // nil until it was started
	// adopted says that the cgroup is older than the run: its counters have steps
	// of earlier times.
	adopted bool
}

// NewGuard checks cfg.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	for name, path := range map[string]string{
		"StateDir": cfg.StateDir, "VersionDir": cfg.VersionDir, "RunDir": cfg.RunDir, "Stage": cfg.Stage,
	} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("guard of a formation: %s %q is no absolute path", name, path)
		}
	}
	if cfg.ID == "" || strings.ContainsAny(cfg.ID, "/\x00") {
		return nil, fmt.Errorf("guard of a formation: %q is no id", cfg.ID)
	}
	if err := cfg.Limits.Check(); err != nil {
		return nil, fmt.Errorf("limits of formation %s: %w", cfg.ID, err)
	}
	return &Guard{cfg: cfg, log: cfg.Log.With().Str("formation", cfg.ID).Logger()}, nil
}

// Command prepares the formation's directories, makes the cgroup, and changes
// cmd, whose Path is absolute and whose SysProcAttr is not nil, for Start. What it
// makes is freed by Ended, also when cmd never starts.
func (g *Guard) Command(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.end(); err != nil {
		g.log.Warn().Err(err).Msg("cannot clear up behind an earlier process")
	}
	if err := g.checkDisk(); err != nil {
		return err
	}
	initial := cmd.Path != g.cfg.Stage
	r := &run{}
	g.run = r
	err := g.prepare(r, initial)
	if err == nil {
		err = g.makeGroup(r)
	}
	if err == nil {
		err = g.confine(cmd, r, initial)
	}
	if err != nil {
		return errors.Join(err, g.end())
	}
	return nil
}

// confine sends an init command through the stage: it is a foreign program and
// its first instruction has to be inside of everything. The program of the
// children takes part, so that it needs no second start.
func (g *Guard) confine(cmd *exec.Cmd, r *run, initial bool) error {
	spec := g.spec(r, cmd.Env, initial)
	cmd.Env = append(cmd.Env, "TMPDIR="+r.tmp)
	if !initial {
		r.child = spec
		return nil
	}
	spec.Cgroups = r.group.dirs()
	entry, err := spec.Encode()
	if err != nil {
		return err
	}
	cmd.Args = append([]string{g.cfg.Stage, cmd.Path}, cmd.Args[min(1, len(cmd.Args)):]...)
	cmd.Path = g.cfg.Stage
	cmd.Env = append(cmd.Env, entry)
	return nil
}

// Start starts Command's cmd. A child is in its cgroup when Started returns.
func (g *Guard) Start(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run == nil {
		return errors.New("start a guarded process: Command comes first")
	}
	if g.run.child == nil {
		return cmd.Start()
	}
	return g.run.child.Start(cmd)
}

// Started limits and watches the process that Command's cmd became, or an adopted
// one. kill is called at most once, from another goroutine, to end the process
// with its whole group; the guard itself ends what else belongs to it. After an
// error the process is not inside its limits; Ended comes nevertheless.
func (g *Guard) Started(pid int, kill func(reason string)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run == nil {
		g.run = g.adopt(pid)
	}
	if g.run.child != nil {
		if err := g.run.group.take(pid); err != nil {
			return err
		}
	}
	g.run.watch = g.newWatch(pid, g.run, kill)
	g.run.watch.start()
	return nil
}

// Ended is called when the process has ended, or was never started. It tells
// which limit ended it, such as "out of memory, limit 512 MiB"; "" is none. It
// kills what the process left, in its cgroup or as far as it is known without
// one, and frees everything.
func (g *Guard) Ended() (reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run == nil {
		return ""
	}
	if g.run.watch != nil {
		reason = g.run.watch.stop()
	}
	if err := g.end(); err != nil {
		g.log.Warn().Err(err).Msg("cannot clear up behind a process")
	}
	return reason
}

// Detach stops watching a process that lives on without this supervisor. Its
// cgroup and its directories stay.
func (g *Guard) Detach() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run != nil && g.run.watch != nil {
		g.run.watch.stop()
	}
	g.run = nil
}

// end frees the present run, whose process has ended; mu is held.
func (g *Guard) end() error {
	r := g.run
	g.run = nil
	if r == nil {
		return nil
	}
	var errs []error
	if r.watch != nil {
		r.watch.stop()
	}
	if r.group != nil {
		errs = append(errs, r.group.remove())
	}
	if left := r.leftovers(); left != nil {
		left.kill()
	}
	if r.tmp != "" {
		errs = append(errs, removeAll(r.tmp))
	}
	return errors.Join(errs...)
}

// leftovers is what a process without a cgroup may have left: nothing would hold
// it any more. nil is nothing that a cgroup does not know better.
func (r *run) leftovers() *tree {
	const ended = -1 // the number of the process may be another's by now
	switch {
	case r.watch != nil && r.watch.tree != nil:
		return r.watch.tree
	case r.group == nil && r.tmp != "":
		return newTree(ended, r.tmp)
	}
	return nil
}

// spec is what the process confines itself by.
func (g *Guard) spec(r *run, env []string, initial bool) *confine.Spec {
	c := g.cfg
	s := &confine.Spec{
		UID: -1, GID: -1, NoNewPrivs: true, NoCapabilities: true, Memory: c.Limits.Memory, CPU: c.Limits.CPU,
		Rlimits: map[string]uint64{"core": 0}, // a core holds secrets
	}
	if c.Limits.Files > 0 {
		s.Rlimits["nofile"] = uint64(c.Limits.Files)
	}
	if c.Limits.Disk > 0 {
		s.Rlimits["fsize"] = uint64(c.Limits.Disk)
	}
	if g.ownUser() {
		s.UID, s.GID = c.UID, c.UID
		if c.Limits.Pids > 0 && !r.group.has(pids) {
			s.Rlimits["nproc"] = 2 * uint64(c.Limits.Pids) // the user's in all, of two processes during an update
		}
	}
	if !c.NoLandlock {
		g.openPaths(s, env, initial)
	}
	return s
}

// adopt is the run of a process that an earlier supervisor started.
func (g *Guard) adopt(pid int) *run {
	return &run{tmp: tmpOf(pid, g.cfg.RunDir), group: adoptGroup(g.cfg.ID, pid), adopted: true}
}

// ownUser tells whether the formation has a user to itself.
func (g *Guard) ownUser() bool { return g.cfg.UID > 0 }

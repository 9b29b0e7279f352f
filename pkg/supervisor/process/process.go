// Package process supervises one formation's child process: it launches it,
// proves it ready, watches it, replaces it when it dies or hangs, stops it, and
// takes it over again after the supervisor was restarted.
//
// It promises that the formation's port stays open while children come and go,
// that two children never commit at once (a dead child's launch id is fenced
// before its successor writes), that no process is signalled which is not proven
// to be ours, and that a child that keeps failing ends as crashed instead of
// burning the machine. deploy owns a Manager for each formation.
//
//	          Start                    Serve answered
//	stopped ─────────▶ starting ─────────────────────▶ running ◀──┐
//	   ▲                  │ not ready         Stop│  ▲   │ exit,   │ Serve answered
//	   │                  ▼                       ▼  │   ▼ hang    │
//	   └── Stop ─────── crashed ◀── gave up ── restarting ────────┘
//	   └────────────────────── stopping ◀─────────┘
//
// An update launches a second child beside the running one, on the same socket:
// the status stays running, and the new child or, when it fails its probation,
// the old one goes on (see Manager.Update).
//
// In crashed, and when an outage lasts longer than OutageLimit, the supervisor
// itself answers on the formation's port.
//
// Linux only: processes are held by pidfd.
package process

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/ports"
)

// Spec says what to run. Its directories and files are made by the owner,
// except RunDir and the log files.
type Spec struct {
	ID     string // formation id
	Binary string // path of the formation-runtime program
	Args   []string
	Dir    string // manifest directory; the child's working directory
	// StateDir is where the child keeps its store.
	StateDir string
	// RunDir holds the control socket, its keys and the run records (0700). It
	// must be this formation's own and short: see MaxRunDir.
	RunDir string
	OutLog string // the child's log records, appended to
	ErrLog string // the child's descriptor 2, appended to
	// FreshLogs empties both files before the first launch.
	FreshLogs bool
	// Env is the child's environment, complete: nothing of the supervisor's own
	// is added but the variables of package control.
	Env          []string
	ServerID     string
	HeaderPrefix string
	Budgets      []byte // the operator's budget policy, see control.LoadRequest
	Socket       *ports.Socket
	// ReadyTimeout bounds the time to readiness, moved on by progress. 0 is 300 s.
	ReadyTimeout time.Duration
	// DrainTimeout is how long open work may take at the end. 0 is 30 s.
	DrainTimeout time.Duration
	// KillTimeout is how long after DrainTimeout the child is killed. 0 is 5 s.
	KillTimeout time.Duration
	// LameDuck is how long a child that is replaced, not stopped, waits for idle
	// clients.
	LameDuck time.Duration
	// OrphanTimeout is how long the child lives without a supervisor. 0 is for ever.
	OrphanTimeout time.Duration
	// Fence holds further launch ids that must never commit again. Those of the
	// children that this package saw die are added by itself.
	Fence []string
	// Init is a shell command that is run once, to its end, before this launch; ""
	// is none. The owner sets it for the first launch of a version only: a child
	// that is restarted by the policy does not repeat it.
	Init string
	// InitTimeout bounds Init. 0 is 10 min.
	InitTimeout time.Duration
	// Guard puts limits on Init and the children. Nil sets none.
	Guard Guard
	// NotReady is the kind of the fault when a first start does not become ready;
	// 0 is fault.Failed. Its name is HealthCheckFailed.
	NotReady fault.Kind
}

// Guard limits a process and what it starts; limits.Guard is one. It serves one
// process after the other: Command, Start, Started, Ended.
type Guard interface {
	// Command prepares the limits of cmd, which is not started yet, and changes it.
	Command(cmd *exec.Cmd) error
	// Start starts Command's cmd.
	Start(cmd *exec.Cmd) error
	// Started limits and begins to watch the process, which Command's cmd became or
	// which was adopted. The guard calls kill to end it with all that it started.
	// After an error it is not fit to run.
	Started(pid int, kill func(reason string)) error
	// Ended stops the watching and tells which limit ended the process; "" is none.
	Ended() (reason string)
	// Detach stops the watching of a process that lives on.
	Detach()
}

// MaxRunDir is the longest possible Spec.RunDir, in bytes: a unix socket's path
// has room for 107, and go-plugin adds up to 18.
const MaxRunDir = 107 - len("/plugin") - 11

// withDefaults checks s and fills in what is zero.
func (s Spec) withDefaults() (Spec, error) {
	for name, value := range map[string]string{
		"ID": s.ID, "Binary": s.Binary, "Dir": s.Dir, "StateDir": s.StateDir,
		"RunDir": s.RunDir, "OutLog": s.OutLog, "ErrLog": s.ErrLog,
	} {
		if value == "" {
			return s, fmt.Errorf("process spec: %s is empty", name)
		}
	}
	if s.Socket == nil {
		return s, errors.New("process spec: Socket is nil")
	}
	// The child has another working directory than we have.
	for _, path := range []*string{&s.Binary, &s.Dir, &s.StateDir, &s.RunDir} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return s, fmt.Errorf("process spec: path %s: %w", *path, err)
		}
		*path = abs
	}
	if len(s.RunDir) > MaxRunDir {
		return s, fmt.Errorf("process spec: RunDir %s has %d bytes, want at most %d (a unix socket lies in it)",
			s.RunDir, len(s.RunDir), MaxRunDir)
	}
	s.ReadyTimeout = orElse(s.ReadyTimeout, 300*time.Second)
	s.DrainTimeout = orElse(s.DrainTimeout, 30*time.Second)
	s.KillTimeout = orElse(s.KillTimeout, 5*time.Second)
	s.InitTimeout = orElse(s.InitTimeout, 10*time.Minute)
	if s.NotReady == fault.Internal {
		s.NotReady = fault.Failed
	}
	return s, nil
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// Progress tells a waiting client how a start or an update goes: stage is
// "stopping", "spawning" (an update's may have other names), "health_check" or
// "swapping". During health_check attempt counts the seconds without news, during
// swapping those of the probation; attempts is the most of them. It is called
// from one goroutine at a time.
type Progress func(stage, message string, attempt, attempts int)

// Status is the state of a formation's process, in the words of the API.
type Status string

// The statuses.
const (
	StatusStopped    Status = "stopped"
	StatusStarting   Status = "starting"
	StatusRunning    Status = "running"
	StatusStopping   Status = "stopping"
	StatusCrashed    Status = "crashed"
	StatusRestarting Status = "restarting"
)

// Exit tells how a child ended.
type Exit struct {
	Time time.Time
	// Code is the exit code; -1 when a signal ended the child or nobody knows.
	Code   int
	Signal string // for example "killed"; empty when no signal did it
	// Reason is for people: "exit code 2", "killed, likely out of memory", "hang:
	// no heartbeat for 35s", "exit status unknown (adopted)", …
	Reason string
	Stderr []string // the last lines of its error log
	// Served is how long the child had served; 0 when it never did.
	Served time.Duration
	Launch string // the child's launch id; empty when no process was started
}

// Snapshot is what is known about the process at one moment.
type Snapshot struct {
	Status       Status
	PID          int    // 0 when there is no process
	LaunchID     string // of the present process
	Adopted      bool   // taken over from an earlier supervisor
	StartedAt    time.Time
	RestartCount int
	Healthy      *bool // nil until known
	LastHealth   time.Time
	LastExit     *Exit    // nil when no child has ended
	Warnings     []string // of the last successful load
	Agents       int
}

// EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	EventRunning    EventKind = "running"    // a child serves
	EventAdopted    EventKind = "adopted"    // an earlier supervisor's child serves
	EventExited     EventKind = "exited"     // a child ended unasked
	EventHung       EventKind = "hung"       // a child hangs and is killed
	EventRestarting EventKind = "restarting" // a new child comes after Delay
	EventCrashed    EventKind = "crashed"    // no new child comes
	EventStopped    EventKind = "stopped"    // the child ended because it was asked to
	EventUpdated    EventKind = "updated"    // the new child of an update is the current one for good
	EventRolledBack EventKind = "rolledback" // the old child of an update serves again; Exit is the new one's
	EventReplaced   EventKind = "replaced"   // a child has ended beside the serving one, or before one that comes
)

// Event is something that happened to the process.
type Event struct {
	Kind        EventKind
	Time        time.Time
	FormationID string
	Delay       time.Duration // of EventRestarting
	Exit        Exit          // of the kinds that tell of a child's end, and the last one's of EventRestarting
	Snapshot    Snapshot      // right after it
}

// ManagerConfig is what does not change from start to start.
type ManagerConfig struct {
	Log    zerolog.Logger
	Policy Policy // zero fields take the value of DefaultPolicy
	// HealthInterval and HealthTimeout bound the heartbeat: a child is hung when
	// it is missing for both together. 0 is 30 s and 5 s.
	HealthInterval, HealthTimeout time.Duration
	// OutageLimit is how long connections wait for a new child before the
	// supervisor answers them. 0 is 30 s.
	OutageLimit time.Duration
	// Unavailable answers on the formation's port when no child does.
	Unavailable http.Handler
	// Notify is told every event, in order, before the next step is taken; those of
	// a child that ends beside the serving one come in between. It must not call back into the Manager, except Snapshot. May be nil.
	Notify func(Event)
	// RestartCount is where the counting goes on.
	RestartCount int
	Now          func() time.Time // nil is time.Now
	Rand         func() float64   // in [0,1), for the jitter; nil is math/rand/v2
}

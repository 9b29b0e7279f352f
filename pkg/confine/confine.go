// Package confine is what a process takes on before it becomes a formation's
// child, or the command of its init: its cgroups and resource limits, another
// user, no capabilities, and a view of the file system with little in it.
//
// There are two ways. Stage does it to the process itself, which then executes
// the program that it was started for; any program can be started so. Start lets
// a thread of the supervisor take on what a thread can, and starts the program
// from there: that saves the time of a second program, and the program takes on
// the rest by Settle.
//
// Promise: when the program runs, everything in the Spec holds for it and for all
// that it ever starts, and none of it can be taken back. What the kernel cannot do
// is the one exception, and it is Landlock alone: a kernel without it runs the
// program without it.
//
// The supervisor's limits room makes the Spec; cmd/formation-runtime runs Stage and
// Settle.
package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Env holds the Spec as JSON. The stage takes it out of the environment.
const Env = "SVC_CONFINE"

// EnvRest holds as JSON what Start leaves to the program. Settle takes it out of
// the environment.
const EnvRest = "SVC_CONFINE_REST"

// maxEnv bounds the text of Env, in bytes: far more than a supervisor writes.
const maxEnv = 64 << 10

// Spec says what a process takes on.
type Spec struct {
	// UID and GID are the user and group to become; -1 keeps the present ones.
	// Groups are the supplementary groups that go with them; the present ones are
	// given up.
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"`
	// Rlimits are soft and hard limits at once, by name: "nofile", "core",
	// "nproc", "fsize", "cpu", "data". Limits that are lower already stay.
	Rlimits map[string]uint64 `json:"rlimits,omitempty"`
	// ReadOnly and ReadWrite are files and directories that Landlock leaves open,
	// absolute: to be read and executed, and to be changed in every way as well.
	// What does not exist is passed over. Both empty is no Landlock.
	ReadOnly  []string `json:"read_only,omitempty"`
	ReadWrite []string `json:"read_write,omitempty"`
	// NoNewPrivs takes the effect from set-user-id programs. Landlock implies it.
	NoNewPrivs bool `json:"no_new_privs,omitempty"`
	// NoCapabilities gives up every capability, which a process that stays root
	// would keep: among them to look into the memory of all others.
	NoCapabilities bool `json:"no_capabilities,omitempty"`
	// Cgroups are directories of cgroups to join, one per hierarchy.
	Cgroups []string `json:"cgroups,omitempty"`
	// Parent is the process with whose death the program is killed, the one that
	// starts it; 0 is none. Only Stage knows it. What exec.Cmd asks the kernel for
	// holds for one thread, and Stage may go on with another.
	Parent int `json:"parent,omitempty"`
	// Memory in bytes and CPU in processors are the limits of the cgroup or the
	// watcher, so that a program started by Start can live within them by itself:
	// collect garbage before the kernel kills. 0 is none.
	Memory int64   `json:"memory,omitempty"`
	CPU    float64 `json:"cpu,omitempty"`
}

// Encode returns the entry of the environment that hands s to a stage.
func (s *Spec) Encode() (string, error) { return s.entry(Env) }

func (s *Spec) entry(name string) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the confinement: %w", err)
	}
	if len(text) > maxEnv {
		return "", fmt.Errorf("encode the confinement: it takes %d bytes, at most %d are read", len(text), maxEnv)
	}
	return name + "=" + string(text), nil
}

// FromEnv reads the Spec that this process was started with. It returns false
// when there is none: the process is no stage.
func FromEnv() (*Spec, bool, error) {
	text, ok := os.LookupEnv(Env) //nolint:forbidigo // the supervisor speaks to the stage through this variable
	if !ok {
		return nil, false, nil
	}
	s, err := parse(text)
	return s, true, wrap("read "+Env, err)
}

// parse reads and checks a Spec.
func parse(text string) (*Spec, error) {
	if len(text) > maxEnv {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(text), maxEnv)
	}
	s := &Spec{UID: -1, GID: -1}
	dec := json.NewDecoder(strings.NewReader(text))
	// A word that this build does not know is a limit that it would not set.
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, err
	}
	return s, s.check()
}

// wrap says what we were doing when err came; nil stays nil.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (s *Spec) check() error {
	if s.UID < -1 || s.GID < -1 {
		return errors.New("uid and gid are -1 or more")
	}
	for name := range s.Rlimits {
		if _, ok := resource(name); !ok {
			return fmt.Errorf("unknown rlimit %q", name)
		}
	}
	for _, paths := range [][]string{s.ReadOnly, s.ReadWrite, s.Cgroups} {
		for _, path := range paths {
			if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
				return fmt.Errorf("%q is no absolute path", path)
			}
		}
	}
	if s.Memory < 0 || s.CPU < 0 || s.Parent < 0 {
		return errors.New("memory, cpu and parent are 0 or more")
	}
	return nil
}

// Stage takes on what Env says and executes args in place of this program; args
// begins with the absolute path of the program. All descriptors that are not
// closed on execution stay open. It returns only with an error.
func Stage(args []string) error {
	s, ok, err := FromEnv()
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s is not set", Env)
	}
	if len(args) == 0 || !strings.HasPrefix(args[0], "/") {
		return errors.New("the stage needs the absolute path of a program to execute")
	}
	env := without(os.Environ(), Env) //nolint:forbidigo // handed on, less what was meant for the stage
	// User, groups, no_new_privs and Landlock belong to a thread. The thread that
	// executes is the one that lives on.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.Apply(); err != nil {
		return err
	}
	if err := s.dieWithParent(); err != nil {
		return err
	}
	return execute(args, env)
}

// dieWithParent comes last: a change of user would take it back.
func (s *Spec) dieWithParent() error {
	if s.Parent == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask to die with the parent: %w", err)
	}
	if os.Getppid() != s.Parent { // it has died before it was asked for
		return fmt.Errorf("the parent %d has ended", s.Parent)
	}
	return nil
}

// without returns env less the entries of a variable.
func without(env []string, variable string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == variable
	})
}

// execute is execve(2) on the calling thread.
func execute(args, env []string) error {
	if err := unix.Exec(args[0], args, env); err != nil {
		return fmt.Errorf("execute %s: %w", args[0], err)
	}
	return nil
}

package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts cmd with all of s in force but the resource limits, which hold from
// its call of Settle on, and the Cgroups, which are left to the caller: what cmd
// runs is a program that calls Settle before anything else.
//
// User, capabilities, no_new_privs and Landlock belong to threads, and a process
// begins with those of the thread that starts it. So a thread takes them on,
// starts cmd and ends; a death signal for the end of its parent, which cmd would
// get at once, is refused. It is never the main thread, which cannot end, and it
// makes no other thread: Go has a clean one for that.
func (s *Spec) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig != 0 || s.Parent != 0 {
		return errors.New("start a confined process: Pdeathsig would end it with the thread that starts it")
	}
	rest := &Spec{UID: -1, GID: -1, Rlimits: s.Rlimits, Memory: s.Memory, CPU: s.CPU}
	entry, err := rest.entry(EnvRest)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, entry)
	if s.UID >= 0 || s.GID >= 0 {
		cmd.SysProcAttr.Credential = s.credential()
	}
	askForPidfds()
	return onThread(func() error {
		if err := s.confineThread(); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// askForPidfds lets Go find out, once in a program, whether the kernel has pidfds.
// It tries to signal itself, which some kernels refuse to a thread under Landlock.
func askForPidfds() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
}

// confineThread takes on what the process to be started inherits.
func (s *Spec) confineThread() error {
	rules, err := s.landlock()
	if err != nil {
		return err
	}
	defer rules.close()
	if s.NoCapabilities {
		if err := boundCapabilities(); err != nil {
			return err
		}
		if s.UID <= 0 { // else the change of user takes them away, and needs one
			if err := dropCapabilities(); err != nil {
				return err
			}
		}
	}
	return s.close(rules)
}

func (s *Spec) credential() *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if s.UID >= 0 {
		c.Uid = uint32(s.UID)
	}
	if s.GID >= 0 {
		c.Gid = uint32(s.GID)
	}
	for _, g := range s.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	c.NoSetGroups = s.GID < 0
	return c
}

// onThread runs do on a thread that nothing else ever runs on.
func onThread(do func() error) error {
	result := make(chan error, 1)
	go runAlone(os.Getpid(), func() { result <- do() })
	return <-result
}

// runAlone locks its goroutine to a thread and never unlocks it: Go ends the
// thread when the goroutine ends. The thread with the number main is passed over.
func runAlone(main int, do func()) {
	runtime.LockOSThread()
	if unix.Gettid() != main {
		do()
		return
	}
	// While that thread is held here, another goroutine runs on another one.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runAlone(main, do)
	}()
	<-done
	runtime.UnlockOSThread()
}

// Rest is what a program that was started by Start is told of its limits; 0 is
// none.
type Rest struct {
	Memory int64   // bytes
	CPU    float64 // processors
}

// Settle takes on the resource limits that Start left to this process and tells
// the other ones. It does nothing in a process that was started otherwise.
func Settle() (Rest, error) {
	text, ok := os.LookupEnv(EnvRest) //nolint:forbidigo // the supervisor speaks to its child through this variable
	if !ok {
		return Rest{}, nil
	}
	s, err := parse(text)
	if err == nil {
		err = os.Unsetenv(EnvRest)
	}
	if err == nil {
		err = s.setRlimits()
	}
	if err != nil {
		return Rest{}, fmt.Errorf("settle within the limits: %w", err)
	}
	return Rest{Memory: s.Memory, CPU: s.CPU}, nil
}

package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// child is one launched or adopted process. The goroutine that owns the episode
// owns it.
type child struct {
	spec    Spec
	rec     record
	proc    *proc
	conn    *control.Conn
	stdout  *os.File // nil when adopted
	loaded  control.Loaded
	adopted bool
	// serving is when it began to accept; zero before.
	serving   time.Time
	oomBefore uint64
	guarded   bool                   // spec.Guard works for this child
	why       atomic.Pointer[string] // why we killed it; nil when we did not
}

// because notes why the child is about to be killed; the first reason stays.
func (c *child) because(reason string) { c.why.CompareAndSwap(nil, &reason) }

// guard lets the spec's guard limit and watch the process.
func (c *child) guard() error {
	if c.spec.Guard == nil {
		return nil
	}
	c.guarded = true
	p := c.proc
	return c.spec.Guard.Started(p.pid, func(reason string) {
		c.because(reason)
		_ = p.killGroup() // it fails only for want of rights to our own child
	})
}

// unguard ends the guard's watching and returns its verdict.
func (c *child) unguard() string {
	if !c.guarded {
		return ""
	}
	c.guarded = false
	return c.spec.Guard.Ended()
}

// stderr returns the last lines that this child left in its error log.
func (c *child) stderr() []string { return tail(c.spec.ErrLog, c.rec.ErrFrom) }

// release frees what belongs to a child that has exited.
func (c *child) release() {
	if c.stdout != nil {
		// go-plugin reads until the end of the pipe, which a leftover of the
		// child could hold open.
		c.stdout.Close()
	}
	if c.conn != nil {
		c.conn.Close()
	}
}

// leave lets go of a child and frees everything here.
func (m *Manager) leave(c *child) {
	if c.conn != nil {
		c.conn.Detach()
	}
	if c.stdout != nil {
		c.stdout.Close()
	}
	c.proc.detach()
	if c.guarded {
		c.guarded = false
		c.spec.Guard.Detach()
	}
	m.drop(c.rec.LaunchID)
}

// kill ends the child's process group at once and waits for the end.
func (c *child) kill() error {
	err := c.proc.killGroup()
	<-c.proc.exited
	return err
}

// launchError is why no child could be made ready.
type launchError struct {
	fault error // for the caller
	exit  Exit  // for the restart policy and the status
}

func (e *launchError) Error() string { return e.fault.Error() }
func (e *launchError) Unwrap() error { return e.fault }

// stageSpawning is the stage of a launch before there is a process that answers.
const stageSpawning = "spawning"

// launch starts a child and returns it when it serves. On an error nothing of it
// is left; the error is a *launchError unless ctx ended.
func (m *Manager) launch(ctx context.Context, spec Spec, progress Progress) (*child, error) {
	c, err := m.prove(ctx, spec, progress)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, spec.ReadyTimeout, errNotReady)
	defer cancel()
	if err := c.conn.Serve(limit); err != nil {
		return nil, m.notReady(limit, c, causeOr(limit, err))
	}
	c.serving = m.now()
	return c, nil
}

// prove is launch up to the point where the child could serve.
func (m *Manager) prove(ctx context.Context, spec Spec, progress Progress) (*child, error) {
	progress(stageSpawning, "starting the formation's process", 0, 0)
	c, dead, err := m.admit(spec)
	if err != nil {
		return nil, m.notSpawned(spec, err)
	}
	if err := m.spawn(ctx, c); err != nil {
		return nil, err
	}
	req := control.LoadRequest{
		Dir: spec.Dir, StateDir: spec.StateDir, ServerID: spec.ServerID, HeaderPrefix: spec.HeaderPrefix, Budgets: spec.Budgets,
		Fence: append([]string(nil), spec.Fence...),
	}
	for _, r := range dead {
		req.Fence = append(req.Fence, r.LaunchID)
	}
	if err := m.makeReady(ctx, c, req, progress); err != nil {
		return nil, m.notReady(ctx, c, err)
	}
	for _, r := range dead { // the store has them now
		m.forget(r, spec.RunDir)
	}
	return c, nil
}

// admit prepares a launch, gives it its identity, and returns the records of the
// dead launches, which are to be fenced. From then on the launch is in our hands.
func (m *Manager) admit(spec Spec) (*child, []record, error) {
	m.admission.Lock()
	defer m.admission.Unlock()
	dead, err := m.prepare(spec)
	if err != nil {
		return nil, nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, nil, err
	}
	c := &child{
		spec: spec,
		rec: record{
			FormationID: spec.ID, LaunchID: randomHex(8), Token: randomHex(32), Dir: spec.Dir,
			BootID: boot, LaunchedAt: m.now(),
		},
		oomBefore: oomKills(),
	}
	m.hold(c.rec.LaunchID)
	return c, dead, nil
}

// prepare makes the run directory ready for a launch, ends leftovers, and returns
// the records of dead launches; those in our hands are left alone.
func (m *Manager) prepare(spec Spec) ([]record, error) {
	if err := os.MkdirAll(spec.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	if err := closeRunDir(spec); err != nil {
		return nil, fmt.Errorf("close the run directory to others: %w", err)
	}
	if err := control.EnsureTLS(spec.RunDir); err != nil {
		return nil, err
	}
	if err := spec.Socket.Bind(); err != nil {
		return nil, err
	}
	records, err := readRecords(spec.RunDir)
	if err != nil {
		return nil, err
	}
	var dead []record
	for _, r := range records {
		switch {
		case m.held(r.LaunchID):
		case r.Init:
			m.endLeftover(r)
			m.forget(r, spec.RunDir)
		default:
			m.endLeftover(r)
			dead = append(dead, r)
		}
	}
	if !m.holdsNone() {
		return dead, nil
	}
	return dead, sweep(spec.RunDir)
}

// closeRunDir keeps everybody else out. A guard may have let the child's own
// user in by its group, and does so again at each launch.
func closeRunDir(spec Spec) error {
	info, err := os.Stat(spec.RunDir)
	if err != nil {
		return err
	}
	open := info.Mode().Perm() & 0o077
	if spec.Guard != nil {
		open &= 0o007
	}
	if open == 0 {
		return nil
	}
	return os.Chmod(spec.RunDir, 0o700) //nolint:gosec // a directory needs its x bit
}

// sweep removes what children and supervisors that were killed leave behind:
// sockets and half-written records. It runs while no child lives.
func sweep(runDir string) error {
	for _, pattern := range []string{"plugin*", control.HandoverPrefix + "*", recordTemp} {
		stale, err := filepath.Glob(filepath.Join(runDir, pattern))
		if err != nil {
			return fmt.Errorf("look for leftovers of killed processes: %w", err)
		}
		for _, path := range stale {
			if err := ignoreMissing(os.Remove(path)); err != nil {
				return fmt.Errorf("remove a leftover of a killed process: %w", err)
			}
		}
	}
	return nil
}

// spawn starts the process and connects to it. The record is written as soon as
// there is a process, and again with the socket's path.
func (m *Manager) spawn(ctx context.Context, c *child) error {
	spec := c.spec
	ctx, cancel := context.WithTimeoutCause(ctx, spec.ReadyTimeout, errNotReady)
	defer cancel()
	logs, err := openLogs(spec, m.takeFresh())
	if err != nil {
		return m.stillborn(c, err)
	}
	defer logs.close()
	c.rec.ErrFrom = logs.errFrom
	socket, err := spec.Socket.File()
	if err != nil {
		return m.stillborn(c, err)
	}
	defer socket.Close()

	var l *launched
	c.conn, err = control.Launch(ctx, spec.RunDir, func(handshake []string) (runner.Runner, error) {
		l = &launched{cmd: c.command(handshake), start: c.start, onStart: c.begin}
		l.cmd.Stderr = logs.err
		l.cmd.ExtraFiles = []*os.File{socket, logs.out, logs.err} // descriptors 3, 4 and 5
		return l, c.limit(l.cmd)
	})
	if l != nil {
		c.stdout = l.stdout
	}
	switch cause := context.Cause(ctx); {
	case err != nil && c.proc == nil && cause != nil && !errors.Is(cause, errNotReady):
		_ = m.stillborn(c, err)
		return cause
	case err != nil && c.proc == nil:
		return m.stillborn(c, err)
	case err != nil:
		return m.notReady(ctx, c, errors.Join(control.ErrNoAnswer, err))
	}
	c.rec.Socket = c.conn.Socket()
	if err := c.rec.save(spec.RunDir); err != nil {
		return m.notReady(ctx, c, err)
	}
	return nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// limit lets the spec's guard change the command.
func (c *child) limit(cmd *exec.Cmd) error {
	if c.spec.Guard == nil {
		return nil
	}
	c.guarded = true
	if err := c.spec.Guard.Command(cmd); err != nil {
		return fault.Wrap(fault.Failed, "SpawnError", "the formation's process could not be limited: "+err.Error(), err)
	}
	return nil
}

// start starts the command, once limit has changed it.
func (c *child) start(cmd *exec.Cmd) error {
	if c.spec.Guard == nil {
		return cmd.Start()
	}
	return c.spec.Guard.Start(cmd)
}

// begin takes the started process over. The record comes first: the guard may
// take its time. Nothing is asked of a child before its guard is done.
func (c *child) begin(p *proc) error {
	c.proc = p
	c.rec.PID, c.rec.StartTime = p.pid, p.start
	err := c.rec.save(c.spec.RunDir)
	if err == nil {
		err = c.guard()
	}
	if err != nil { // it is about to be killed
		c.because(err.Error())
	}
	return err
}

// command is the child's command with its whole environment. Its own process
// group keeps a terminal's ^C and the supervisor's end away from it.
func (c *child) command(handshake []string) *exec.Cmd {
	s := c.spec
	cmd := exec.Command(s.Binary, s.Args...) //nolint:noctx // a child outlives every context here
	cmd.Dir = s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(append([]string(nil), s.Env...), handshake...)
	cmd.Env = append(cmd.Env,
		control.EnvFormationID+"="+s.ID,
		control.EnvLaunchID+"="+c.rec.LaunchID,
		control.EnvLaunchToken+"="+c.rec.Token,
		control.EnvRunDir+"="+s.RunDir,
		control.EnvHeapGrowth+"="+strconv.Itoa(control.HeapGrowth),
	)
	if s.OrphanTimeout > 0 {
		cmd.Env = append(cmd.Env, control.EnvOrphanTimeout+"="+s.OrphanTimeout.String())
	}
	return cmd
}

// stillborn is notSpawned for a launch that was admitted.
func (m *Manager) stillborn(c *child, err error) error {
	c.unguard()
	m.drop(c.rec.LaunchID)
	return m.notSpawned(c.spec, err)
}

// notSpawned is the failure of a launch that made no process.
func (m *Manager) notSpawned(spec Spec, err error) error {
	f := err
	if fault.NameOf(err) == "" {
		f = fault.Wrap(fault.Failed, "SpawnError", "the formation's process could not be started: "+reason(err), err)
	}
	m.log.Error().Err(err).Str("binary", spec.Binary).Msg("no process started")
	return &launchError{fault: f, exit: Exit{Time: m.now(), Code: -1, Reason: f.Error()}}
}

// reason is the last part of an error's text that an operator can act on: path
// and the system's word.
func reason(err error) string {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return strings.SplitN(err.Error(), "\n", 2)[0]
}

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
	"strings"
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

// detach leaves the child alone and frees everything here.
func (c *child) detach() {
	if c.conn != nil {
		c.conn.Detach()
	}
	if c.stdout != nil {
		c.stdout.Close()
	}
	c.proc.detach()
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

// launch starts a child and returns it when it serves. On an error nothing of it
// is left; the error is a *launchError unless ctx ended.
func (m *Manager) launch(ctx context.Context, spec Spec, progress Progress) (*child, error) {
	progress("spawning", "starting the formation's process", 0, 0)
	dead, err := m.prepare(spec)
	if err != nil {
		return nil, m.notSpawned(spec, err)
	}
	c, err := m.spawn(ctx, spec)
	if err != nil {
		return nil, err
	}
	req := control.LoadRequest{
		Dir: spec.Dir, StateDir: spec.StateDir, ServerID: spec.ServerID, HeaderPrefix: spec.HeaderPrefix,
		Fence: append([]string(nil), spec.Fence...),
	}
	for _, r := range dead {
		req.Fence = append(req.Fence, r.LaunchID)
	}
	if err := m.makeReady(ctx, c, req, progress); err != nil {
		return nil, m.notReady(ctx, c, err)
	}
	c.serving = m.now()
	for _, r := range dead { // the store has them now
		if err := r.forget(spec.RunDir); err != nil {
			m.log.Warn().Err(err).Str("launch", r.LaunchID).Msg("cannot remove the record of a fenced launch")
		}
	}
	return c, nil
}

// prepare makes the run directory ready for a launch and returns the records of
// dead launches, which are to be fenced.
func (m *Manager) prepare(spec Spec) ([]record, error) {
	if err := os.MkdirAll(spec.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	if err := os.Chmod(spec.RunDir, 0o700); err != nil { //nolint:gosec // a directory needs its x bit
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
	for _, r := range records {
		m.endLeftover(r)
	}
	return records, sweepSockets(spec.RunDir)
}

// sweepSockets removes the control sockets of children that were killed. It
// runs while no child lives.
func sweepSockets(runDir string) error {
	stale, err := filepath.Glob(filepath.Join(runDir, "plugin*"))
	if err != nil {
		return fmt.Errorf("look for stale control sockets: %w", err)
	}
	for _, path := range stale {
		if err := ignoreMissing(os.Remove(path)); err != nil {
			return fmt.Errorf("remove a stale control socket: %w", err)
		}
	}
	return nil
}

// spawn starts the process and connects to it. The record is written as soon as
// there is a process, and again with the socket's path.
func (m *Manager) spawn(ctx context.Context, spec Spec) (*child, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, spec.ReadyTimeout, errNotReady)
	defer cancel()
	c, err := m.newChild(spec)
	if err != nil {
		return nil, m.notSpawned(spec, err)
	}
	logs, err := openLogs(spec, m.takeFresh())
	if err != nil {
		return nil, m.notSpawned(spec, err)
	}
	defer logs.close()
	c.rec.ErrFrom = logs.errFrom
	socket, err := spec.Socket.File()
	if err != nil {
		return nil, m.notSpawned(spec, err)
	}
	defer socket.Close()

	var l *launched
	c.conn, err = control.Launch(ctx, spec.RunDir, func(handshake []string) (runner.Runner, error) {
		l = &launched{cmd: c.command(handshake), onStart: c.begin}
		l.cmd.Stderr = logs.err
		l.cmd.ExtraFiles = []*os.File{socket, logs.out, logs.err} // descriptors 3, 4 and 5
		return l, nil
	})
	if l != nil {
		c.stdout = l.stdout
	}
	switch cause := context.Cause(ctx); {
	case err != nil && c.proc == nil && cause != nil:
		return nil, cause
	case err != nil && c.proc == nil:
		return nil, m.notSpawned(spec, err)
	case err != nil:
		return nil, m.notReady(ctx, c, errors.Join(control.ErrNoAnswer, err))
	}
	c.rec.Socket = c.conn.Socket()
	if err := c.rec.save(spec.RunDir); err != nil {
		return nil, m.notReady(ctx, c, err)
	}
	return c, nil
}

// newChild gives a launch its identity.
func (m *Manager) newChild(spec Spec) (*child, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return &child{
		spec: spec,
		rec: record{
			FormationID: spec.ID, LaunchID: randomHex(8), Token: randomHex(32),
			BootID: boot, LaunchedAt: m.now(),
		},
		oomBefore: oomKills(),
	}, nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// begin takes the started process over.
func (c *child) begin(p *proc) error {
	c.proc = p
	c.rec.PID, c.rec.StartTime = p.pid, p.start
	return c.rec.save(c.spec.RunDir)
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
	)
	if s.OrphanTimeout > 0 {
		cmd.Env = append(cmd.Env, control.EnvOrphanTimeout+"="+s.OrphanTimeout.String())
	}
	return cmd
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

package process

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// envInitToken marks the processes of an init command, as a launch token marks
// those of a child; it opens nothing.
const envInitToken = "SVC_INIT_TOKEN"

// mark is the variable that proves a process of the record to be ours.
func (r record) mark() string {
	if r.Init {
		return envInitToken
	}
	return control.EnvLaunchToken
}

// errInitTime is the cause of a context that ended at Spec.InitTimeout.
var errInitTime = errors.New("the time for init has passed")

// runInit runs the spec's init command, if it has one, to its end. Its output is
// appended to the logs. The error is a *launchError unless ctx ended; either way
// nothing of the command is left.
func (m *Manager) runInit(ctx context.Context, spec Spec, progress Progress) error {
	if spec.Init == "" {
		return nil
	}
	progress(stageSpawning, "running the formation's init command", 0, 0)
	c, dead, err := m.admit(spec)
	if err != nil {
		return m.notSpawned(spec, err)
	}
	_ = dead // the launch that follows fences them
	c.rec.Init = true
	logs, err := openLogs(spec, m.takeFresh())
	if err != nil {
		return m.stillborn(c, err)
	}
	defer logs.close()
	c.rec.ErrFrom = logs.errFrom
	cmd := c.initCommand(logs)
	if err := c.limit(cmd); err != nil {
		return m.stillborn(c, err)
	}
	p, err := startProc(cmd, c.start)
	if err != nil {
		return m.stillborn(c, err)
	}
	err = c.begin(p)
	p.watch()
	if err != nil {
		m.killFor(c, err.Error())
		m.ended(c, "")
		return m.notSpawned(spec, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spec.InitTimeout, errInitTime)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		m.killFor(c, context.Cause(ctx).Error())
	}
	exit := m.ended(c, "")
	m.forget(c.rec, spec.RunDir)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errInitTime) {
		return cause
	}
	return m.initResult(spec, exit, logs)
}

// initCommand is the shell that runs init. It is told who it is, but has no
// launch token: it is no child and may not be taken for one.
func (c *child) initCommand(logs *logFiles) *exec.Cmd {
	s := c.spec
	cmd := exec.Command("/bin/sh", "-c", s.Init) //nolint:noctx // its end is runInit's business; running it is the point
	cmd.Dir = s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(append([]string(nil), s.Env...), control.EnvFormationID+"="+s.ID, envInitToken+"="+c.rec.Token)
	cmd.Stdout, cmd.Stderr = logs.out, logs.err
	return cmd
}

// initResult is nil when init ended with 0.
func (m *Manager) initResult(spec Spec, exit Exit, logs *logFiles) error {
	if exit.Code == 0 {
		return nil
	}
	how := exit.Reason
	switch {
	case exit.Reason == errInitTime.Error():
		how = "not finished within " + spec.InitTimeout.String()
	case exit.Signal == "" && !exit.explained():
		how = fmt.Sprintf("exit %d", exit.Code)
	}
	if len(exit.Stderr) == 0 {
		exit.Stderr = tail(spec.OutLog, logs.outFrom)
	}
	message := withTail("init failed ("+how+")", strings.Join(exit.Stderr, "\n"))
	m.log.Error().Str("exit", exit.Reason).Strs("stderr", exit.Stderr).Msg("init failed")
	exit.Reason = "init failed (" + how + ")"
	return &launchError{fault: fault.New(fault.Failed, "SpawnError", message), exit: exit}
}

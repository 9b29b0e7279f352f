package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// leftoverTimeout is how long a killed leftover may take to be gone.
const leftoverTimeout = 10 * time.Second

// find takes the child of spec.Dir that an earlier supervisor left, or returns
// nil. Other serving children are set aside; every other process of the run
// directory's records is ended if it is proven ours.
func (m *Manager) find(ctx context.Context, spec Spec) (*child, error) {
	serving, err := m.survivors(ctx, spec)
	if err != nil {
		return nil, err
	}
	for _, c := range serving { // before one of them ends
		if spec.Socket.Bound() {
			break
		}
		if err := c.takeSocket(ctx, m.cfg.HealthTimeout); err != nil {
			m.log.Warn().Err(err).Str("launch", c.rec.LaunchID).
				Msg("the listening socket stays with the child: without another one, a later restart binds the port anew")
		}
	}
	var found *child
	for _, c := range serving {
		if found == nil && c.rec.runsIn(spec.Dir) && m.serveOn(ctx, c) {
			found = c
		}
	}
	for _, c := range serving {
		if c == found {
			continue
		}
		m.pause(ctx, c) // not two at once
		m.log.Info().Str("launch", c.rec.LaunchID).Int("pid", c.rec.PID).Str("dir", c.rec.Dir).
			Msg("a child that is not the current one finishes its work and ends")
		m.setAside(ctx, c, true)
	}
	if found != nil {
		if err := found.guard(); err != nil {
			m.log.Warn().Err(err).Str("launch", found.rec.LaunchID).Msg("a child that was taken over is not watched")
		}
	}
	return found, nil
}

// runsIn tells whether the record's child is the version of a directory. One
// without a directory is older than updates are, and the only one.
func (r record) runsIn(dir string) bool { return r.Dir == dir || r.Dir == "" }

// serveOn lets a child accept that may have been paused in the middle of an
// update. One that was draining can't any more.
func (m *Manager) serveOn(ctx context.Context, c *child) bool {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.HealthTimeout)
	defer cancel()
	err := c.conn.Serve(ctx)
	if err != nil {
		m.log.Warn().Err(err).Str("launch", c.rec.LaunchID).Msg("a child does not go on serving")
	}
	return err == nil
}

// survivors attaches to the serving children of the run directory's records, the
// latest first, and ends the others.
func (m *Manager) survivors(ctx context.Context, spec Spec) ([]*child, error) {
	records, err := readRecords(spec.RunDir)
	if err != nil {
		return nil, err
	}
	var serving []*child
	for _, r := range records {
		if m.held(r.LaunchID) {
			continue
		}
		if r.FormationID == spec.ID && !r.Init {
			c, err := m.attach(ctx, spec, r)
			if err == nil {
				serving = append(serving, c)
				continue
			}
			if cause := context.Cause(ctx); cause != nil { // it was not the child that failed
				for _, c := range serving {
					m.leave(c)
				}
				return nil, cause
			}
			m.log.Warn().Err(err).Str("launch", r.LaunchID).Int("pid", r.PID).Msg("a recorded child is not taken over")
		}
		m.endLeftover(r)
	}
	return serving, nil
}

// errGone says that a record's process is not there any more.
var errGone = errors.New("the process has ended")

// hold returns the process of a record when its number, start time and boot are
// those of the record.
func (r record) hold() (*proc, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if boot != r.BootID {
		return nil, errGone
	}
	p, err := openProc(r.PID)
	if err != nil {
		return nil, errors.Join(errGone, err)
	}
	switch {
	case p.start != r.StartTime:
	case p.over():
		p.reap() // a supervisor that re-executed itself is still the parent
	default:
		return p, nil
	}
	p.close()
	return nil, errGone
}

// attach connects to the child of a record and proves it by Hello. Only a
// serving child is taken over: another one is half started.
func (m *Manager) attach(ctx context.Context, spec Spec, r record) (*child, error) {
	p, err := r.hold()
	if err != nil {
		return nil, err
	}
	if r.Socket == "" || !sameFile(filepath.Dir(r.Socket), spec.RunDir) {
		p.close()
		return nil, errors.New("it had not made its control socket in the run directory")
	}
	p.watch()
	c := &child{spec: spec, rec: r, proc: p, adopted: true, oomBefore: oomKills()}
	m.hold(r.LaunchID)
	if err := c.reattach(ctx, m.cfg.HealthTimeout); err != nil {
		m.leave(c)
		return nil, err
	}
	return c, nil
}

func sameFile(one, other string) bool {
	a, err := os.Stat(one)
	if err != nil {
		return false
	}
	b, err := os.Stat(other)
	return err == nil && os.SameFile(a, b)
}

// reattach connects and asks; a child that hangs has limit to answer.
func (c *child) reattach(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	child := control.Child{RunDir: c.spec.RunDir, Socket: c.rec.Socket, PID: c.rec.PID}
	conn, err := control.Reattach(ctx, child, func() (runner.AttachedRunner, error) {
		return &attached{proc: c.proc}, nil
	})
	if err != nil {
		return err
	}
	c.conn = conn
	h, err := conn.Hello(ctx, control.HelloRequest{FormationID: c.rec.FormationID, LaunchToken: c.rec.Token})
	if err != nil {
		return err
	}
	if err := c.proves(h); err != nil {
		return err
	}
	c.proc.prove()
	if !h.Serving {
		return fault.New(fault.Failed, "", "it had not begun to serve")
	}
	c.serving = h.StartedAt
	return nil
}

// takeSocket takes the formation's listening socket back from the child: the
// child hands it over, or, when it does not answer, the kernel copies it, which
// it allows to root, and to the same user unless the system forbids tracing.
func (c *child) takeSocket(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fd, err := control.TakeListener(ctx, control.Handover{
		RunDir: c.spec.RunDir, LaunchID: c.rec.LaunchID, Token: c.rec.Token, PID: c.rec.PID,
	})
	if err == nil {
		err = c.keepSocket(fd)
	}
	if err == nil {
		return nil
	}
	fd, ferr := c.proc.fd(control.FDListener)
	if ferr == nil {
		ferr = c.keepSocket(fd)
	}
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	return nil
}

// keepSocket gives a descriptor to the formation's socket, which checks it.
func (c *child) keepSocket(fd int) error {
	if err := c.spec.Socket.Take(fd); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return nil
}

// endLeftover ends the process of a record that nobody will supervise. Its
// number and start time show that it is the recorded one, the token in its
// environment that we launched it; without that it is left alone, and its launch
// id is fenced as every record's is.
func (m *Manager) endLeftover(r record) {
	p, err := r.hold()
	if err != nil {
		return
	}
	if !p.hasEnv(r.mark(), r.Token) {
		p.close()
		m.log.Error().Int("pid", r.PID).Str("launch", r.LaunchID).
			Msg("a recorded process lives but is not proven ours: leaving it alone")
		return
	}
	p.prove()
	m.log.Warn().Int("pid", r.PID).Str("launch", r.LaunchID).Msg("killing a leftover child")
	p.watch()
	err = p.killGroup()
	if err == nil && p.awaitDeath(leftoverTimeout) {
		return
	}
	p.detach()
	m.log.Error().Err(err).Int("pid", r.PID).Msg("a leftover child does not end")
}

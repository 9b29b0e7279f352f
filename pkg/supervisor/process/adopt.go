package process

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// leftoverTimeout is how long a killed leftover may take to be gone.
const leftoverTimeout = 10 * time.Second

// find takes the child that an earlier supervisor left, or returns nil. Every
// other process of the run directory's records is ended if it is proven ours.
func (m *Manager) find(ctx context.Context, spec Spec) (*child, error) {
	records, err := readRecords(spec.RunDir)
	if err != nil {
		return nil, err
	}
	var found *child
	for _, r := range records {
		if found == nil && r.FormationID == spec.ID {
			c, err := m.attach(ctx, spec, r)
			if err == nil {
				found = c
				continue
			}
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause // it was not the child that failed
			}
			m.log.Warn().Err(err).Str("launch", r.LaunchID).Int("pid", r.PID).Msg("a recorded child is not taken over")
		}
		m.endLeftover(r)
	}
	return found, nil
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
	if r.Socket == "" {
		p.close()
		return nil, errors.New("it had not made its control socket")
	}
	p.watch()
	c := &child{spec: spec, rec: r, proc: p, adopted: true, oomBefore: oomKills()}
	if err := c.reattach(ctx, m.cfg.HealthTimeout); err != nil {
		c.detach()
		return nil, err
	}
	if err := c.takeSocket(); err != nil {
		m.log.Warn().Err(err).Msg("the listening socket stays with the child: a later restart binds the port anew")
	}
	return c, nil
}

// reattach connects and asks; a child that hangs has limit to answer.
func (c *child) reattach(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := control.Reattach(ctx, c.spec.RunDir, c.rec.Socket, func() (runner.AttachedRunner, error) {
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
	if !h.Serving {
		return fault.New(fault.Failed, "", "it had not begun to serve")
	}
	c.serving = h.StartedAt
	return nil
}

// takeSocket takes the formation's listening socket back from the child. While
// the child lives the kernel allows it to root, and to the same user unless the
// system forbids tracing.
func (c *child) takeSocket() error {
	if c.spec.Socket.Bound() {
		return nil
	}
	fd, err := c.proc.fd(control.FDListener)
	if err != nil {
		return err
	}
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
	if !p.hasToken(r.Token) {
		p.close()
		m.log.Error().Int("pid", r.PID).Str("launch", r.LaunchID).
			Msg("a recorded process lives but is not proven ours: leaving it alone")
		return
	}
	m.log.Warn().Int("pid", r.PID).Str("launch", r.LaunchID).Msg("killing a leftover child")
	p.watch()
	err = p.killGroup()
	if err == nil && p.awaitDeath(leftoverTimeout) {
		return
	}
	p.detach()
	m.log.Error().Err(err).Int("pid", r.PID).Msg("a leftover child does not end")
}

package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// errNotReady is the cause of a context that ended at the readiness deadline.
var errNotReady = errors.New("the readiness deadline has passed")

const (
	// readyPoll is the time between two questions for readiness after Load.
	readyPoll = 50 * time.Millisecond
	// deathWait is how long a child whose control connection broke may take to
	// be seen dead before it is killed.
	deathWait = 2 * time.Second
)

// makeReady takes a connected child from Hello to Health. The deadline is
// spec.ReadyTimeout after the last news.
func (m *Manager) makeReady(ctx context.Context, c *child, req control.LoadRequest, progress Progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := c.spec.ReadyTimeout
	deadline := time.AfterFunc(timeout, func() { cancel(errNotReady) })
	defer deadline.Stop()

	if err := c.hello(ctx); err != nil {
		return causeOr(ctx, err)
	}
	news := make(chan string)
	done := make(chan error, 1)
	go func() { done <- c.load(ctx, req, news) }()

	// The attempts are the seconds since the last news.
	attempt, attempts := 0, int((timeout+time.Second-1)/time.Second)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	message := "loading the formation"
	progress("health_check", message, attempt, attempts)
	for {
		select {
		case err := <-done:
			return causeOr(ctx, err)
		case message = <-news:
			deadline.Reset(timeout)
			attempt = 0
		case <-tick.C:
			attempt++
		}
		progress("health_check", message, min(attempt, attempts), attempts)
	}
}

// causeOr prefers the reason why ctx ended to the error that its end made.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// hello proves that the process at the other end is this launch.
func (c *child) hello(ctx context.Context) error {
	h, err := c.conn.Hello(ctx, control.HelloRequest{FormationID: c.rec.FormationID, LaunchToken: c.rec.Token})
	if err != nil {
		return err
	}
	return c.proves(h)
}

func (c *child) proves(h control.Hello) error {
	if h.ControlVersion != control.Version {
		return fault.Errorf(fault.Failed, "InvalidRuntime",
			"the formation's process speaks control version %d, this supervisor %d: use binaries of one release",
			h.ControlVersion, control.Version)
	}
	if h.LaunchID != c.rec.LaunchID || h.PID != c.rec.PID {
		return fault.Errorf(fault.Failed, "", "launch %s (process %d) answered in the place of %s (process %d)",
			h.LaunchID, h.PID, c.rec.LaunchID, c.rec.PID)
	}
	return nil
}

// load loads and waits until the child says it is ready.
func (c *child) load(ctx context.Context, req control.LoadRequest, news chan<- string) error {
	loaded, err := c.conn.Load(ctx, req, func(message string) {
		select {
		case news <- message:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return err
	}
	c.loaded = loaded
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		h, err := c.conn.Health(ctx)
		if err != nil {
			return err
		}
		if h.Ready {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notReady ends a child that did not come to serve and says why. When ctx was
// ended by the owner it returns the cause, else a *launchError.
func (m *Manager) notReady(ctx context.Context, c *child, err error) error {
	died := false
	if errors.Is(err, control.ErrNoAnswer) && context.Cause(ctx) == nil {
		died = c.proc.awaitDeath(deathWait)
	}
	if kerr := c.kill(); kerr != nil {
		m.log.Warn().Err(kerr).Int("pid", c.proc.pid).Msg("cannot kill a child that did not start")
	}
	asked := ""
	if !died {
		asked = "did not become ready"
	}
	exit := m.ended(c, asked)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errNotReady) {
		return cause
	}
	f := c.startFault(err, exit, died)
	m.log.Error().Err(errors.Join(err, errors.Unwrap(f))).Str("launch", c.rec.LaunchID).Str("exit", exit.Reason).
		Msg("the child did not become ready")
	if !died {
		exit.Reason = "did not become ready: " + f.Error()
	}
	return &launchError{fault: f, exit: exit}
}

// startFault is what the caller of a failed start is told. A fault that the
// child itself reported comes through as it is.
func (c *child) startFault(err error, exit Exit, died bool) error {
	const name = "HealthCheckFailed"
	kind := c.spec.NotReady
	said := strings.Join(exit.Stderr, "\n")
	var own *fault.Error
	switch {
	case died:
		switch {
		case said == "":
			said = exit.Reason + ", without a word on its error log"
		case exit.explained():
			said = exit.Reason + "\n" + said
		}
		return fault.Wrap(kind, name, "Formation crashed during startup: "+said, err)
	case errors.Is(err, errNotReady):
		return fault.Wrap(kind, name, withTail(
			fmt.Sprintf("Formation did not become ready within %s", c.spec.ReadyTimeout), said), err)
	case errors.Is(err, control.ErrNoAnswer):
		return fault.Wrap(kind, name, withTail("Formation stopped answering during startup", said), err)
	case errors.As(err, &own) && own.Kind != fault.Internal:
		return own
	default:
		// The words of an internal fault say nothing; its cause is for the
		// operator, who is the one to read this.
		if cause := errors.Unwrap(fault.From(err)); cause != nil {
			said = strings.TrimSpace(cause.Error() + "\n" + said)
		}
		return fault.Wrap(kind, name, withTail("Formation could not be loaded", said), err)
	}
}

func withTail(message, said string) string {
	if said == "" {
		return message
	}
	return message + ": " + said
}

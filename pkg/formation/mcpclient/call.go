package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os/exec"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// request is something asked of a server: a call of a tool, or a resource.
type request struct {
	in   chat.Invocation
	tool string // for people
	// repeatable tells that asking twice does no harm.
	repeatable bool
	// ask asks, under a token for reports of progress.
	ask func(ctx context.Context, cs *mcpsdk.ClientSession, token string) error
}

// do asks a server, again when nothing had begun. What was begun is asked again
// once, if it may be, and not of a process: one that died in the middle of a call
// may have died of it. Errors are *Error, or the server's own answer as a
// *jsonrpc.Error.
func (s *server) do(ctx context.Context, r request) error {
	if err := s.admit(r.tool); err != nil {
		return err
	}
	for try := 0; ; try++ {
		err := s.once(ctx, r)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.final || ctx.Err() != nil || try >= s.file.RetryAttempts {
			return err
		}
		if e.begun && (!r.repeatable || try > 0 || s.file.Type == manifest.MCPCommand) || !pause(ctx, try) {
			return err
		}
		if s.admit(r.tool) != nil {
			return err // no room for another try: what went wrong says more
		}
	}
}

func (s *server) once(ctx context.Context, r request) error {
	l, x, err := s.session(ctx, r.in.User)
	if err != nil {
		return err
	}
	defer l.release(x)
	a := &attempt{}
	c := &calling{in: r.in, tool: r.tool}
	callCtx, cancel := s.limit(withAttempt(ctx, a), c)
	defer cancel()
	token := x.enter(c)
	err = r.ask(callCtx, x.cs, token)
	x.leave(token)
	if err == nil {
		return nil
	}
	return s.failed(ctx, callCtx, failure{link: l, session: x, attempt: a, tool: r.tool, err: err})
}

// errTimeout ends a call that takes too long.
var errTimeout = errors.New("it took too long")

// limit bounds a call: by the time of its server, begun anew with every report
// of progress, and by the longest time of all.
func (s *server) limit(ctx context.Context, c *calling) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	soft := min(s.file.Timeout, s.c.cfg.Limits.Call)
	if soft <= 0 {
		soft = s.c.cfg.Limits.Call
	}
	end := func() { cancel(errTimeout) }
	timer := time.AfterFunc(soft, end)
	last := time.AfterFunc(s.c.cfg.Limits.Call, end)
	c.alive = func() { timer.Reset(soft) }
	return ctx, func() {
		timer.Stop()
		last.Stop()
		cancel(nil)
	}
}

// failure is a try that got no result.
type failure struct {
	link    *link
	session *session
	attempt *attempt
	tool    string
	err     error
}

// failed says what a failure means.
func (s *server) failed(ctx, callCtx context.Context, f failure) error {
	id, begun := s.file.ID, f.attempt.begun.Load()
	switch {
	case ctx.Err() != nil:
		return &Error{Server: id, begun: begun, final: true, cause: context.Cause(ctx), text: fmt.Sprintf("The call of %s was cancelled.", f.tool)}
	case errors.Is(context.Cause(callCtx), errTimeout):
		s.c.begin(func() { s.suspect(f.link, f.session) })
		return &Error{
			Server: id, begun: begun, final: true, cause: errTimeout,
			text: fmt.Sprintf("The tool server %q did not answer the call of %s in time; the call was cancelled, and whether it took effect is unknown.", id, f.tool),
		}
	}
	status := int(f.attempt.status.Load())
	if f.attempt.lost.Load() { // the server has forgotten the session, for example because it was started anew
		f.link.retire(f.session)
		return notBegun(id, f.err, "The tool server %q does not know the session any more: %d %s.", id, status, http.StatusText(status))
	}
	if e, ok := answered(f.err); ok {
		return e
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		f.link.retire(f.session)
		return notBegun(id, f.err, "The tool server %q refuses the credentials: %d %s.", id, status, http.StatusText(status)).permanent()
	case !begun && status != 0:
		return notBegun(id, f.err, "The tool server %q refuses the call: %d %s.", id, status, http.StatusText(status))
	case status >= http.StatusInternalServerError: // the connection stands
		return &Error{
			Server: id, begun: true, cause: f.err,
			text: fmt.Sprintf("The tool server %q answered the call of %s with %d %s. Whether the call took effect is unknown.",
				id, f.tool, status, http.StatusText(status)),
		}
	case garbled(f.err):
		return &Error{
			Server: id, begun: true, final: true, cause: f.err,
			text: fmt.Sprintf("The tool server %q answered the call of %s with something that can't be understood: %v.", id, f.tool, f.err),
		}
	}
	return s.broken(f, begun)
}

// garbled tells that an answer came, but not one of the protocol.
func garbled(err error) bool {
	if errors.Is(err, mcpsdk.ErrConnectionClosed) || errors.Is(err, io.EOF) {
		return false
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return true
	}
	_, ok := errors.AsType[*json.SyntaxError](err)
	return ok
}

// broken is a connection that ended in the middle of a call.
func (s *server) broken(f failure, begun bool) error {
	f.link.drop(f.session)
	why := f.err.Error()
	if cause := endOf(f.session); cause != "" {
		why = cause
	}
	if !begun {
		return notBegun(s.file.ID, f.err, "The tool server %q was gone before the call of %s: %s.", s.file.ID, f.tool, why)
	}
	return &Error{
		Server: s.file.ID, begun: true, cause: f.err,
		text: fmt.Sprintf("The tool server %q ended during the call of %s: %s. Whether the call took effect is unknown.", s.file.ID, f.tool, why),
	}
}

// endOf returns how a session's process ended, or "".
func endOf(x *session) string {
	p, ok := x.conn.(*pipe)
	if !ok {
		return "the connection was lost"
	}
	if how := p.p.itself(); how != "" {
		return "its process " + how
	}
	return "the connection was lost"
}

// suspect asks a server that did not answer in time whether it is there, and
// gives the session up when it is not.
func (s *server) suspect(l *link, x *session) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(s.c.life, patience)
	defer cancel()
	if err := x.cs.Ping(ctx, nil); err != nil {
		if _, ok := answered(err); !ok {
			l.drop(x)
		}
	}
}

// worthAnother tells that another try to connect may go better.
func worthAnother(err error) bool {
	if errors.Is(err, errClosed) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status == 0 || e.status >= http.StatusInternalServerError || e.status == http.StatusTooManyRequests
	}
	return !errors.Is(err, context.DeadlineExceeded)
}

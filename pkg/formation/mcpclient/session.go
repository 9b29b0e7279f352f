package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/version"
)

// session is one connection to a server.
type session struct {
	s    *server
	cs   *mcpsdk.ClientSession
	conn mcpsdk.Connection // whose Close ends everything at once
	base *http.Transport   // nil for a process
	pid  int               // of the process; 0 over HTTP
	user string            // in whose name it was made, if it is one user's

	link  *link
	ready atomic.Bool // cs and link are set
	brief atomic.Bool // it was made to ask for the list only
	lost  atomic.Bool // no new calls
	// retired tells that it ends with the last of its calls.
	retired atomic.Bool
	done    chan struct{} // closed when it is over

	mu    sync.Mutex // guards calls and next
	calls map[string]*calling
	next  uint64
}

// calling is one call that a session waits for.
type calling struct {
	in   chat.Invocation
	tool string
	// alive puts the end of the call off.
	alive func()
}

func (c *calling) progress(p chat.ToolProgress) {
	if c.in.Progress != nil {
		c.in.Progress(p)
	}
}

// The versions of the protocol to begin with. Servers exist that end themselves
// when the first message is not the one that this version begins with; the newest
// is tried where a server refuses it.
const (
	protocolUsual  = "2025-11-25"
	protocolNewest = "2026-07-28"
)

// connect makes a session. ctx bounds the making only.
func (l *link) connect(ctx context.Context, t *target, user string) (*session, error) {
	s := l.s
	if s.file.Type == manifest.MCPCommand {
		sess, err := l.connectOnce(ctx, t, user, "", protocolUsual)
		if refused(err) {
			return l.connectOnce(ctx, t, user, "", protocolNewest)
		}
		return sess, err
	}
	ways := []string{wayStreamable, waySSE}
	if s.file.Protocol == waySSE || s.file.Method == http.MethodGet {
		ways = []string{waySSE, wayStreamable}
	}
	if way, ok := s.way.Load().(string); ok {
		ways = []string{way} // known from an earlier session
	}
	var errs []error
	for _, way := range ways {
		sess, err := l.connectOnce(ctx, t, user, way, protocolUsual)
		if way == wayStreamable && refused(err) {
			sess, err = l.connectOnce(ctx, t, user, way, protocolNewest)
		}
		if err == nil {
			s.way.Store(way)
			return sess, nil
		}
		errs = append(errs, err)
		if e, ok := errors.AsType[*statusError](err); way == wayStreamable && (!ok || !e.otherWay()) {
			break
		}
	}
	return nil, errs[0]
}

// refused tells that a server understood the question and does not want it.
func refused(err error) bool {
	e, ok := answered(err)
	return ok && (e.Code == jsonrpc.CodeMethodNotFound || e.Code == jsonrpc.CodeInvalidParams || e.Code == mcpsdk.CodeUnsupportedProtocolVersion)
}

// statusError is a server that could not be connected to over HTTP.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	switch {
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden:
		return fmt.Sprintf("it refuses the credentials: %d %s", e.status, http.StatusText(e.status))
	case e.status >= http.StatusBadRequest:
		return fmt.Sprintf("it answers %d %s", e.status, http.StatusText(e.status))
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// otherWay tells that the server may speak the older transport.
func (e *statusError) otherWay() bool {
	switch e.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusUnsupportedMediaType:
		return true
	}
	return false
}

// tap remembers the connection that a transport made.
type tap struct {
	mcpsdk.Transport
	conn mcpsdk.Connection
}

// Connect implements mcpsdk.Transport.
func (t *tap) Connect(ctx context.Context) (mcpsdk.Connection, error) {
	conn, err := t.Transport.Connect(ctx)
	t.conn = conn
	return conn, err
}

func (l *link) connectOnce(ctx context.Context, t *target, user, way, protocol string) (*session, error) {
	s := l.s
	sess := &session{s: s, done: make(chan struct{}), calls: make(map[string]*calling)}
	if s.perUser {
		sess.user = user
	}
	var far *remote
	a := &attempt{probing: true}
	line := &tap{}
	if s.file.Type == manifest.MCPCommand {
		p, err := startProcess(s.c.spawn, t, s.c.cfg.Limits.Grace, l.complaint)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", t.command, err)
		}
		sess.pid = p.cmd.Process.Pid
		line.Transport = newPipe(p, s.c.cfg.Limits.Message, s.garbage)
	} else {
		var err error
		if far, err = newRemote(t, s.c.cfg.Limits.Message); err != nil {
			return nil, err
		}
		sess.base = far.base
		line.Transport = far.transport(way, t.endpoint)
	}
	cs, err := s.sdk(sess).Connect(withAttempt(ctx, a), line, &mcpsdk.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil {
		if line.conn != nil {
			line.conn.Close()
		}
		if far != nil {
			far.base.CloseIdleConnections()
			err = &statusError{status: int(a.status.Load()), err: err}
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	sess.cs, sess.conn = cs, line.conn
	return sess, nil
}

// sdk makes the SDK's client for one session: its handlers know whose they are.
func (s *server) sdk(sess *session) *mcpsdk.Client {
	return mcpsdk.NewClient(&mcpsdk.Implementation{Name: "agent-formation", Version: version.Version}, &mcpsdk.ClientOptions{
		Capabilities:                &mcpsdk.ClientCapabilities{},
		ElicitationHandler:          sess.elicit,
		ProgressNotificationHandler: sess.onProgress,
		LoggingMessageHandler:       s.onLog, //nolint:staticcheck // servers of today log so
		ToolListChangedHandler: func(context.Context, *mcpsdk.ToolListChangedRequest) {
			if sess.ready.Load() { // before, the list is still to be asked for
				s.changed(sess)
			}
		},
	})
}

// closeTime bounds how long the end of a session over HTTP may take.
const closeTime = 10 * time.Second

// close ends the session; calls that are under way fail. It returns at once; the
// rest happens in the background.
func (x *session) close() {
	if x.lost.Swap(true) {
		return
	}
	do := func() {
		if x.pid != 0 || x.busy() {
			x.conn.Close()
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = x.cs.Close()
		}()
		timer := time.NewTimer(closeTime)
		defer timer.Stop()
		select {
		case <-over:
		case <-timer.C:
			x.conn.Close()
		}
		if x.base != nil {
			x.base.CloseIdleConnections()
		}
	}
	if !x.s.c.begin(do) {
		do()
	}
}

func (x *session) busy() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.calls) > 0
}

// endRetired ends a retired session that no call is on any more.
func (x *session) endRetired() {
	if x.retired.Load() && !x.busy() {
		x.close()
	}
}

// await closes done when the connection is over, for whatever reason.
func (x *session) await() {
	_ = x.cs.Wait()
	x.lost.Store(true)
	close(x.done)
	if x.base != nil {
		x.base.CloseIdleConnections()
	}
}

// enter notes a call and returns the token under which the server speaks of it.
func (x *session) enter(c *calling) (token string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next++
	token = strconv.FormatUint(x.next, 36)
	x.calls[token] = c
	return token
}

func (x *session) leave(token string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.calls, token)
}

// onProgress passes on how far a call is.
func (x *session) onProgress(_ context.Context, req *mcpsdk.ProgressNotificationClientRequest) {
	token := fmt.Sprint(req.Params.ProgressToken)
	x.mu.Lock()
	c := x.calls[token]
	x.mu.Unlock()
	if c == nil {
		return
	}
	c.alive()
	c.progress(chat.ToolProgress{Message: short(req.Params.Message), Done: req.Params.Progress, Total: req.Params.Total})
}

// maxWord bounds the texts that a server shows users while it works, in bytes.
const maxWord = 1000

func short(s string) string { return clip([]byte(s), maxWord) }

// asked returns the call that a question of the server belongs to: the protocol
// does not say. With calls of several users under way it may be anybody's, and
// is nobody's.
func (x *session) asked() *calling {
	x.mu.Lock()
	defer x.mu.Unlock()
	var found *calling
	for _, c := range x.calls {
		if found != nil && (found.in.User != c.in.User || found.in.Session != c.in.Session) {
			return nil
		}
		found = c
	}
	return found
}

package mcpclient

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentformation/service/pkg/manifest"
)

// What a server may say in the log: lines at once, and lines a second.
const (
	talkBurst = 200
	talkRate  = 20
)

// server is one file of a tool server.
type server struct {
	c     *Client
	file  *manifest.MCPServer
	agent string
	key   string // its id, and whose it is
	hash  string // of what decides what it offers

	templated bool // a connection needs placeholders resolved
	perUser   bool // the file refers to credentials of users
	userKey   bool // without them there is no connection
	fixed     atomic.Pointer[target]
	way       atomic.Value // string: how it is spoken to over HTTP, once known

	list      atomic.Pointer[list] // nil: nobody knows yet
	listing   sync.Mutex           // held by who asks for the list
	changing  atomic.Bool          // somebody will
	talk      *rate.Limiter
	allowance allowance

	mu      sync.Mutex // guards the fields that follow
	links   map[string]*link
	trouble string // why it could not be reached the last time
	tried   map[string]time.Time
}

func serverKey(agent, id string) string {
	if agent == "" {
		return id
	}
	return agent + "/" + id
}

func newServer(c *Client, in Server) *server {
	file := in.MCPServer
	s := &server{
		c: c, file: &file, agent: in.Agent, key: serverKey(in.Agent, file.ID),
		talk: rate.NewLimiter(talkRate, talkBurst), allowance: newAllowance(file.RateLimit), links: make(map[string]*link),
	}
	texts(&file, func(text string) {
		s.templated = s.templated || manifest.HasPlaceholder(text)
		s.userKey = s.userKey || namesUser(text)
	})
	s.perUser = s.userKey
	parameterTexts(&file, func(text string) { s.perUser = s.perUser || namesUser(text) })
	s.hash = configHash(&file)
	return s
}

// configHash is of what decides which tools a server has. It holds no values of
// placeholders.
func configHash(m *manifest.MCPServer) string {
	h := sha256.New()
	// Texts and maps of texts always encode.
	_ = json.NewEncoder(h).Encode([]any{
		m.Type, m.Command, m.Args, m.Env, m.Cwd, m.Endpoint, m.Protocol, m.Method, m.Headers, m.Auth.Type, m.Auth.Values,
	})
	return hex.EncodeToString(h.Sum(nil))
}

// link returns the place of the sessions that a target shares.
func (s *server) link(t *target) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[t.key]
	if l == nil {
		l = &link{s: s, key: t.key}
		s.links[t.key] = l
	}
	return l
}

// forget drops a place that nobody uses: users come and go.
func (s *server) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil && l.making == nil && s.links[l.key] == l {
		delete(s.links, l.key)
	}
}

// places returns all links of now.
func (s *server) places() []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*link, 0, len(s.links))
	for _, l := range s.links {
		out = append(out, l)
	}
	return out
}

// connected notes how an attempt to connect went.
func (l *link) connected(err error) {
	trouble := ""
	if err != nil {
		trouble = l.because(err)
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.trouble = trouble
}

// because is an error with the last words of a process, for people. They are
// those of the link's own process: another one may work for another user.
func (l *link) because(err error) string {
	text := err.Error()
	if said := l.lastWords.String(); said != "" && l.s.file.Type == manifest.MCPCommand {
		text += "; its last words: " + l.s.c.cfg.Redact(said)
	}
	return text
}

// session returns a session for a user. A connection that could not be made is
// tried again as often as the file says.
func (s *server) session(ctx context.Context, user string) (*link, *session, error) {
	t, err := s.target(ctx, user)
	if err != nil {
		return nil, nil, err
	}
	for try := 0; ; try++ {
		l := s.link(t)
		x, err := l.acquire(ctx, t, user)
		switch {
		case err == nil:
			return l, x, nil
		case ctx.Err() != nil:
			return nil, nil, notBegun(s.file.ID, context.Cause(ctx), "The call ended while the tool server %q was being connected to.", s.file.ID).permanent()
		case try >= s.file.RetryAttempts || !worthAnother(err) || !pause(ctx, try):
			return nil, nil, notBegun(s.file.ID, err, "The tool server %q can't be reached: %s.", s.file.ID, strings.TrimSuffix(l.because(err), ".")).permanent()
		}
	}
}

// pause waits before another try, longer each time; false when ctx ends.
func pause(ctx context.Context, try int) bool {
	const first, longest = 200 * time.Millisecond, 5 * time.Second
	timer := time.NewTimer(min(first<<min(try, 8), longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// words are what a process wrote to its standard error: its last lines, and the
// first that names an error, since many programs write a dump after it.
type words struct {
	mu    sync.Mutex // guards the fields that follow
	cause string
	lines []string
}

// What is kept of them.
const (
	lastLines  = 3
	lastLength = 200 // bytes of a line
)

func (w *words) add(line []byte) {
	text := strings.TrimSpace(clip(line, lastLength))
	if text == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == "" && namesError(text) {
		w.cause = text
	}
	if w.lines = append(w.lines, text); len(w.lines) > lastLines {
		w.lines = w.lines[1:]
	}
}

func (w *words) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cause, w.lines = "", nil
}

// String implements fmt.Stringer. The cause comes first.
func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]string, 0, lastLines+1)
	if w.cause != "" {
		all = append(all, w.cause)
	}
	for _, line := range w.lines {
		if line != w.cause {
			all = append(all, line)
		}
	}
	return strings.Join(all, " | ")
}

// namesError tells a line that says what went wrong, as "Error: EACCES …",
// "error: …" or "TypeError [ERR_X]: …". A line of code that throws is none.
func namesError(line string) bool {
	line = strings.ToLower(line)
	return strings.Contains(line, "error:") || strings.Contains(line, "error [")
}

// watch asks a server over HTTP whether it is well, until ctx ends.
func (s *server) watch(ctx context.Context) error {
	ticker := time.NewTicker(s.file.HealthCheck.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.checkHealth(ctx)
		}
	}
}

// checkHealth asks an address if the file names one, else the session that is
// open. A session to a server that is not well is given up.
func (s *server) checkHealth(life context.Context) {
	ctx, cancel := context.WithTimeout(life, s.file.HealthCheck.Timeout)
	defer cancel()
	t, err := s.target(ctx, "")
	if err != nil {
		return // calls say so
	}
	l := s.link(t)
	x := l.live()
	switch {
	case t.health != "":
		var far *remote
		if far, err = newRemote(t, s.c.cfg.Limits.Message); err == nil {
			err = far.probe(ctx, t.health)
			far.base.CloseIdleConnections()
		}
	case x != nil:
		err = x.cs.Ping(ctx, nil)
	default:
		s.forget(l)
		return
	}
	if err != nil && life.Err() != nil {
		return
	}
	if err != nil {
		l.connected(fmt.Errorf("its health check fails: %w", err))
		if x != nil && !x.busy() {
			l.drop(x)
		}
		return
	}
	l.connected(nil)
}

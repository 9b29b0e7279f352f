// Package mcpclient holds the formation's sessions with tool servers: processes
// that it starts and speaks to over pipes, and servers over HTTP. It is the one
// room, beside mcpserver, that speaks the Model Context Protocol; what it gives
// to agents are plain tools.
//
// It promises that nothing is started or connected to before it is needed; that
// no placeholder leaves unresolved; that two users never share a connection to a
// server whose files name credentials of users; that a call whose outcome is
// unknown is repeated only when the tool says that it may be; and that no
// process of a tool server, nor what it started, outlives Close.
//
//	Client ── server (one per file) ── link (one per set of credentials) ── session
//
// Only the assembly imports it.
package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// Server is a tool server of the formation, or of one agent alone.
type Server struct {
	manifest.MCPServer
	// Agent is whose server it is; "" for one of the formation.
	Agent string
}

// Limits bound calls and connections; the zero value of each is its default.
type Limits struct {
	// Call is the longest that a call may take when it reports progress, 300 s.
	// One that reports none has the time of its server.
	Call time.Duration
	// Connect is the longest that a connection may take, 30 s.
	Connect time.Duration
	// Grace is how long a process may take to end once its input is closed, and
	// again once it was asked to end, 1 s each.
	Grace time.Duration
	// Refresh is how long after its start Run asks for the lists that are of an
	// earlier life, and at first those again that could not be asked, 5 s.
	Refresh time.Duration
	// Message is the largest message taken from a server in bytes, 64 MiB.
	Message int
}

// Elicitation is what a server wants to know of the user in the middle of a call.
type Elicitation struct {
	Server, Tool, Message string
	// Schema says what an answer looks like, as JSON Schema.
	Schema json.RawMessage
	// User, Session, Request and Agent say whose call it is.
	User, Session, Request, Agent string
}

// Reply answers an Elicitation.
type Reply struct {
	Accept  bool
	Content map[string]any
}

// Config is what a Client is made of.
type Config struct {
	Servers []Server
	// Dir is the directory of the formation's version, in which processes start.
	Dir string
	// Resolve replaces the placeholders of a text, also those of the user's
	// credentials; its error is shown. nil leaves a text as it is, so that every
	// placeholder is an error.
	Resolve func(ctx context.Context, text, user string) (string, error)
	// Redact takes secret values out of what a process said before it failed; nil
	// takes none.
	Redact func(string) string
	// Elicit answers what servers ask of users; nil declines.
	Elicit func(ctx context.Context, e Elicitation) (Reply, error)
	// Lists keeps what servers offer; nil keeps it in memory only.
	Lists ToolStore
	// Environ are the "NAME=value" that every process gets: PATH, HOME and the
	// like. Nothing else of this process' environment is passed on.
	Environ []string
	// Launch marks the processes, so that those of a dead launch are found: see
	// Sweep.
	Launch string
	Limits Limits
	// Hub is told of filters that miss their tools; nil: only the log is.
	Hub *telemetry.Hub
	// NewID makes an id that begins with prefix.
	NewID func(prefix string) string
	Log   zerolog.Logger
}

// Client is the formation's side of all its tool servers. It is safe for
// concurrent use.
type Client struct {
	cfg      Config
	life     context.Context //nolint:containedctx // of connections, which no call owns
	stop     context.CancelFunc
	servers  []*server
	byKey    map[string]*server
	spawn    *spawner
	editions editions

	mu         sync.Mutex // guards closed, and that nothing is added to background afterwards
	closed     bool
	background sync.WaitGroup
}

// The limits that hold where Config names none.
const (
	defaultCall    = 300 * time.Second
	defaultConnect = 30 * time.Second
	defaultGrace   = time.Second
	defaultMessage = 64 << 20
	defaultRefresh = 5 * time.Second
)

// New returns a client that has connected to nothing. What it does in the
// background ends with ctx or Close.
func New(ctx context.Context, cfg Config) *Client {
	cfg.Limits.fill()
	if cfg.Resolve == nil {
		cfg.Resolve = func(_ context.Context, text, _ string) (string, error) {
			return manifest.Expand(text, func(string, string) (string, bool) { return "", false })
		}
	}
	if cfg.Redact == nil {
		cfg.Redact = func(text string) string { return text }
	}
	if cfg.NewID == nil {
		cfg.NewID = func(prefix string) string { return prefix }
	}
	c := &Client{cfg: cfg, byKey: make(map[string]*server, len(cfg.Servers)), spawn: &spawner{}}
	c.life, c.stop = context.WithCancel(ctx)
	for _, s := range cfg.Servers {
		srv := newServer(c, s)
		if c.byKey[srv.key] == nil {
			c.byKey[srv.key] = srv
			c.servers = append(c.servers, srv)
		}
	}
	return c
}

func (l *Limits) fill() {
	orElse(&l.Call, defaultCall)
	orElse(&l.Connect, defaultConnect)
	orElse(&l.Grace, defaultGrace)
	orElse(&l.Message, defaultMessage)
	orElse(&l.Refresh, defaultRefresh)
}

func orElse[T comparable](v *T, other T) {
	var zero T
	if *v == zero {
		*v = other
	}
}

// errClosed is what a call after Close gets.
var errClosed = errors.New("the formation is ending")

// begin runs do in the background unless the client is closed.
func (c *Client) begin(do func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.background.Go(do)
	return true
}

// Run looks after the servers until ctx ends: it refreshes the stored lists of
// tools, one server at a time, and watches the health of servers over HTTP that
// ask for it.
func (c *Client) Run(ctx context.Context) error {
	if len(c.servers) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.refresh(ctx) })
	for _, s := range c.servers {
		if s.file.Type == manifest.MCPHTTP && s.file.HealthCheck.Enabled && !s.perUser {
			group.Go(func() error { return s.watch(ctx) })
		}
	}
	return group.Wait()
}

// Close ends every session and every process, and returns when they are gone.
// Calls that are under way fail.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.background.Wait()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.stop() // every session ends with it
	c.background.Wait()
	if c.spawn.close() && c.cfg.Launch != "" {
		// What left its process group on purpose is known by its mark.
		Sweep(func(launch string) bool { return launch == c.cfg.Launch })
	}
	return nil
}

// server returns the server that a name means to an agent: its own, or the
// formation's. nil when there is none.
func (c *Client) server(agent, id string) *server {
	if s := c.byKey[serverKey(agent, id)]; s != nil && agent != "" {
		return s
	}
	return c.byKey[serverKey("", id)]
}

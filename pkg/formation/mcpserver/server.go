// Package mcpserver is the formation as a server of the Model Context Protocol,
// over streamable HTTP.
//
// Its tools are the client's routes of the API, its resources what the formation
// tells of its agents, procedures and skills. A call of a tool is a request to
// the API within the process, so that it is checked, authorised and answered as
// any other; the schemas come from the types that the routes read.
//
// It is stateless: every message stands for itself, a process may end between
// two of them and the next one goes on, and no client that left is remembered.
// The session id that a client gets keeps nothing; it names the client's calls
// while they run, so that one can be taken back. Hence nothing is sent but in
// answer to a request: no subscriptions, no questions to the client.
//
// It promises that nothing but the names of what there is can be learnt without
// a key, that no caller holds more than its own wait, and that it costs nothing
// before the first request. Only httpapi imports it.
package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/openapi"
)

// Config is what a Server stands on. Name, API, Routes, Fault, UserHeader and
// NewID are required.
type Config struct {
	Name, Version, About string
	// API answers the calls.
	API http.Handler
	// Routes and Resources are asked at the first request.
	Routes    func() []Route
	Resources func() []Resource
	// Fault renders an error as the API does.
	Fault func(error) []byte
	// UserHeader is the header that names the user, and the argument that does.
	UserHeader string
	// Passed are the other headers of a request that its calls take over: those of
	// the keys, and the key of what may be repeated.
	Passed []string
	// CancelTurns tells that a turn whose caller does not wait for it any more is
	// cancelled, unless the call says otherwise.
	CancelTurns bool
	// Hub tells what turns do; nil tells nothing.
	Hub *telemetry.Hub
	// Hosts are names in the Host header, beside those of the loopback, that a
	// request may have which comes over the loopback.
	Hosts []string
	NewID func(prefix string) string
	Log   zerolog.Logger
	// Pace is the time between signs of life to a caller that waits; 0 is 5 s.
	Pace time.Duration
}

// Route is a route of the API that is a tool.
type Route struct {
	Tool string
	Turn bool // it begins a turn
	openapi.Route
}

// Server is safe for concurrent use.
type Server struct {
	cfg     Config
	flights flights

	once    sync.Once
	handler http.Handler
}

const defaultPace = 5 * time.Second

// New returns a Server. It builds nothing before the first request.
func New(cfg Config) (*Server, error) {
	if cfg.Name == "" || cfg.API == nil || cfg.Routes == nil || cfg.Fault == nil || cfg.UserHeader == "" || cfg.NewID == nil {
		return nil, errors.New("mcpserver: Name, API, Routes, Fault, UserHeader and NewID are required")
	}
	if cfg.Pace <= 0 {
		cfg.Pace = defaultPace
	}
	return &Server{cfg: cfg}, nil
}

// sessionHeader carries the id that names a client's calls.
const sessionHeader = "Mcp-Session-Id"

// Request is one HTTP request whose body was read.
type Request struct {
	Body  []byte
	Keyed bool // it brought a valid key
}

// exchange is what a handler has to know of the request that its message came
// in. It travels in the context.
type exchange struct {
	keyed  bool
	header http.Header
	remote string
	host   string
	// life ends when nobody waits any more: the client left, or has taken the
	// call back.
	life context.Context //nolint:containedctx // of the HTTP request, which the SDK's contexts do not follow
	out  *writer
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Serve answers a request that Admit has let in. It returns when the answer is
// complete or the client has left.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, in Request) {
	messages, err := read(in.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, jsonrpc.CodeParseError, err.Error())
		return
	}
	s.once.Do(s.build)
	session := r.Header.Get(sessionHeader)
	life, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := newWriter(w)
	defer out.close()
	x := &exchange{keyed: in.Keyed, header: r.Header, remote: r.RemoteAddr, host: r.Host, life: life, out: out}
	for _, m := range messages {
		switch {
		case m.Method == "initialize":
			w.Header().Set(sessionHeader, rand.Text())
		case m.Method == "notifications/cancelled":
			s.flights.takeBack(session, m)
		case m.Method == "tools/call" && len(messages) == 1:
			defer s.flights.add(session, m, cancel)()
		}
	}
	inner := r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	inner.Body = body(in.Body)
	s.handler.ServeHTTP(out, inner)
}

// build makes the protocol's server, with all that it offers.
func (s *Server) build() {
	server := mcpsdk.NewServer(&mcpsdk.Implementation{Name: s.cfg.Name, Version: s.cfg.Version}, &mcpsdk.ServerOptions{
		Instructions:      s.cfg.About,
		CompletionHandler: s.complete,
		Capabilities: &mcpsdk.ServerCapabilities{
			Tools: &mcpsdk.ToolCapabilities{}, Resources: &mcpsdk.ResourceCapabilities{}, Completions: &mcpsdk.CompletionCapabilities{},
		},
	})
	server.AddReceivingMiddleware(s.guard)
	for _, r := range s.cfg.Routes() {
		t := newTool(r, s.cfg.UserHeader)
		server.AddTool(t.described(), func(ctx context.Context, req *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			return s.call(ctx, t, req), nil
		})
	}
	s.offer(server)
	s.handler = mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return server }, &mcpsdk.StreamableHTTPOptions{
		Stateless:                  true,
		MaxRequestBodyBytes:        -1,   // httpapi has read it, within its limit
		DisableLocalhostProtection: true, // Admit protects
	})
}

// guard keeps from who has no key what needs one, whatever was found in the
// body before, and refuses streams that would never end: nothing changes here
// that could be told.
func (s *Server) guard(next mcpsdk.MethodHandler) mcpsdk.MethodHandler {
	return func(ctx context.Context, method string, req mcpsdk.Request) (mcpsdk.Result, error) {
		x := exchangeOf(ctx)
		switch {
		case method == "subscriptions/listen":
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "nothing changes that could be subscribed to"}
		case x == nil || !x.keyed && !open(method):
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "this needs a key"}
		}
		return next(ctx, method, req)
	}
}

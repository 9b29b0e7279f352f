// Package fakellm is a scripted model server at the wire: it speaks the
// protocols of OpenAI (and of the servers compatible with it), Anthropic,
// Google and Ollama, answers from one set of rules whatever the protocol, and
// keeps a record of what it was asked. It is strict where the vendors are, so
// that a request of the wrong shape fails a test and not a user. Tests run it in process or as the
// program test/fakellm/cmd/fakellm; benchmarks compare against it, so a plain
// call is cheap. It imports nothing of the product.
package fakellm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the habits of a Server.
type Options struct {
	// Key is the key that callers must show, each protocol in its own header;
	// "" accepts any.
	Key string
	// Record is how many of the last calls are kept with their bodies; 0 means
	// 1000, a negative number keeps none. Calls are always counted.
	Record int
	// Chunks is the number of deltas of a streamed text; 0 means 4.
	Chunks int
	// Text answers every call that no rule matches; "" derives an answer from
	// the last message.
	Text string
}

// Limits of what the fake reads.
const (
	maxBody       = 32 << 20
	defaultRecord = 1000
	defaultChunks = 4
)

// Server is the fake. It is an http.Handler; New and Start give it a life.
type Server struct {
	opts   Options
	serial atomic.Int64 // makes reply ids
	conns  atomic.Int64 // connections ever accepted
	url    string
	// buffers holds *[]byte for replies
	buffers sync.Pool

	mu    sync.Mutex // guards the fields that follow
	rules []*Rule
	gates map[string]chan struct{}
	log   record
}

// New returns a Server without a listener.
func New(opts Options) *Server {
	if opts.Record == 0 {
		opts.Record = defaultRecord
	}
	if opts.Chunks <= 0 {
		opts.Chunks = defaultChunks
	}
	return &Server{opts: opts, gates: map[string]chan struct{}{}, log: newRecord(opts.Record)}
}

// TB is the part of testing.TB that Start needs, so that the program does not
// link the testing package.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Start runs a Server on a free loopback port until the test ends.
func Start(tb TB, opts Options) *Server {
	tb.Helper()
	s := New(opts)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("fakellm: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	s.url = "http://" + ln.Addr().String() + "/v1"
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("fakellm: %v", err)
		}
	})
	return s
}

// URL is the base URL of a started Server, as llm.endpoints wants it.
func (s *Server) URL() string { return s.url }

// Connections returns how many connections were ever accepted.
func (s *Server) Connections() int { return int(s.conns.Load()) }

// Run serves ln until ctx ends; then it drops all connections.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.conns.Add(1)
			}
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the fake model: %w", err)
	}
	return nil
}

// Root is the address of a started Server without the path of OpenAI's protocol.
func (s *Server) Root() string { return strings.TrimSuffix(s.url, "/v1") }

// ServeHTTP answers model calls and the control paths under /_fake/.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case path == "/v1/chat/completions":
		s.serveModel(w, r, openAI{}, s.chat)
	case path == "/v1/embeddings":
		s.serveModel(w, r, openAI{}, s.embeddings)
	case path == "/v1/audio/transcriptions":
		s.serveModel(w, r, openAI{}, s.transcriptions)
	case path == "/v1/messages":
		s.serveModel(w, r, anthropic{}, s.chat)
	case strings.HasSuffix(path, ":generateContent"), strings.HasSuffix(path, ":streamGenerateContent"):
		s.serveModel(w, r, google{}, s.chat)
	case strings.HasSuffix(path, ":batchEmbedContents"):
		s.serveModel(w, r, google{}, s.batchEmbed)
	case path == "/v1/models":
		writeJSON(w, http.StatusOK, []byte(`{"object":"list","data":[{"id":"fake","object":"model","created":0,"owned_by":"fakellm"}]}`))
	case path == "/api/tags":
		writeJSON(w, http.StatusOK, []byte(`{"models":[{"name":"fake:latest","model":"fake:latest","size":1},{"name":"small:1b","model":"small:1b","size":1}]}`))
	default:
		s.control(w, r)
	}
}

// serveModel checks the key, reads the body and keeps count around answer.
func (s *Server) serveModel(w http.ResponseWriter, r *http.Request, talk dialect, answer func(*exchange) error) {
	refuse := func(status int, message, code string) { writeJSON(w, status, talk.failure(status, message, code)) }
	if r.Method != http.MethodPost {
		refuse(http.StatusMethodNotAllowed, "use POST", "")
		return
	}
	body, err := readBody(r)
	if err != nil {
		refuse(http.StatusRequestEntityTooLarge, err.Error(), "")
		return
	}
	x := &exchange{server: s, talk: talk, w: w, r: r, body: body}
	x.call = Call{Path: r.URL.Path, Authorization: r.Header.Get("Authorization"), Version: r.Header.Get("Anthropic-Version"), body: body}
	defer x.end()
	if key := talk.key(r); s.opts.Key != "" && key != s.opts.Key {
		refuse(http.StatusUnauthorized, "Incorrect API key provided: "+key, "invalid_api_key")
		return
	}
	if err := answer(x); err != nil {
		refuse(http.StatusBadRequest, err.Error(), "invalid_request")
	}
}

// writeJSON answers in one write.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = contentJSON
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// writeError answers in the shape of OpenAI's errors.
func writeError(w http.ResponseWriter, status int, message, code string) {
	writeJSON(w, status, openAIError(message, code))
}

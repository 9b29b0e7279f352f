// Package server is the embedding process of a host: it loads models, fetching
// them when they are not there, and answers embedder.Client on a unix socket.
//
// It takes calls of its own user, of root, and of the users it is told. It ends
// by itself when nobody has called for a while; the next caller starts another.
// Only the command that is this process imports it.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// Config is what Run needs. Dir, Hub and Engine must be set.
type Config struct {
	// Dir is the directory of the socket, and exists.
	Dir string
	// Listener accepts the calls; nil makes the socket in Dir.
	Listener net.Listener
	// Ready is called once: when calls are taken, or with the reason why not.
	Ready func(error)
	// Users may call beside this user and root.
	Users *embedder.UIDRange
	// Idle is how long nobody must have called before Run returns; 0 is 10
	// minutes, below 0 is never. The first call has a minute at least: whoever
	// started the process is about to make it.
	Idle   time.Duration
	Hub    *hub.Hub
	Engine model.Engine
	// MaxModels is how many models are kept in memory; 0 is 3.
	MaxModels int
	// Patience is how long calls wait for a model that is being fetched or
	// loaded, from the first of them on; 0 is 10 s.
	Patience time.Duration
	// MaxCalls is how many calls may wait or run at once; 0 is 64.
	MaxCalls int
	Log      zerolog.Logger
}

// firstCall is how long a new process waits for its first call at least.
const firstCall = time.Minute

// lockTime is how long Run waits for the end of the process before.
const lockTime = 10 * time.Second

// server is a running embedding process.
type server struct {
	cfg    Config
	models *models
	calls  chan struct{} // a token per call

	mu     sync.Mutex
	active int // calls and loads
	last   time.Time
	called bool
}

// Run serves until ctx ends or nobody has called for Config.Idle.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Ready == nil {
		cfg.Ready = func(error) {}
	}
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Minute
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.MaxModels == 0 {
		cfg.MaxModels = 3
	}
	if cfg.MaxCalls == 0 {
		cfg.MaxCalls = 64
	}
	lockCtx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	unlock, err := filelock.Take(lockCtx, filepath.Join(cfg.Dir, embedder.ServeLock), 0o600, nil)
	if err != nil {
		err = fmt.Errorf("another embedding process serves %s: %w", cfg.Dir, err)
		cfg.Ready(err)
		return err
	}
	defer unlock()
	if cfg.Listener == nil {
		if cfg.Listener, err = listen(ctx, cfg.Dir); err != nil {
			cfg.Ready(err)
			return err
		}
	}
	s := &server{cfg: cfg, calls: make(chan struct{}, cfg.MaxCalls), last: time.Now()}
	s.models = newModels(ctx, cfg, s)
	return s.serve(ctx)
}

func listen(ctx context.Context, dir string) (net.Listener, error) {
	path := embedder.SocketPath(dir)
	// The lock is ours: whoever made this socket is gone.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("keep the socket to this user: %w", err)
	}
	return l, nil
}

// Times of the HTTP server. An answer may take as long as its call waits.
const (
	headerTime   = 30 * time.Second
	readTime     = 2 * time.Minute // of up to embedder.MaxBody, on a machine that is short of time
	shutdownTime = 5 * time.Second
)

type peerKey struct{}

func (s *server) serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+embedder.PathEmbed, s.embed)
	mux.HandleFunc("POST "+embedder.PathInfo, s.info)
	srv := &http.Server{
		Handler: s.admit(mux), ReadHeaderTimeout: headerTime, ReadTimeout: readTime, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			uid, err := embedder.PeerUID(c)
			if err != nil {
				return ctx
			}
			return context.WithValue(ctx, peerKey{}, uid)
		},
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(s.cfg.Listener) }()
	s.cfg.Ready(nil)
	s.cfg.Log.Info().Str("engine", s.cfg.Engine.Name()).Msg("embedding")
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case <-s.idle(ctx):
		s.cfg.Log.Info().Msg("nobody calls any more, ending")
	case <-ctx.Done():
	}
	quiet, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if srv.Shutdown(quiet) != nil {
		_ = srv.Close()
	}
	s.models.close()
	return err
}

// idle returns a channel that is closed when nobody has called for a while.
func (s *server) idle(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	if s.cfg.Idle < 0 {
		return done
	}
	go func() {
		timer := time.NewTimer(s.cfg.Idle)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			s.mu.Lock()
			rest := s.cfg.Idle - time.Since(s.last)
			if !s.called {
				rest = max(s.cfg.Idle, firstCall) - time.Since(s.last)
			}
			if s.active > 0 {
				rest = s.cfg.Idle
			}
			s.mu.Unlock()
			if rest <= 0 {
				close(done)
				return
			}
			timer.Reset(rest)
		}
	}()
	return done
}

// work counts something that keeps the process from being idle.
func (s *server) work() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active++
	s.called = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
		s.last = time.Now()
	}
}

// allowed tells whose calls are taken.
func (s *server) allowed(uid uint32) bool {
	u := s.cfg.Users
	return uid == 0 || int(uid) == os.Getuid() || u != nil && uid >= u.First && uid <= u.Last
}

// admit sees who calls, and how many.
func (s *server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.work()()
		uid, ok := r.Context().Value(peerKey{}).(uint32)
		if !ok || !s.allowed(uid) {
			s.fail(w, fault.New(fault.Forbidden, "EMBEDDER_FORBIDDEN", fmt.Sprintf("the embedding process takes no calls of user %d", uid)))
			return
		}
		select {
		case s.calls <- struct{}{}:
			defer func() { <-s.calls }()
		default:
			s.fail(w, fault.New(fault.Unavailable, embedder.NameBusy, fmt.Sprintf("%d calls wait for the embedding process already", s.cfg.MaxCalls)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fail answers with an error.
func (s *server) fail(w http.ResponseWriter, err error) {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		s.cfg.Log.Error().Err(err).Msg("a call failed")
		f = fault.New(fault.Unavailable, embedder.NameUnavailable, "the embedding process failed: "+err.Error())
	}
	reply(w, f.Kind.HTTPStatus(), embedder.Failure{Kind: f.Kind.String(), Name: f.Name, Message: f.Message})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

const nameBadRequest = "INVALID_EMBEDDING_REQUEST"

// read takes the request and the model it asks for; release must be called.
func (s *server) read(w http.ResponseWriter, r *http.Request) (req embedder.Request, l *loaded, err error) {
	body := http.MaxBytesReader(w, r.Body, embedder.MaxBody)
	if err := json.NewDecoder(body).Decode(&req); err != nil {
		return req, nil, fault.New(fault.Invalid, nameBadRequest, fmt.Sprintf("read the request: %v", err))
	}
	if len(req.Texts) > embedder.MaxTexts {
		return req, nil, fault.New(fault.Invalid, nameBadRequest, fmt.Sprintf("%d texts, want at most %d", len(req.Texts), embedder.MaxTexts))
	}
	for i, t := range req.Texts {
		if len(t) > embedder.MaxText {
			return req, nil, fault.New(fault.Invalid, nameBadRequest, fmt.Sprintf("text %d has %d bytes, want at most %d", i+1, len(t), embedder.MaxText))
		}
	}
	ref, err := hub.ParseRef(req.Model)
	if err != nil {
		return req, nil, err
	}
	l, err = s.models.get(r.Context(), ref)
	return req, l, err
}

func (s *server) embed(w http.ResponseWriter, r *http.Request) {
	req, l, err := s.read(w, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer s.models.release(l)
	vectors, tokens, err := l.model.Embed(r.Context(), req.Texts, req.Task)
	if err != nil {
		s.fail(w, err)
		return
	}
	reply(w, http.StatusOK, embedder.Pack(vectors, l.model.Dimension(), tokens))
}

func (s *server) info(w http.ResponseWriter, r *http.Request) {
	req, l, err := s.read(w, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer s.models.release(l)
	reply(w, http.StatusOK, embedder.Info{
		Model: req.Model, Revision: l.commit, Dimension: l.model.Dimension(), MaxTokens: l.model.MaxTokens(), Engine: l.model.Engine(),
	})
}

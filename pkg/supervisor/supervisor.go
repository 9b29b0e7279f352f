// Package supervisor assembles the daemon that hosts formations: its settings,
// its single-instance lock, the registry, the fleet of child processes and the
// management API with the proxy beside it.
//
// It promises that a supervisor that was killed finds its formations again at
// the next start, that a stop drains and stops them, and that two supervisors
// never share a home directory. cmd/supervisor imports it.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/httpx"
)

// runtimeName is the program of the children.
const runtimeName = "formation-runtime"

// httpGrace is how long requests may take to end after the children have.
const httpGrace = 5 * time.Second

// Supervisor is one daemon. It is run once.
type Supervisor struct {
	cfg Config
	log zerolog.Logger
}

// New checks cfg, as LoadConfig returned it, and finds the runtime program.
// Nothing is opened or started yet.
func New(cfg Config) (*Supervisor, error) {
	home, err := checkHome(cfg.Home)
	if err != nil {
		return nil, err
	}
	cfg.Home = home
	level, err := zerolog.ParseLevel(cfg.Logging.Level)
	if err != nil {
		return nil, fmt.Errorf("logging.level: %w", err)
	}
	cfg.Log = cfg.Log.Level(level)
	if cfg.Runtime, err = findRuntime(cfg.Runtime); err != nil {
		return nil, err
	}
	if cfg.Listen == "" {
		cfg.Listen = net.JoinHostPort(cfg.Server.Host, strconv.Itoa(cfg.Server.Port))
	}
	if cfg.LookupEnv == nil {
		cfg.LookupEnv = func(string) (string, bool) { return "", false }
	}
	return &Supervisor{cfg: cfg, log: cfg.Log}, nil
}

// findRuntime looks beside the running program first: the two are released
// together. A deploy says where it was expected when it is missing.
func findRuntime(path string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", runtimeName, err)
	}
	beside := filepath.Join(filepath.Dir(self), runtimeName)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	if found, err := exec.LookPath(runtimeName); err == nil {
		return filepath.Abs(found)
	}
	return beside, nil
}

// Run serves until ctx ends; then it drains and stops the children and returns
// nil. Another supervisor on the same home is an error that names its process.
func (s *Supervisor) Run(ctx context.Context) (err error) {
	lock, err := acquireLock(filepath.Join(s.cfg.Home, "run"))
	if err != nil {
		return err
	}
	defer lock.release()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for the management API: %w", err)
	}
	defer listener.Close()
	for _, w := range s.cfg.Warnings {
		s.log.Warn().Msg(w)
	}
	h, err := s.assemble(ctx, listener.Addr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	return s.serve(ctx, listener, h)
}

// serve restores the fleet, answers requests, and ends both when ctx does.
func (s *Supervisor) serve(ctx context.Context, listener net.Listener, h *house) error {
	// Connections wait in the listener's queue until the fleet is known.
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	if err := h.deploy.Restore(work); err != nil {
		stopWork()
		h.deploy.Close()
		return err
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	srv := httpx.NewHTTPServer(h.api, s.log)
	srv.BaseContext = func(net.Listener) context.Context { return requests }

	var wg sync.WaitGroup
	wg.Go(func() { h.api.Run(work) })
	wg.Go(func() { s.watchKeys(work, h.auth.SetKeys) })
	served := make(chan error, 1)
	wg.Go(func() { served <- srv.Serve(listener) })
	s.ready(listener.Addr(), h)

	var err error
	select {
	case <-ctx.Done():
		s.log.Info().Msg("stopping")
	case err = <-served:
		err = fmt.Errorf("serve the management API: %w", err)
	}
	stopWork()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout())
	defer cancel()
	err = errors.Join(err, h.deploy.Shutdown(bound))
	// The children have finished their streams; what is open now would not end
	// by itself, such as a followed log.
	endRequests()
	err = errors.Join(err, shutdown(context.WithoutCancel(ctx), srv))
	wg.Wait()
	return err
}

// stopTimeout bounds the end of all children, which end side by side.
func (s *Supervisor) stopTimeout() time.Duration {
	f := s.cfg.Formations
	return f.DrainTimeout + f.Deployment.ForceKillTimeout + 10*time.Second
}

func shutdown(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, httpGrace)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return srv.Close()
	}
	return nil
}

func (s *Supervisor) ready(addr net.Addr, h *house) {
	ap, _ := netip.ParseAddrPort(addr.String())
	n := h.deploy.Counts().Total
	s.log.Info().Str("address", ap.String()).Str("home", s.cfg.Home).Int("formations", n).Msg("supervisor is ready")
	if s.cfg.OnReady != nil {
		s.cfg.OnReady(Ready{Addr: ap, Formations: n})
	}
}

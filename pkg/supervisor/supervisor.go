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
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// runtimeName is the program of the children.
const runtimeName = "formation-runtime"

// httpGrace is how long requests may take to end after the children have.
const httpGrace = 5 * time.Second

// Supervisor is one daemon. It is run once.
type Supervisor struct {
	cfg Config
	log zerolog.Logger
	// replace becomes another program; tests give a poorer one.
	replace func(path string, args, env []string) error
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
	s := &Supervisor{cfg: cfg, log: cfg.Log}
	s.replace = s.become
	return s, nil
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
// A reload does not return: the program is replaced. In a process that was
// started as the bridge of a reload, Run is that.
func (s *Supervisor) Run(ctx context.Context) error {
	if _, ok := s.cfg.LookupEnv(envBridge); ok {
		return s.runBridge(ctx)
	}
	e, err := s.settle(ctx)
	if err != nil {
		return err
	}
	defer e.close()
	for _, w := range s.cfg.Warnings {
		s.log.Warn().Msg(w)
	}
	for {
		again, err := s.live(ctx, e)
		if err != nil || !again {
			return err
		}
		// This returns only when the program could not be replaced; then this one
		// takes over from itself.
		e.refusal = e.exec(s.cfg.Self, s.replace)
	}
}

// become is execve. A second SIGHUP must not kill the new program before it
// listens to it: what is ignored stays ignored.
func (s *Supervisor) become(path string, args, env []string) error {
	signal.Ignore(unix.SIGHUP)
	err := unix.Exec(path, args, env)
	signal.Notify(s.cfg.Reload, unix.SIGHUP)
	return err
}

// live opens the parts and serves with them. It returns true when the program
// is to be replaced; everything is closed then but what the estate holds.
func (s *Supervisor) live(ctx context.Context, e *estate) (again bool, err error) {
	h, err := s.assemble(ctx, e)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	return s.serve(ctx, e, h)
}

// serve restores the fleet, answers requests, and ends both when ctx does, or
// for a reload.
func (s *Supervisor) serve(ctx context.Context, e *estate, h *house) (again bool, err error) {
	// Connections wait in the door's queue until the fleet is known.
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWork()
	// Systemd's watchdog is fed on while a reload waits for operations in progress.
	beat, stopBeat := context.WithCancel(ctx)
	defer stopBeat()
	wg.Go(func() { s.pulse(beat, h.alive) })
	if err := h.deploy.Restore(work); err != nil {
		stopWork()
		h.deploy.Close()
		return false, err
	}
	if err := e.unclaimed(); err != nil {
		s.log.Warn().Err(err).Msg("a socket of nobody is not closed")
	}
	f := newFront(context.WithoutCancel(ctx), h.api, s.log)
	defer f.close(ctx)
	if err := f.serve(e.door, h.tls); err != nil {
		stopWork()
		h.deploy.Close()
		return false, err
	}
	for _, run := range h.runs {
		wg.Go(func() { run(work) })
	}
	s.relieveBridge(ctx, e, h)
	s.ready(e.door.addr, h)
	for {
		select {
		case <-s.cfg.Reload:
			again, err := s.reload(ctx, reloading{e, h, f, stopWork})
			if err == nil && again {
				return true, nil
			}
			if ctx.Err() == nil {
				s.refused(err)
				continue
			}
		case <-ctx.Done():
		case err = <-f.failed:
			err = fmt.Errorf("serve the management API: %w", err)
		}
		break
	}
	s.log.Info().Msg("stopping")
	s.tellSystemd(sd.SdNotifyStopping)
	stopWork()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout())
	defer cancel()
	err = errors.Join(err, h.deploy.Shutdown(bound))
	// The children have finished their streams; what is open now would not end
	// by itself, such as a followed log, or a bridge's.
	e.dismissBridge()
	f.close(ctx)
	return false, err
}

// stopTimeout bounds the end of all children, which end side by side.
func (s *Supervisor) stopTimeout() time.Duration {
	f := s.cfg.Formations
	return f.DrainTimeout + f.Deployment.ForceKillTimeout + 10*time.Second
}

func (s *Supervisor) ready(addr net.Addr, h *house) {
	ap, _ := netip.ParseAddrPort(addr.String())
	n := h.deploy.Counts().Total
	s.log.Info().Str("address", ap.String()).Str("home", s.cfg.Home).Int("formations", n).Msg("supervisor is ready")
	s.tellSystemd(sd.SdNotifyReady)
	if s.cfg.OnReady != nil {
		s.cfg.OnReady(Ready{Addr: ap, TLS: h.tls != nil, Formations: n})
	}
}

package formation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/httpx"
)

// accepting is one listener and the end of its accept loop.
type accepting struct {
	listener net.Listener
	ended    chan struct{} // closed when every accepted connection is known to the server
}

// Serve implements control.Formation: it begins to accept and to do the
// background work, or takes both back after a Pause.
func (f *Formation) Serve(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.parts == nil:
		return errNotLoaded
	case f.drained:
		return fault.New(fault.Conflict, "", "the formation is ending")
	case f.server != nil && !f.paused:
		return nil
	}
	l, err := f.cfg.Listen()
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if f.server == nil {
		f.begin(ctx)
	}
	f.paused = false
	f.closing.Store(false)
	f.accept = &accepting{listener: l, ended: make(chan struct{})}
	f.background.Go(f.acceptLoop(f.server, f.accept))
	f.work.want(true)
	return nil
}

// begin starts what runs until Stop; mu is held.
func (f *Formation) begin(ctx context.Context) {
	p := f.parts
	f.server = httpx.NewHTTPServer(p.handler, f.cfg.Log)
	f.conns.attach(f.server)
	var life context.Context
	life, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.background, life = errgroup.WithContext(life)
	f.background.Go(func() error { return f.work.run(life, p) })
	f.background.Go(func() error { return f.heartbeat(life, p) })
	f.background.Go(func() error { return p.accompany(life) })
	f.background.Go(func() error { return p.tools.client.Run(life) })
	context.AfterFunc(life, func() { f.fatal(context.Cause(life)) })
	p.turns.Open()
}

// acceptLoop serves the connections of one listener until that is closed.
func (f *Formation) acceptLoop(server *http.Server, a *accepting) func() error {
	return func() error {
		defer close(a.ended)
		err := server.Serve(a.listener)
		// A stop begins with the supervisor un-listening the socket, which may
		// come before its Drain: no new connections, and the open ones go on.
		unlistened := errors.Is(err, syscall.EINVAL)
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || unlistened {
			return nil
		}
		return fmt.Errorf("serve: %w", err)
	}
}

// fatal ends the process when a part that must run has ended by itself.
func (f *Formation) fatal(err error) {
	if !f.stopped.Load() && f.cfg.Fatal != nil {
		f.cfg.Fatal(err)
	}
}

// releaseTimeout bounds how long Pause waits for background jobs to end; they
// are cancelled, and the other child takes over whenever they have.
const releaseTimeout = 2 * time.Second

// Pause implements control.Formation. Connections that are open are served on,
// new turns included, and told to close.
func (f *Formation) Pause(ctx context.Context) error {
	f.mu.Lock()
	if f.server == nil || f.paused || f.drained {
		f.mu.Unlock()
		return nil
	}
	f.paused = true
	f.closing.Store(true)
	f.parts.hub.Dismiss()                        // the other child has the new turns
	p, err := f.parts, f.accept.listener.Close() // the accept loop ends
	f.work.want(false)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if !f.work.released(ctx) {
		f.cfg.Log.Warn().Msg("background jobs end slowly; another process takes them over later")
	}
	// The other child is to be known from here on, whatever comes next.
	return errors.Join(err, p.db.Look(ctx))
}

// Drain implements control.Formation: no new connections, then the end of what
// is open, at most for the timeout. The socket stays open for others while this
// child is paused, whatever the request says: another one listens on it.
func (f *Formation) Drain(ctx context.Context, req control.DrainRequest) (control.Drained, error) {
	f.closing.Store(true)
	f.end.Do(func() { close(f.ending) })
	f.mu.Lock()
	p, server, a := f.parts, f.server, f.accept
	unlisten := req.CloseSocket && !f.paused && f.cfg.CloseSocket != nil
	f.drained = f.drained || server != nil
	f.mu.Unlock()
	if server == nil {
		return control.Drained{}, nil
	}
	if unlisten {
		// Before our own copy closes: afterwards clients would queue in a
		// socket that nobody empties.
		if err := f.cfg.CloseSocket(); err != nil {
			f.cfg.Log.Warn().Err(err).Msg("un-listen the port")
		}
	}
	_ = a.listener.Close() // it may be closed already, by Pause
	p.hub.Dismiss()
	lost, cancel := untilClosed(ctx, p.db.Fenced())
	defer cancel()
	lameDuck(lost, a, req.LameDuck)
	if err := ctx.Err(); err != nil {
		return control.Drained{}, err
	}
	end, stop := context.WithTimeout(lost, req.Timeout)
	defer stop()
	// net/http closes a connection without an answer when its first request
	// has not reached the handler as Shutdown begins.
	f.conns.wait(end)
	shut := make(chan error, 1)
	go func() { shut <- server.Shutdown(end) }()
	left := p.turns.Drain(end)
	if err := <-shut; err != nil && end.Err() == nil {
		return control.Drained{Unfinished: left}, err
	}
	return control.Drained{Unfinished: left}, nil
}

// untilClosed returns a context that also ends when c is closed: a launch that
// lost its store to another has nothing to wait for.
func untilClosed(ctx context.Context, c <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-c:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// lameDuck waits until all accepted connections are known, then out the
// clients' idle time: what they send within it is answered, with the word that
// the connection closes.
func lameDuck(ctx context.Context, a *accepting, d time.Duration) {
	select {
	case <-a.ended:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Stop implements control.Formation. It is safe to call at any time, and twice.
func (f *Formation) Stop(context.Context) error {
	var err error
	f.stopOnce.Do(func() { err = f.stop() })
	return err
}

func (f *Formation) stop() error {
	f.stopped.Store(true)
	f.closing.Store(true)
	f.end.Do(func() { close(f.ending) })
	f.mu.Lock()
	p, server, background, cancel := f.parts, f.server, f.background, f.cancel
	f.drained = f.drained || server != nil
	f.mu.Unlock()
	if p == nil {
		return nil
	}
	p.hub.Dismiss()
	p.turns.Stop()
	toolsEnded := make(chan error, 1)
	go func() { toolsEnded <- p.tools.client.Close() }()
	var errs []error
	if server != nil {
		cancel()
		f.farewell(p.life, server)
		errs = append(errs, server.Close())
	}
	if background != nil {
		if err := background.Wait(); !errors.Is(err, store.ErrFenced) { // that was told by Fatal
			errs = append(errs, err)
		}
	}
	errs = append(errs, <-toolsEnded)
	p.router.Close()
	p.exporter.Close(p.life)
	// The last write: a sibling takes over what is left without being told.
	if err := p.db.Retire(p.life); err != nil && !errors.Is(err, store.ErrFenced) {
		f.cfg.Log.Warn().Err(err).Msg("retire the launch")
	}
	return errors.Join(append(errs, p.db.Close())...)
}

// farewellTime bounds how long the last answers may take to leave.
const farewellTime = 500 * time.Millisecond

// farewell lets the callers of turns that were cut hear that they go on later.
func (f *Formation) farewell(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, farewellTime)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		f.cfg.Log.Debug().Err(err).Msg("connections are cut")
	}
}

package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
)

// How long a child waits for the supervisor that started it, and how long its
// last replies may take to leave.
const (
	firstPeerTimeout = time.Minute
	farewell         = time.Second
)

// ServeOptions says how a child is served. Inherited.ServeOptions fills it.
type ServeOptions struct {
	RunDir string
	// OrphanTimeout is how long the child lives without a control connection
	// before it drains and ends. 0 is for ever; only the first connection after
	// the start is never waited for longer than a minute.
	OrphanTimeout time.Duration
	// Drain bounds the end by orphanhood or by ctx. CloseSocket is decided by
	// which of the two it is. The zero Timeout is 30 s.
	Drain DrainRequest
	// LaunchID and Token let a new supervisor take the listening socket over
	// (TakeListener). Without a token it cannot.
	LaunchID, Token string
	Log             zerolog.Logger
}

// ServeOptions returns the options that the supervisor decided.
func (in *Inherited) ServeOptions(log zerolog.Logger) ServeOptions {
	return ServeOptions{
		RunDir: in.RunDir, OrphanTimeout: in.OrphanTimeout, LaunchID: in.LaunchID, Token: in.Token, Log: log,
	}
}

// Serve answers the supervisor until the end of the child: Stop was called, ctx
// ended (SIGTERM), or the supervisor is gone for good. Whatever the reason,
// f.Stop has been called once when it returns; before that, a child that was not
// told to stop has drained: an orphan un-listens the port for every holder, one
// that got a signal leaves the port to its successor.
// So Drain and Stop can come at any time, also before Load and while it runs.
//
// Serve writes the handshake line to standard output, which nothing else may be
// printed to before. Afterwards os.Stdout and os.Stderr are both descriptor 2.
func Serve(ctx context.Context, f Formation, opts ServeOptions) error {
	pair, err := loadTLS(opts.RunDir)
	if err != nil {
		return err
	}
	if opts.Drain.Timeout <= 0 {
		opts.Drain.Timeout = 30 * time.Second
	}
	if opts.Token != "" {
		h, err := newHandover(HandoverPath(opts.RunDir, opts.LaunchID), opts.Token, FDListener, opts.Log)
		if err != nil {
			return err
		}
		defer h.close()
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	c := &served{
		opts:  opts,
		rpc:   newServer(life, f),
		peers: newPeers(opts.OrphanTimeout, keepStderr(os.Stderr)),
		ready: make(chan *grpc.Server, 1),
		gone:  make(chan struct{}),
		end:   end,
	}
	ended := make(chan error, 1)
	go func() { ended <- c.untilEnd(ctx) }()
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake(),
		TLSProvider:     func() (*tls.Config, error) { return pair.server(), nil },
		Plugins:         plugins(c.rpc),
		GRPCServer:      c.newGRPC,
		// The real descriptor 2, taken before go-plugin replaces os.Stderr.
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr}),
	})
	close(c.gone)
	return <-ended
}

// keepStderr returns a function that undoes what go-plugin does to the standard
// streams: it makes pipes of them that block as soon as no supervisor reads, and
// a last word written there is lost. It runs at the first connection, which
// go-plugin accepts after its own change.
func keepStderr(stderr *os.File) func() {
	return func() { os.Stdout, os.Stderr = stderr, stderr }
}

// served is the state of one Serve.
type served struct {
	opts  ServeOptions
	rpc   *server
	peers *peers
	ready chan *grpc.Server // capacity 1: the server, once go-plugin asked for it
	gone  chan struct{}     // closed when go-plugin's Serve returned
	end   context.CancelFunc
}

func (c *served) newGRPC(opts []grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(opts, grpc.StatsHandler(c.peers))...)
	c.ready <- s
	return s
}

// untilEnd waits for the reason to end, ends the formation, then the server.
func (c *served) untilEnd(ctx context.Context) error {
	defer c.peers.stop()
	var grpcServer *grpc.Server
	select {
	case grpcServer = <-c.ready:
	case <-c.gone:
		return errors.New("the control server did not start; the error log says why")
	}
	drain := c.opts.Drain
	quiet := context.WithoutCancel(ctx)
	var err error
	select {
	case <-c.rpc.stopped:
	case <-c.gone:
		// The server ended under us: go-plugin's own Shutdown call.
	case <-c.peers.alone:
		c.opts.Log.Warn().Msg("no supervisor is left: draining and ending")
		drain.CloseSocket = true
		err = c.drain(quiet, drain)
	case <-ctx.Done():
		c.opts.Log.Info().Msg("told to end by a signal: draining")
		drain.CloseSocket = false
		err = c.drain(quiet, drain)
	}
	err = errors.Join(err, c.rpc.stop(quiet))
	c.end()
	stopGRPC(grpcServer)
	return err
}

func (c *served) drain(ctx context.Context, req DrainRequest) error {
	ctx, cancel := context.WithTimeout(ctx, req.Timeout+req.LameDuck+farewell)
	defer cancel()
	if _, err := c.rpc.f.Drain(ctx, req); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}

// stopGRPC lets the last replies leave. Streams that go-plugin keeps open for
// as long as the supervisor is connected would hold it up for ever, so not for
// long.
func stopGRPC(s *grpc.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.GracefulStop()
	}()
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.Stop()
		<-done
	}
}

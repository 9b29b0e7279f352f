package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Bounds of the supervisor's end.
const (
	startTimeout   = time.Minute     // from exec to the handshake line
	dialTimeout    = 5 * time.Second // one attempt to connect, TLS included
	maxMessageSize = 16 << 20        // bytes received in one message
	redialDelay    = time.Second     // at most, between two attempts
)

// RunnerFunc makes the runner of a launch. The child's environment must hold
// the variables of handshake. The runner's Kill may be called at any time, also
// before and during its Start.
type RunnerFunc func(handshake []string) (runner.Runner, error)

// Conn is the supervisor's connection to one child. It embeds the Client.
type Conn struct {
	*Client
	plugin *goplugin.Client
	rpc    *goplugin.GRPCClient
	socket string
}

// Launch starts a child through run and connects to it; its control socket is
// made in runDir, which must have been through EnsureTLS. When ctx ends first,
// the runner is killed; a ctx without a deadline is given a minute for the
// handshake. On an error the runner has been killed and nothing is left.
func Launch(ctx context.Context, runDir string, run RunnerFunc) (*Conn, error) {
	var stop func() bool
	var started runner.Runner
	wait := startTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait += time.Until(deadline) // ctx ends first and says why
	}
	cfg := goplugin.ClientConfig{
		SkipHostEnv:      true,
		StartTimeout:     wait,
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: runDir},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, tmpDir string) (runner.Runner, error) {
			// go-plugin's own directory would make the socket's path longer, and
			// it is removed under a child that outlives us.
			if err := os.Remove(tmpDir); err != nil {
				return nil, err
			}
			r, err := run(append(cmd.Env, goplugin.EnvUnixSocketDir+"="+runDir))
			if err == nil {
				started = r
				stop = context.AfterFunc(ctx, func() { _ = r.Kill(ctx) })
			}
			return r, err
		},
	}
	c, err := connect(ctx, runDir, &cfg, func() (int, error) { return strconv.Atoi(started.ID()) })
	if stop != nil && !stop() { // ctx ended and the child was killed
		if err == nil {
			c.Close()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("launch a child: %w", err)
	}
	return c, nil
}

// Child is a child that an earlier supervisor launched.
type Child struct {
	RunDir string
	Socket string // the path of its control socket
	PID    int
}

// Reattach connects to child through attach. Nothing is said to a socket that
// another process listens on, now or when the connection is made anew. It proves
// nothing more than that, and that the process holds the keys of the run
// directory: call Hello next.
func Reattach(ctx context.Context, child Child, attach runner.ReattachFunc) (*Conn, error) {
	cfg := goplugin.ClientConfig{
		Reattach: &goplugin.ReattachConfig{
			Protocol:     goplugin.ProtocolGRPC,
			Addr:         &net.UnixAddr{Net: "unix", Name: child.Socket},
			ReattachFunc: attach,
		},
	}
	c, err := connect(ctx, child.RunDir, &cfg, func() (int, error) { return child.PID, nil })
	if err != nil {
		return nil, fmt.Errorf("reattach to a child: %w", err)
	}
	return c, nil
}

// connect fills in what launches and reattachments share. pid is asked, when the
// process is there, for the one that has to answer.
func connect(ctx context.Context, runDir string, cfg *goplugin.ClientConfig, pid func() (int, error)) (_ *Conn, err error) {
	pair, err := loadTLS(runDir)
	if err != nil {
		return nil, err
	}
	cfg.HandshakeConfig = handshake()
	cfg.Plugins = plugins(nil)
	cfg.AllowedProtocols = []goplugin.Protocol{goplugin.ProtocolGRPC}
	cfg.Logger = hclog.NewNullLogger() // every error it would log comes back to us
	cfg.TLSConfig = pair.client()
	to := &dialer{tls: cfg.TLSConfig}
	cfg.GRPCDialOptions = []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return to.dial(ctx) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialDelay / 20, Multiplier: 2, Jitter: 0.2, MaxDelay: redialDelay},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize)),
		// TLS has a buffer of its own below this one, which by default is eight
		// times as large and kept for as long as the child lives.
		grpc.WithReadBufferSize(4 << 10),
	}
	c := &Conn{plugin: goplugin.NewClient(cfg)}
	defer func() {
		switch {
		case err == nil:
		case cfg.Reattach != nil:
			c.Detach()
		default:
			c.Close()
		}
	}()
	addr, err := c.plugin.Start()
	if err != nil {
		return nil, err
	}
	c.socket = addr.String()
	to.socket = c.socket
	if to.pid, err = pid(); err != nil {
		return nil, fmt.Errorf("connect to the child: its number is unknown: %w", err)
	}
	// A child that we have just launched has read the same keys as we, so for it a
	// handshake more is a cost without a use.
	if err := to.probe(ctx, cfg.Reattach != nil); err != nil {
		return nil, err
	}
	return c, c.dispense()
}

func (c *Conn) dispense() error {
	protocol, err := c.plugin.Client()
	if err != nil {
		return err
	}
	rpc, ok := protocol.(*goplugin.GRPCClient)
	if !ok {
		return fmt.Errorf("the child speaks %T, want gRPC", protocol)
	}
	c.rpc = rpc
	raw, err := rpc.Dispense(pluginName)
	if err != nil {
		return err
	}
	client, ok := raw.(*Client)
	if !ok {
		return errors.New("go-plugin returned another plugin than ours")
	}
	c.Client = client
	return nil
}

// Socket is the path of the child's control socket, to be kept for Reattach.
func (c *Conn) Socket() string { return c.socket }

// Detach closes the connection and leaves the child alone. The runner must let
// its Wait return; then nothing of the connection is left.
func (c *Conn) Detach() {
	if c.rpc == nil {
		return
	}
	// First the connection, so that go-plugin's Close cannot send its Shutdown.
	_ = c.rpc.Conn.Close()
	_ = c.rpc.Close()
}

// Close frees what belongs to a child that has exited. A child that still lives
// is killed through its runner, at once.
func (c *Conn) Close() {
	c.Detach()
	c.plugin.Kill()
}

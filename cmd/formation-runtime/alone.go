package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/filelock"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/redact"
	"github.com/agentformation/service/pkg/version"
)

// drainTimeout is how long open work may take after a signal (reference
// runtime.md 1.1).
const drainTimeout = 30 * time.Second

type aloneFlags struct {
	dir, stateDir, host, prefix, level string
	port                               int
}

func execute() error {
	root := &cobra.Command{
		Use: "formation-runtime", Short: "Runs one formation", Version: version.String(),
		SilenceUsage: true, SilenceErrors: true,
	}
	var flags aloneFlags
	serve := &cobra.Command{
		Use: "serve", Short: "Run a formation without a supervisor", Args: cobra.NoArgs,
		Long: "Runs the formation of a directory in the foreground until SIGINT or SIGTERM.\n" +
			"Its store and generated keys live in the directory itself unless --state-dir says otherwise.",
		RunE: func(cmd *cobra.Command, _ []string) error { return serveAlone(cmd, flags) },
	}
	serve.Flags().StringVar(&flags.dir, "dir", ".", "directory with the manifest")
	serve.Flags().StringVar(&flags.stateDir, "state-dir", "", "directory of store and keys (default: --dir)")
	serve.Flags().StringVar(&flags.host, "host", "", "address to listen on (default: server.host of the manifest)")
	serve.Flags().IntVar(&flags.port, "port", 0, "port to listen on (default: server.port of the manifest)")
	serve.Flags().StringVar(&flags.prefix, "header-prefix", "SVC", "the word in X-<prefix>-* header names")
	serve.Flags().StringVar(&flags.level, "log-level", "info", "debug, info, warn or error (default: logging.system.level of the manifest)")
	root.AddCommand(serve, embedCommand())
	return root.Execute()
}

func serveAlone(cmd *cobra.Command, flags aloneFlags) error {
	level, err := zerolog.ParseLevel(flags.level)
	if err != nil {
		return fmt.Errorf("--log-level %q: want debug, info, warn or error", flags.level)
	}
	hide := redact.New()
	tap := formation.NewLogTap(cmd.ErrOrStderr())
	log := zerolog.New(hide.Writer(tap)).Level(level).With().Timestamp().Logger()
	dir, err := filepath.Abs(flags.dir)
	if err != nil {
		return fmt.Errorf("--dir %s: %w", flags.dir, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("--dir %s: there is no such directory", flags.dir) // and none is made for the state
	}
	stateDir := dir
	if flags.stateDir != "" {
		if stateDir, err = filepath.Abs(flags.stateDir); err != nil {
			return fmt.Errorf("--state-dir %s: %w", flags.stateDir, err)
		}
	}
	unlock, err := lockState(stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := untilSignal(log, syscall.SIGINT)
	defer cancel(nil)
	var f *formation.Formation
	f = formation.New(formation.Config{
		LaunchID: httpx.NewID("lch_"), Alone: true, SecretsKey: secretsKey(), Redact: hide, Env: os.LookupEnv, Fatal: cancel, Log: log,
		Embedder: embedderClient(log), Tap: tap, KeepLevel: cmd.Flags().Changed("log-level"),
		Listen: func() (net.Listener, error) { return listen(ctx, cmd, f.Manifest(), flags) },
	})
	return without(hide, run(ctx, f, control.LoadRequest{Dir: dir, StateDir: stateDir, HeaderPrefix: flags.prefix}))
}

// run is the life of a formation alone: the steps that a supervisor asks for.
func run(ctx context.Context, f *formation.Formation, req control.LoadRequest) error {
	if _, err := f.Load(ctx, req, func(string) {}); err != nil {
		return err
	}
	if err := f.Serve(ctx); err != nil {
		_ = f.Stop(ctx)
		return err
	}
	<-ctx.Done()
	quiet := context.WithoutCancel(ctx)
	if _, err := f.Drain(quiet, control.DrainRequest{Timeout: drainTimeout}); err != nil {
		_ = f.Stop(quiet)
		return fmt.Errorf("drain: %w", err)
	}
	if err := f.Stop(quiet); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return context.Cause(ctx)
}

func listen(ctx context.Context, cmd *cobra.Command, m *manifest.Formation, flags aloneFlags) (net.Listener, error) {
	host, port := m.Server.Host, m.Server.Port
	if flags.host != "" {
		host = flags.host
	}
	if cmd.Flags().Changed("port") {
		port = flags.port
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "formation %s is serving on http://%s\n", m.ID, l.Addr())
	return l, nil
}

// lockState keeps a second process off the same store: on SQLite one process
// at a time works on a formation that nobody supervises.
func lockState(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	path := filepath.Join(dir, ".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another process runs the formation in %s (it holds %s): stop it first, or give --state-dir", dir, path)
	}
	return func() { filelock.Release(f) }, nil
}

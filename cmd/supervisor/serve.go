package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/supervisor"
)

func (a *app) serveCommand() *cobra.Command {
	var listen, level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the supervisor in the foreground until it is interrupted",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			if listen != "" {
				if _, _, err := net.SplitHostPort(listen); err != nil {
					return usagef("--listen %q: it must be host:port, such as 127.0.0.1:7890", listen)
				}
				h.cfg.Listen = listen
			}
			if level != "" {
				h.cfg.Logging.Level = level
			}
			if _, err := zerolog.ParseLevel(h.cfg.Logging.Level); err != nil {
				return usagef("--log-level %q: it must be trace, debug, info, warn, error or disabled", level)
			}
			log, closer, err := h.cfg.OpenLog(
				supervisor.Terminal{Writer: a.out, Person: a.outTTY}, supervisor.Terminal{Writer: a.err, Person: a.errTTY})
			if err != nil {
				return err
			}
			defer closer.Close()
			h.cfg.Log = log
			return a.serve(cmd.Context(), h)
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address of the management API, host:port (default: from the settings)")
	cmd.Flags().StringVar(&level, "log-level", "", "trace, debug, info, warn or error (default: from the settings)")
	return cmd
}

// serve runs the supervisor and leaves its address for client commands.
func (a *app) serve(ctx context.Context, h *home) error {
	h.cfg.LookupEnv = a.lookupEnv
	program, err := os.Executable() // now: a new program will lie at the same path
	if err != nil {
		return fmt.Errorf("find the own program: %w", err)
	}
	h.cfg.Self = supervisor.Self{Path: program, Args: os.Args, Env: os.Environ()}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	h.cfg.Reload = hangup
	left := false
	h.cfg.OnReady = func(r supervisor.Ready) {
		left = true
		if err := h.leaveAddress(r); err != nil {
			h.cfg.Log.Error().Err(err).Msg("client commands will use the address of the settings")
			return
		}
		h.cfg.Log.Info().Str("file", h.addressPath()).Msg("the address is left for client commands")
	}
	s, err := supervisor.New(h.cfg)
	if err != nil {
		return err
	}
	err = s.Run(ctx)
	if left {
		err = errors.Join(err, os.Remove(h.addressPath()))
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && !left:
		return &stopError{&hint{err, "stop what has it, which may be another supervisor, or choose another address with --listen or server.port"}}
	case err != nil:
		return &stopError{err}
	}
	return nil
}

// leaveAddress writes the address for servedAt: a new file each time, by which
// reload tells that the new image is ready.
func (h *home) leaveAddress(r supervisor.Ready) error {
	if err := os.MkdirAll(filepath.Dir(h.addressPath()), 0o700); err != nil {
		return fmt.Errorf("leave the address: %w", err)
	}
	address := r.Addr.String()
	if r.TLS {
		address = "https://" + address
	}
	// The home has one supervisor, so the name can be the same each time: what a
	// killed one left is written over.
	temp := h.addressPath() + ".new"
	if err := os.WriteFile(temp, []byte(address+"\n"), 0o600); err != nil {
		return fmt.Errorf("leave the address: %w", err)
	}
	if err := os.Rename(temp, h.addressPath()); err != nil {
		return fmt.Errorf("leave the address: %w", err)
	}
	return nil
}

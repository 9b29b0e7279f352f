package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

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
				h.cfg.Listen = listen
			}
			if level != "" {
				h.cfg.Logging.Level = level
			}
			parsed, err := zerolog.ParseLevel(h.cfg.Logging.Level)
			if err != nil {
				return usagef("--log-level %q: it must be trace, debug, info, warn, error or disabled", level)
			}
			h.cfg.Log = a.logger().Level(parsed)
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
	left := false
	h.cfg.OnReady = func(r supervisor.Ready) {
		left = true
		if err := h.leaveAddress(r.Addr); err != nil {
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
	if err != nil {
		return &stopError{err}
	}
	return nil
}

// leaveAddress writes the address for servedAt.
func (h *home) leaveAddress(addr netip.AddrPort) error {
	if err := os.MkdirAll(filepath.Dir(h.addressPath()), 0o700); err != nil {
		return fmt.Errorf("leave the address: %w", err)
	}
	if err := os.WriteFile(h.addressPath(), []byte(addr.String()+"\n"), 0o600); err != nil {
		return fmt.Errorf("leave the address: %w", err)
	}
	return nil
}

// logger writes JSON lines, and text for a person at a terminal.
func (a *app) logger() zerolog.Logger {
	log := zerolog.New(a.err)
	if a.errTTY {
		log = zerolog.New(zerolog.ConsoleWriter{Out: a.err})
	}
	return log.With().Timestamp().Logger()
}

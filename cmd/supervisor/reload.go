package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor"
)

// reloadTime is how long a reload may take beside the time for open requests.
const reloadTime = 30 * time.Second

func (a *app) reloadCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Let the running supervisor take its new program and settings; formations run on",
		Long: `Let the running supervisor take its new program and settings; formations run on.

The supervisor of the home on this machine executes its program anew, in the
same process, with its sockets: no request is refused and no formation is
restarted. The settings are checked before. Requests that are open get the
drain time (formations.drain_timeout) to end.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			if _, err := supervisor.CheckConfig(h.configPath()); err != nil {
				return fmt.Errorf("the settings cannot be used, nothing was reloaded:\n%w", err)
			}
			if timeout <= 0 {
				timeout = h.reloadTimeout()
			}
			t, err := a.targetOfHome(h.dir)
			if err != nil {
				return err
			}
			return t.advise(a.reload(cmd.Context(), h, timeout))
		}),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait for the new program (default: the drain time and half a minute)")
	return cmd
}

// reloadTimeout is how long a reload may take by the settings: those that run
// bound how long open requests are waited for.
func (h *home) reloadTimeout() time.Duration { return h.cfg.Formations.DrainTimeout + reloadTime }

// reload signals the supervisor and waits until it has told how it went.
func (a *app) reload(ctx context.Context, h *home, timeout time.Duration) error {
	process, err := findRunning(h.cfg.Home)
	if err != nil {
		return err
	}
	defer process.close()
	before, err := a.healthOf(ctx, h)
	if err != nil {
		return err
	}
	last, err := supervisor.LastReload(h.cfg.Home)
	if err != nil {
		return err
	}
	if err := process.signal(syscall.SIGHUP); err != nil {
		return err
	}
	now := last
	err = a.await(ctx, min(a.pause, 100*time.Millisecond), timeout, func() (bool, error) {
		if !process.alive() {
			return false, &client.Error{Name: client.NameUnreachable, Message: fmt.Sprintf("the supervisor, process %d, has ended", process.pid)}
		}
		now, err = supervisor.LastReload(h.cfg.Home)
		return !now.At.Equal(last.At), err
	})
	switch {
	case errors.Is(err, errTimeout):
		return fmt.Errorf("the supervisor did not take the reload within %s: process %d may run on as it was, its log says more", timeout, process.pid)
	case err != nil:
		return err
	case !now.Done:
		return fmt.Errorf("the reload was refused, process %d runs on as it was: %s", process.pid, now.Message)
	}
	after, err := a.healthOf(ctx, h)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(map[string]any{
			"pid": process.pid, "version_before": before.Version, "version": after.Version, "formations": after.Formations,
		})
	}
	return a.result("reloaded: process %d, version %s (before: %s), %s", process.pid, after.Version, before.Version, count(after.Formations, "formation"))
}

// healthOf asks the supervisor of a home how it is.
func (a *app) healthOf(ctx context.Context, h *home) (*client.ServerHealth, error) {
	t, err := a.targetOfHome(h.dir)
	if err != nil {
		return nil, err
	}
	s, err := t.client()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Health(ctx)
}

// errTimeout is a wait that took too long.
var errTimeout = errors.New("it took too long")

// await looks every now and then until done says so.
func (a *app) await(ctx context.Context, every, timeout time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return errTimeout
		case <-tick.C:
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
	}
}

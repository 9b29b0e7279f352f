package supervisor

import (
	"context"
	"fmt"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// statusEvery is how often systemd is told how the fleet is.
const statusEvery = 10 * time.Second

// The messages of sd_notify(3). Without systemd they go nowhere.

func (s *Supervisor) tellSystemd(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		s.log.Warn().Err(err).Msg("systemd does not hear us")
	}
}

// reloading must be followed by READY=1, from this program or the next.
func (s *Supervisor) tellReloading() {
	s.tellSystemd(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
}

// pulse tells systemd how the fleet is and, when it watches us, that we live:
// until ctx ends, and only while alive answers. A supervisor whose registry or
// fleet hangs is restarted; the formations go on.
func (s *Supervisor) pulse(ctx context.Context, alive func(context.Context) (status string, err error)) {
	if _, watched := s.cfg.LookupEnv("NOTIFY_SOCKET"); !watched {
		return
	}
	watchdog, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn().Err(err).Msg("systemd's watchdog is not understood")
	}
	every := statusEvery
	if watchdog > 0 {
		every = min(every, watchdog/3)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := ""
	for {
		status, err := within(ctx, every, alive)
		switch {
		case err != nil && ctx.Err() == nil:
			s.log.Error().Err(err).Msg("the supervisor does not answer itself")
		case err == nil && watchdog > 0:
			s.tellSystemd(sd.SdNotifyWatchdog)
		}
		if err == nil && status != last {
			last = status
			s.tellSystemd("STATUS=" + status)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// within asks and waits no longer than limit. What hangs is left behind: it is
// what the watchdog is for.
func within(ctx context.Context, limit time.Duration, ask func(context.Context) (string, error)) (string, error) {
	type answer struct {
		text string
		err  error
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got := make(chan answer, 1)
	go func() {
		text, err := ask(ctx)
		got <- answer{text, err}
	}()
	select {
	case a := <-got:
		return a.text, a.err
	case <-ctx.Done():
		return "", fmt.Errorf("no answer within %s: %w", limit, ctx.Err())
	}
}

// alive asks the registry and the fleet, whose locks every operation needs.
func (h *house) alive(ctx context.Context) (string, error) {
	rows, err := h.registry.List(ctx)
	if err != nil {
		return "", fmt.Errorf("ask the registry: %w", err)
	}
	n := h.deploy.Counts()
	return fmt.Sprintf("%d formations: %d running, %d stopped, %d crashed", len(rows), n.Running, n.Stopped, n.Crashed), nil
}

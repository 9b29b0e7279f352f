package agent

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// admit counts the run among those of all users (reference runtime.md 7.5), or
// refuses it. A run that had begun before its process died was counted then.
func (r *run) admit(ctx context.Context) error {
	limits := r.agent.rate
	if limits == nil {
		return nil
	}
	if _, begun := r.task.Journal.Done("model/0"); begun {
		return nil
	}
	cfg := &r.agent.cfg
	var asked func(time.Time) ([]time.Time, error)
	if cfg.Asked != nil {
		asked = func(since time.Time) ([]time.Time, error) { return cfg.Asked(ctx, cfg.Agent.ID, since) }
	}
	now := cfg.Now()
	if err := limits.Recall(now, asked); err != nil {
		cfg.Log.Warn().Err(err).Str("agent", cfg.Agent.ID).Msg("what the agent answered before can't be counted; its rate limits count from now on")
	}
	no, ok := limits.Take(now)
	if ok {
		return nil
	}
	return fault.Errorf(fault.RateLimited, "RATE_LIMITED", "agent %s takes %s; try again in %d s",
		cfg.Agent.ID, no.Limit("requests"), no.Seconds()).With("retry_after", no.Seconds())
}

package deploy

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// handover is a version about to take a formation's port over.
type handover struct {
	f        *formation
	t        *track
	spec     process.Spec
	spawning Stage
	stopping Stage
	version  registry.Version
}

// handOver launches the version and makes it current: beside the process that
// serves, or alone when the formation is down. On an error the formation is as
// it was.
func (s *Service) handOver(ctx context.Context, h handover) error {
	commit := func(ctx context.Context) error {
		return h.f.commit(ctx, func(ctx context.Context) error { return s.promote(ctx, h) })
	}
	if err := h.f.bind(); err != nil {
		return err
	}
	err := h.f.mgr.Restart(ctx, h.spec, h.launch)
	if err == nil {
		err = s.onProbation(ctx, h)
	}
	if err == nil {
		err = commit(ctx)
	}
	return err
}

// promote makes the version current, with the record that it needs no init any
// more.
func (s *Service) promote(ctx context.Context, h handover) error {
	if !h.version.InitDone {
		if err := s.cfg.Registry.MarkInit(ctx, h.f.id, h.version.Serial); err != nil {
			return s.recordError(err)
		}
	}
	return s.recordError(s.cfg.Registry.Promote(ctx, h.f.id, h.version.Serial))
}

// launch adapts the track to a launch that stands alone.
func (h *handover) launch(stage, message string, attempt, attempts int) {
	if Stage(stage) == StageSpawning {
		stage = string(h.spawning)
	}
	h.t.launch(stage, message, attempt, attempts)
}

// onProbation returns nil when the process that serves has done so for the
// probation time without a fault.
func (s *Service) onProbation(ctx context.Context, h handover) error {
	started := s.now()
	first := h.f.mgr.Snapshot().LaunchID
	over := time.NewTimer(s.cfg.Probation)
	defer over.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	seconds := int((s.cfg.Probation + time.Second - 1) / time.Second)
	for n := 1; s.cfg.Probation > 0; {
		h.f.mu.Lock()
		changed := h.f.changed
		h.f.mu.Unlock()
		snap := h.f.mgr.Snapshot() // after changed was taken, so that no event is missed
		switch {
		case snap.LaunchID != first || snap.Status != process.StatusRunning:
			return errProbation(h.spec.NotReady, s.now().Sub(started), snap.LastExit)
		case snap.Healthy != nil && !*snap.Healthy:
			return fault.Errorf(h.spec.NotReady, "HealthCheckFailed", "Formation became unhealthy %s after its start",
				s.now().Sub(started).Round(time.Millisecond))
		}
		select {
		case <-over.C:
			return nil
		case <-tick.C:
			h.t.report(StageSwapping, "watching the new version", n, seconds)
			n++
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func errProbation(kind fault.Kind, after time.Duration, exit *process.Exit) error {
	text := "its process ended"
	if exit != nil {
		text = exit.Reason
		for _, line := range exit.Stderr {
			text += "\n" + line
		}
	}
	if kind == fault.Internal {
		kind = fault.Failed
	}
	return fault.Errorf(kind, "HealthCheckFailed", "Formation crashed %s after its start: %s", after.Round(time.Millisecond), text)
}

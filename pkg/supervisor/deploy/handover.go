package deploy

import (
	"context"

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

// handOver launches the version and makes it current when it has survived its
// probation: beside the process that serves, or alone when the formation is down.
// On an error the formation is as it was.
func (s *Service) handOver(ctx context.Context, h handover) error {
	return h.f.mgr.Update(ctx, h.spec, process.UpdateOptions{
		Probation: s.cfg.Probation, Spawning: string(h.spawning), Stopping: string(h.stopping), Progress: h.t.launch,
		Commit: func(ctx context.Context) error { return s.commit(ctx, h) },
	})
}

// commit makes the version current, with the record that it needs no init any
// more. A change that was cancelled before does not get there.
func (s *Service) commit(ctx context.Context, h handover) error {
	return h.f.commit(ctx, func(ctx context.Context) error {
		if !h.version.InitDone {
			if err := s.cfg.Registry.MarkInit(ctx, h.f.id, h.version.Serial); err != nil {
				return s.recordError(err)
			}
		}
		return s.recordError(s.cfg.Registry.Promote(ctx, h.f.id, h.version.Serial))
	})
}

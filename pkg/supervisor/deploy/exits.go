package deploy

import (
	"context"
	"errors"

	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Exits returns how the processes of a formation ended, the newest first, at
// most 100; 404 when there is no such formation.
func (s *Service) Exits(ctx context.Context, id string) ([]registry.Exit, error) {
	if _, err := s.member(id); err != nil {
		return nil, err
	}
	all, err := s.cfg.Registry.Exits(ctx, id, 0)
	return all, registryError(id, err)
}

// noteExit keeps the end of a process in the history. Every end is told by
// exactly one of these kinds.
func (s *Service) noteExit(ctx context.Context, f *formation, e process.Event) {
	switch e.Kind {
	case process.EventRestarting, process.EventCrashed, process.EventStopped, process.EventRolledBack:
	default:
		return
	}
	exit := registry.Exit{
		Time: e.Exit.Time, Code: e.Exit.Code, Signal: e.Exit.Signal, Reason: e.Exit.Reason,
		Served: e.Exit.Served, Stderr: e.Exit.Stderr,
	}
	f.mu.Lock()
	if exit.Served > 0 {
		exit.Launch = f.launch
	}
	f.lastExit = &exit
	f.mu.Unlock()
	err := s.cfg.Registry.AddExit(ctx, f.id, exit)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		s.log.Error().Err(err).Str("formation", f.id).Msg("the end of a process is not recorded")
	}
}

// recallExit restores what an earlier supervisor saw.
func (s *Service) recallExit(ctx context.Context, f *formation) error {
	all, err := s.cfg.Registry.Exits(ctx, f.id, 1)
	if err != nil || len(all) == 0 {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastExit = &all[0]
	return nil
}

// processExit is an exit of the history as a Snapshot has it.
func processExit(e registry.Exit) *process.Exit {
	return &process.Exit{Time: e.Time, Code: e.Code, Signal: e.Signal, Reason: e.Reason, Served: e.Served, Stderr: e.Stderr}
}

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

// noteExit keeps the end of a process in the history. Every end is told by one of
// these kinds; one from which the restart policy goes on again is told twice.
func (s *Service) noteExit(ctx context.Context, f *formation, e process.Event) {
	switch e.Kind {
	case process.EventRestarting, process.EventCrashed, process.EventStopped, process.EventRolledBack, process.EventReplaced:
	default:
		return
	}
	exit := registry.Exit{
		Time: e.Exit.Time, Code: e.Exit.Code, Signal: e.Exit.Signal, Reason: e.Exit.Reason,
		Served: e.Exit.Served, Stderr: e.Exit.Stderr, Launch: e.Exit.Launch,
	}
	f.mu.Lock()
	told := same(f.lastExit, exit) || same(f.noted, exit)
	f.noted = &exit
	if e.Kind != process.EventReplaced {
		f.lastExit = &exit
	}
	f.mu.Unlock()
	if told {
		return
	}
	err := s.cfg.Registry.AddExit(ctx, f.id, exit)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		s.log.Error().Err(err).Str("formation", f.id).Msg("the end of a process is not recorded")
	}
}

func same(a *registry.Exit, b registry.Exit) bool {
	return a != nil && a.Launch == b.Launch && a.Time.Equal(b.Time)
}

// recallExit restores what an earlier supervisor saw.
func (s *Service) recallExit(ctx context.Context, f *formation) error {
	all, err := s.cfg.Registry.Exits(ctx, f.id, 0)
	if err != nil {
		return err
	}
	for _, exit := range all {
		if !process.Replaced(exit.Reason) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lastExit = &exit
			return nil
		}
	}
	return nil
}

// processExit is an exit of the history as a Snapshot has it.
func processExit(e registry.Exit) *process.Exit {
	return &process.Exit{Time: e.Time, Code: e.Code, Signal: e.Signal, Reason: e.Reason, Served: e.Served, Stderr: e.Stderr}
}

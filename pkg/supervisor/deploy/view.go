package deploy

import (
	"context"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// View is all that is known about one formation: what is recorded and how its
// process is at this moment.
type View struct {
	registry.Formation
	Process process.Snapshot
	Uptime  time.Duration // of the serving process, 0 when there is none
	// LastExit says how the last process ended, "" when none has; an earlier
	// supervisor may have seen it.
	LastExit string
}

// Get returns one formation, 404 when there is none.
func (s *Service) Get(ctx context.Context, id string) (View, error) {
	f, err := s.member(id)
	if err != nil {
		return View{}, err
	}
	row, err := s.cfg.Registry.Get(ctx, id)
	if err != nil {
		return View{}, registryError(id, err)
	}
	if row.State == registry.Deleting {
		return View{}, errNotFound(id)
	}
	return s.view(f, row), nil
}

// List returns all formations by id, or those whose process has the given
// status.
func (s *Service) List(ctx context.Context, status process.Status) ([]View, error) {
	rows, err := s.cfg.Registry.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list formations: %w", err)
	}
	views := make([]View, 0, len(rows))
	for _, row := range rows {
		f, err := s.member(row.ID)
		if err != nil || row.State == registry.Deleting {
			continue
		}
		if v := s.view(f, row); status == "" || v.Process.Status == status {
			views = append(views, v)
		}
	}
	return views, nil
}

func (s *Service) view(f *formation, row registry.Formation) View {
	v := View{Formation: row, Process: f.mgr.Snapshot()}
	v.RestartCount = v.Process.RestartCount
	if v.Process.Status == process.StatusStopped && f.isComing() {
		v.Process.Status = process.StatusStarting // its process comes next
	}
	f.mu.Lock()
	last := f.lastExit
	f.mu.Unlock()
	if last != nil {
		v.LastExit = last.Reason
		if v.Process.LastExit == nil {
			v.Process.LastExit = processExit(*last)
		}
	}
	if !v.Process.StartedAt.IsZero() {
		v.Uptime = s.now().Sub(v.Process.StartedAt)
	}
	return v
}

// Counts are numbers about the whole fleet.
type Counts struct {
	Total, Running, Stopped, Crashed, Healthy int
}

// Counts looks at all processes; it does not read the registry.
func (s *Service) Counts() Counts {
	var c Counts
	for _, f := range s.members() {
		c.Total++
		snap := f.mgr.Snapshot()
		switch snap.Status {
		case process.StatusRunning:
			c.Running++
		case process.StatusStopped:
			c.Stopped++
		case process.StatusCrashed:
			c.Crashed++
		case process.StatusStarting, process.StatusStopping, process.StatusRestarting:
		}
		if snap.Healthy != nil && *snap.Healthy {
			c.Healthy++
		}
	}
	return c
}

package process

import (
	"context"
	"time"
)

// UpdateOptions says how an update goes.
type UpdateOptions struct {
	// Probation is how long the old child stands by after the switch; 0 skips it.
	Probation time.Duration
	// Spawning and Stopping are the names of the stages that Progress reports for
	// the new child's start and the old one's end.
	Spawning, Stopping string
	Progress           Progress // may be nil
	// Commit makes the new version the current one. It is called when the new
	// child has survived its probation; its error brings the old one back. It must
	// not call the Manager, except Snapshot. May be nil.
	Commit func(context.Context) error
}

// Update replaces the child by one of spec.
func (m *Manager) Update(ctx context.Context, spec Spec, o UpdateOptions) error {
	if err := m.Restart(ctx, spec, o.Progress); err != nil {
		return err
	}
	if o.Commit == nil {
		return nil
	}
	return o.Commit(ctx)
}

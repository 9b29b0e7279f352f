package process

import "time"

// The owner goroutine changes the state that others see through these.

// set changes the snapshot.
func (m *Manager) set(change func(*Snapshot)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.snap)
}

// notify tells the owner what happened.
func (m *Manager) notify(e Event) {
	if m.cfg.Notify == nil {
		return
	}
	m.mu.Lock()
	e.Snapshot = m.snap
	if m.ep != nil {
		e.FormationID = m.ep.spec.ID
	}
	m.mu.Unlock()
	e.Time = m.now()
	m.cfg.Notify(e)
}

// serving records that c accepts; then the supervisor itself need not.
func (m *Manager) serving(c *child, kind EventKind) {
	m.outage.end()
	m.mu.Lock()
	healthy := true
	m.child = c
	s := &m.snap
	s.Status, s.PID, s.LaunchID, s.Adopted = StatusRunning, c.rec.PID, c.rec.LaunchID, c.adopted
	s.StartedAt, s.Healthy, s.LastHealth = c.serving, &healthy, m.now()
	if !c.adopted {
		s.Warnings, s.Agents = c.loaded.Warnings, c.loaded.Agents
	}
	m.mu.Unlock()
	m.log.Info().Int("pid", c.rec.PID).Str("launch", c.rec.LaunchID).Bool("adopted", c.adopted).Msg("the child serves")
	m.notify(Event{Kind: kind})
}

// noteHealth records a reading; answered says that it is one.
func (m *Manager) noteHealth(ready, answered bool, at time.Time) {
	m.set(func(s *Snapshot) {
		s.Healthy = &ready
		if answered {
			s.LastHealth = at
		}
	})
}

// gone records that the child has ended.
func (m *Manager) gone(exit Exit, next Status) {
	m.set(func(s *Snapshot) {
		s.Status, s.LastExit = next, &exit
		m.noProcess(s)
	})
}

// noProcess clears what belongs to a living child; mu is held.
func (m *Manager) noProcess(s *Snapshot) {
	m.child = nil
	s.PID, s.LaunchID, s.Adopted, s.StartedAt, s.Healthy = 0, "", false, time.Time{}, nil
}

// settle records a status without a child.
func (m *Manager) settle(status Status) {
	m.set(func(s *Snapshot) {
		s.Status = status
		m.noProcess(s)
	})
}

// crashed records that no child comes any more: from now on the supervisor
// answers on the port.
func (m *Manager) crashed(exit Exit) {
	m.gone(exit, StatusCrashed)
	m.outage.now()
	m.notify(Event{Kind: EventCrashed, Exit: exit})
}

// takeFresh tells whether this launch empties the logs: only the first of a
// start may.
func (m *Manager) takeFresh() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := m.fresh
	m.fresh = false
	return fresh
}

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
		e.FormationID = m.ep.id
	}
	m.mu.Unlock()
	e.Time = m.now()
	m.cfg.Notify(e)
}

// serving records that c accepts; then the supervisor itself need not.
func (m *Manager) serving(c *child) {
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
}

// noteHealth records a reading of the serving child; answered says that it is
// one. That of a child which stands by is nobody's business.
func (m *Manager) noteHealth(c *child, ready, answered bool) {
	at := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.child != c {
		return
	}
	m.snap.Healthy = &ready
	if answered {
		m.snap.LastHealth = at
	}
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

// Refused records that a launch failed before it came to a process: a stopped
// formation, which should run, is crashed then, for this reason.
func (m *Manager) Refused(why error) {
	exit := Exit{Time: m.now(), Code: -1, Reason: why.Error()}
	m.set(func(s *Snapshot) {
		if s.Status == StatusStopped {
			s.Status, s.LastExit = StatusCrashed, &exit
		}
	})
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

// hold notes that the process of a launch is in our hands: it is neither a
// leftover nor to be fenced.
func (m *Manager) hold(launchID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[launchID] = struct{}{}
}

// drop takes hold back.
func (m *Manager) drop(launchID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, launchID)
}

// held tells whether the launch is in our hands.
func (m *Manager) held(launchID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.live[launchID]
	return ok
}

func (m *Manager) holdsNone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live) == 0
}

package telemetry

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Level says how much an event matters.
type Level int8

// The levels, as the log streams name them.
const (
	Debug Level = iota - 1
	Info        // the zero value
	Warning
	Error
	Critical
)

var levelNames = [...]string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}

// String returns the name of the level, DEBUG to CRITICAL.
func (l Level) String() string {
	if l < Debug || l > Critical {
		return fmt.Sprintf("LEVEL(%d)", int8(l))
	}
	return levelNames[l-Debug]
}

// ParseLevel reads the name of a level in capitals.
func ParseLevel(name string) (Level, bool) {
	for i, known := range levelNames {
		if known == name {
			return Debug + Level(i), true
		}
	}
	return 0, false
}

// Event is something that happened in a formation.
type Event struct {
	Level Level
	// Name says what: a family and a word, as "chat.completed".
	Name                                  string
	RequestID, UserID, SessionID, AgentID string
	Message                               string         // for people
	Data                                  map[string]any // for programs; must not change afterwards
	Time                                  time.Time      // now when it is zero
	ID                                    string         // made when it is ""
}

// Bounds of what observers get.
const (
	maxMessage = 2 << 10 // bytes of an event's message
	maxData    = 8 << 10 // bytes of an event's data as JSON
	// DefaultBuffer is how many events wait for an observer that asks for none.
	DefaultBuffer = 256
)

// subscribers are the observers of a hub. The common case, that there are none,
// costs one atomic load.
type subscribers struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*Subscription]
}

// Subscription is one observer's view of the events.
type Subscription struct {
	hub    *Hub
	match  func(*Event) bool
	events chan *Event
	lost   atomic.Int64
	done   chan struct{}
	once   sync.Once
}

// Subscribe begins to gather the events that match, nil for all, until Close.
// match is called by who emits and must be quick; at most buffer events wait, 0
// means DefaultBuffer.
func (h *Hub) Subscribe(buffer int, match func(*Event) bool) *Subscription {
	if buffer <= 0 {
		buffer = DefaultBuffer
	}
	s := &Subscription{hub: h, match: match, events: make(chan *Event, buffer), done: make(chan struct{})}
	h.subs.change(func(list []*Subscription) []*Subscription { return append(list, s) })
	return s
}

// change replaces the list, so that readers need no lock.
func (s *subscribers) change(edit func([]*Subscription) []*Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var have []*Subscription
	if p := s.list.Load(); p != nil {
		have = append(have, *p...)
	}
	if have = edit(have); len(have) == 0 {
		s.list.Store(nil)
		return
	}
	s.list.Store(&have)
}

// Events gives the events. It is never closed.
func (s *Subscription) Events() <-chan *Event { return s.events }

// Done is closed when the hub has dismissed its observers.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Lost returns how many events found no room since it was asked last.
func (s *Subscription) Lost() int64 { return s.lost.Swap(0) }

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.subs.change(func(list []*Subscription) []*Subscription {
		kept := list[:0]
		for _, other := range list {
			if other != s {
				kept = append(kept, other)
			}
		}
		return kept
	})
}

// Dismiss tells those who observe now that they are to leave, and come back to
// the process that takes over.
func (h *Hub) Dismiss() {
	if h == nil {
		return
	}
	if list := h.subs.list.Load(); list != nil {
		for _, s := range *list {
			s.once.Do(func() { close(s.done) })
		}
	}
}

// Listening tells whether anybody observes.
func (h *Hub) Listening() bool { return h != nil && h.subs.list.Load() != nil }

// Emit tells an event to those who observe. It never waits for them.
func (h *Hub) Emit(e Event) {
	if !h.Listening() {
		return
	}
	h.tell(&e, false)
}

// tell gives e to those whom it matches; clean tells that it holds no secrets.
func (h *Hub) tell(e *Event, clean bool) {
	list := h.subs.list.Load()
	if list == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = h.cfg.Now()
	}
	ready := false
	for _, s := range *list {
		if s.match != nil && !s.match(e) {
			continue
		}
		if !ready {
			h.prepare(e, clean)
			ready = true
		}
		select {
		case s.events <- e:
		default:
			s.lost.Add(1)
			h.metrics.lose()
		}
	}
}

// prepare makes an event fit to be shown.
func (h *Hub) prepare(e *Event, clean bool) {
	if e.ID == "" && h.cfg.NewID != nil {
		e.ID = h.cfg.NewID("evt_")
	}
	if clean {
		e.Message = clip(e.Message, maxMessage)
		return
	}
	e.Message = h.cut(e.Message, maxMessage)
	if len(e.Message) <= maxMessage {
		e.Message = h.clean(e.Message)
	}
	if len(e.Data) > 0 {
		e.Data = h.cleanData(e.Data)
	}
}

// cleanData returns data without secrets and within its bound.
func (h *Hub) cleanData(data map[string]any) map[string]any {
	p, err := json.Marshal(data)
	if err == nil && h.cfg.Redact != nil {
		p = h.cfg.Redact.Bytes(p)
	}
	switch {
	case err != nil:
		return map[string]any{"not_shown": clip(err.Error(), maxError)}
	case len(p) > maxData:
		return map[string]any{"not_shown": fmt.Sprintf("%d bytes", len(p))}
	}
	var out map[string]any
	if err := json.Unmarshal(p, &out); err != nil {
		return map[string]any{"not_shown": "not readable without its secrets"}
	}
	return out
}

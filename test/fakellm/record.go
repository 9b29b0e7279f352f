package fakellm

import (
	"context"
	"fmt"
	"slices"
)

// Call is one model call that the server was asked.
type Call struct {
	Path          string `json:"path"`
	Authorization string `json:"authorization,omitempty"`
	// Version is the protocol version that the caller names, if any.
	Version string `json:"version,omitempty"`
	Model   string `json:"model"`
	Purpose string `json:"purpose,omitempty"`
	Stream  bool   `json:"stream"`
	// User is the last user message.
	User string `json:"user"`
	// Parts are the media of all messages as "kind media/type bytes".
	Parts []string `json:"parts,omitempty"`
	// Body is the request as it came.
	Body string `json:"body,omitempty"`

	body []byte
}

// record keeps the last calls; guarded by Server.mu.
type record struct {
	limit  int
	count  int // calls ever begun
	active int // calls running
	calls  []Call
	probes []Call
	// changed is closed at the next change; nil when nobody waits.
	changed chan struct{}
}

func newRecord(limit int) record { return record{limit: limit} }

func (s *Server) begin(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Purpose == probePurpose {
		s.log.probes = append(s.log.probes, *c)
		return
	}
	s.log.count++
	s.log.active++
	if s.log.limit > 0 {
		if len(s.log.calls) >= 2*s.log.limit {
			s.log.calls = slices.Clone(s.log.calls[s.log.limit:])
		}
		s.log.calls = append(s.log.calls, *c)
	}
	s.log.wake()
}

func (s *Server) finish(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Purpose == probePurpose {
		return
	}
	s.log.active--
	s.log.wake()
}

func (l *record) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Calls returns the calls kept, oldest first.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := max(0, len(s.log.calls)-max(s.log.limit, 0))
	calls := slices.Clone(s.log.calls[from:])
	for i := range calls {
		calls[i].Body = string(calls[i].body)
	}
	return calls
}

// Probes returns the calls that only find out whether a model is there. They are
// neither counted nor among Calls.
func (s *Server) Probes() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log.probes)
}

// Count returns how many calls have begun since the start or the last Reset.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.count
}

// Active returns how many calls are running.
func (s *Server) Active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.active
}

// WaitCount blocks until at least n calls have begun.
func (s *Server) WaitCount(ctx context.Context, n int) error {
	return s.wait(ctx, fmt.Sprintf("%d calls", n), func(l *record) bool { return l.count >= n })
}

// WaitActive blocks until exactly n calls are running.
func (s *Server) WaitActive(ctx context.Context, n int) error {
	return s.wait(ctx, fmt.Sprintf("%d running calls", n), func(l *record) bool { return l.active == n })
}

func (s *Server) wait(ctx context.Context, what string, done func(*record) bool) error {
	for {
		s.mu.Lock()
		ok, changed := done(&s.log), s.log.changed
		if !ok && changed == nil {
			changed = make(chan struct{})
			s.log.changed = changed
		}
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
}

// Release opens a gate for the replies that wait at it and for all later ones.
func (s *Server) Release(gate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gate(gate)
	select {
	case <-g:
	default:
		close(g)
	}
}

// gate returns the gate's channel; the caller holds mu.
func (s *Server) gate(name string) chan struct{} {
	g, ok := s.gates[name]
	if !ok {
		g = make(chan struct{})
		s.gates[name] = g
	}
	return g
}

// Reset forgets rules, gates and calls. Replies that wait at a gate go on waiting
// for that gate's old release, which never comes: they end with their caller.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.gates = nil, map[string]chan struct{}{}
	s.log.count, s.log.calls, s.log.probes = 0, nil, nil
	s.log.wake()
}

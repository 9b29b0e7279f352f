package turn

import (
	"context"
	"sync"
)

// sessionLocks lets one turn of a session run at a time, so that each sees the
// answer of the one before. Waiters are served in the order they came.
type sessionLocks struct {
	mu    sync.Mutex // guards queue
	queue map[sessionKey][]chan struct{}
}

type sessionKey struct{ user, session string }

// queued is a place in the queue of a session.
type queued struct {
	locks *sessionLocks
	key   sessionKey
	turn  chan struct{} // closed when it is the first
}

// join takes the last place. The queue's first entry is the session's holder.
func (l *sessionLocks) join(user, session string) *queued {
	key, turn := sessionKey{user, session}, make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		l.queue = make(map[sessionKey][]chan struct{})
	}
	l.queue[key] = append(l.queue[key], turn)
	if len(l.queue[key]) == 1 {
		close(turn)
	}
	return &queued{locks: l, key: key, turn: turn}
}

// wait waits until the session is free; leave is to be called in any case.
func (q *queued) wait(ctx context.Context) error {
	select {
	case <-q.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives the place up, wherever it is, or does nothing without one.
func (q *queued) leave() {
	if q != nil {
		q.locks.remove(q.key, q.turn)
	}
}

// remove takes an entry out, wherever it stands, and wakes the new first one.
func (l *sessionLocks) remove(key sessionKey, turn chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queue[key]
	for i, c := range queue {
		if c != turn {
			continue
		}
		queue = append(queue[:i:i], queue[i+1:]...)
		if len(queue) == 0 {
			delete(l.queue, key)
			return
		}
		l.queue[key] = queue
		if i == 0 {
			close(queue[0])
		}
		return
	}
}

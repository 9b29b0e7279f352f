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

// lock waits until the session is free. The queue's first entry is its holder.
func (l *sessionLocks) lock(ctx context.Context, user, session string) (unlock func(), err error) {
	key, turn := sessionKey{user, session}, make(chan struct{})
	l.mu.Lock()
	if l.queue == nil {
		l.queue = make(map[sessionKey][]chan struct{})
	}
	l.queue[key] = append(l.queue[key], turn)
	if len(l.queue[key]) == 1 {
		close(turn)
	}
	l.mu.Unlock()
	unlock = func() { l.remove(key, turn) }
	select {
	case <-turn:
		return unlock, nil
	case <-ctx.Done():
		unlock()
		return nil, context.Cause(ctx)
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

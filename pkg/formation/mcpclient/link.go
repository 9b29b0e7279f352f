package mcpclient

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// link is the place of a session to a server for one set of credentials. It
// makes one when one is needed, for all that wait, and closes it when nobody
// has used it for the server's connection_ttl.
type link struct {
	s   *server
	key string

	lastWords words // of its process

	mu     sync.Mutex // guards the fields that follow
	now    *session
	making *making // a connection under way
	uses   int     // of now
	idle   *time.Timer
}

type making struct {
	done chan struct{}
	err  error
}

// graceAfterMaking is how long a session waits for the call that it was made
// for, when it is closed after each call.
const graceAfterMaking = 2 * time.Second

// acquire returns a session to use until release.
func (l *link) acquire(ctx context.Context, t *target, user string) (*session, error) {
	for {
		l.mu.Lock()
		if x := l.now; x != nil && !x.lost.Load() {
			l.take()
			x.brief.Store(false)
			l.mu.Unlock()
			return x, nil
		}
		m := l.making
		if m == nil {
			m = &making{done: make(chan struct{})}
			if !l.s.c.begin(func() { l.make(m, t, user) }) {
				l.mu.Unlock()
				return nil, errClosed
			}
			l.making = m
		}
		l.mu.Unlock()
		select {
		case <-m.done:
			if m.err != nil {
				return nil, m.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take counts a use; mu is held.
func (l *link) take() {
	l.uses++
	if l.idle != nil {
		l.idle.Stop()
		l.idle = nil
	}
}

// hold takes a session that is open still, for the background.
func (l *link) hold(x *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != x || x.lost.Load() {
		return false
	}
	l.take()
	return true
}

// make connects. It belongs to no call: who waited may leave, and the next one
// finds what was made.
func (l *link) make(m *making, t *target, user string) {
	limit := max(l.s.c.cfg.Limits.Connect, l.s.file.Timeout)
	ctx, cancel := context.WithTimeoutCause(l.s.c.life, limit, fmt.Errorf("it did not answer within %s", limit))
	defer cancel()
	l.lastWords.clear()
	x, err := l.connect(ctx, t, user)
	if err != nil && l.s.c.life.Err() != nil {
		err = errClosed
	}
	l.connected(err)
	l.mu.Lock()
	l.making = nil
	m.err = err
	if err == nil {
		l.now, l.uses = x, 0
		x.link = l
		x.ready.Store(true)
		l.rest(x, max(l.s.file.ConnectionTTL, graceAfterMaking))
	}
	l.mu.Unlock()
	close(m.done)
	if err != nil {
		l.s.forget(l)
		return
	}
	l.s.c.cfg.Log.Debug().Str("server", l.s.key).Int("pid", x.pid).Msg("connected to a tool server")
	stop := context.AfterFunc(l.s.c.life, x.close)
	defer stop()
	x.await()
	l.over(x)
}

// rest closes the session when it is not used for so long; mu is held.
func (l *link) rest(x *session, after time.Duration) {
	l.idle = time.AfterFunc(after, func() { l.closeIdle(x) })
}

func (l *link) closeIdle(x *session) {
	l.mu.Lock()
	idle := l.now == x && l.uses == 0
	if idle {
		l.now = nil
	}
	l.mu.Unlock()
	if idle {
		x.close()
	}
}

// release gives a session back.
func (l *link) release(x *session) {
	l.mu.Lock()
	if l.now != x {
		l.mu.Unlock()
		x.endRetired()
		return
	}
	l.uses--
	ttl := l.s.file.ConnectionTTL
	stays := ttl > 0 && !x.brief.Load()
	if l.uses == 0 && stays {
		l.rest(x, ttl)
	}
	l.mu.Unlock()
	if !stays {
		l.closeIdle(x)
	}
}

// drop makes the next call connect anew.
func (l *link) drop(x *session) {
	l.mu.Lock()
	if l.now == x {
		l.now = nil
	}
	l.mu.Unlock()
	x.close()
}

// retire makes the next call connect anew, and lets those that are under way on
// the session come to their end.
func (l *link) retire(x *session) {
	l.mu.Lock()
	if l.now == x {
		l.now = nil
	}
	l.mu.Unlock()
	x.retired.Store(true)
	x.endRetired()
}

// over notes the end of a session.
func (l *link) over(x *session) {
	l.mu.Lock()
	if l.now == x {
		l.now = nil
	}
	if l.idle != nil && l.now == nil {
		l.idle.Stop()
		l.idle = nil
	}
	l.mu.Unlock()
	x.close()
	l.s.forget(l)
}

// live returns the session if there is one.
func (l *link) live() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != nil && !l.now.lost.Load() {
		return l.now
	}
	return nil
}

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialTimeout = 5 * time.Second
	// idleTimeout is shorter than the 60 s after which a formation closes an
	// idle connection.
	idleTimeout = 45 * time.Second
	maxIdle     = 256 // connections to one process
	// maxHeader bounds the head of an answer, in bytes.
	maxHeader = 1 << 20
)

// backend holds the idle connections to one process. There is no goroutine for
// them: a connection is looked at when it is taken, and a timer ends those that
// nobody takes.
type backend struct {
	target Target

	mu      sync.Mutex // guards what follows
	idle    []*conn    // the last used last
	sweeper *time.Timer
	retired bool
}

// take returns a connection that lives, an idle one if there is one.
func (b *backend) take(ctx context.Context) (*conn, error) {
	for {
		c := b.pop()
		if c == nil {
			return b.dial(ctx)
		}
		if c.alive() {
			return c, nil
		}
		c.Close()
	}
}

func (b *backend) pop() *conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.idle)
	if n == 0 {
		return nil
	}
	c := b.idle[n-1]
	b.idle[n-1] = nil
	b.idle = b.idle[:n-1]
	return c
}

// put keeps c for the next request.
func (b *backend) put(c *conn) {
	c.since = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired || len(b.idle) >= maxIdle {
		c.Close()
		return
	}
	b.idle = append(b.idle, c)
	if b.sweeper == nil {
		b.sweeper = time.AfterFunc(idleTimeout, b.sweep)
	}
}

// sweep closes connections that were not used for long.
func (b *backend) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, n := time.Now(), 0
	for n < len(b.idle) && now.Sub(b.idle[n].since) >= idleTimeout {
		b.idle[n].Close()
		n++
	}
	b.idle = append(b.idle[:0], b.idle[n:]...)
	if b.sweeper = nil; len(b.idle) > 0 {
		b.sweeper = time.AfterFunc(idleTimeout-now.Sub(b.idle[0].since), b.sweep)
	}
}

// retire closes the idle connections, and those in use when they become idle.
// nil has none.
func (b *backend) retire() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = true
	for _, c := range b.idle {
		c.Close()
	}
	b.idle = nil
	if b.sweeper != nil {
		b.sweeper.Stop()
		b.sweeper = nil
	}
}

func (b *backend) dial(ctx context.Context) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	nc, err := d.DialContext(ctx, "tcp", b.target.Addr)
	if err != nil {
		return nil, err
	}
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	c := &conn{Conn: nc, raw: raw}
	c.r = bufio.NewReaderSize(headLimit{c}, 4<<10)
	return c, nil
}

// conn is one connection to a process; one request at a time uses it.
type conn struct {
	net.Conn
	raw   syscall.RawConn
	r     *bufio.Reader
	since time.Time // it is idle
	// left is how much the head of an answer may still have; below 0 there is no
	// bound.
	left int
}

// headLimit reads from a connection while an answer's head stays within bounds.
type headLimit struct{ c *conn }

var errLongHead = fmt.Errorf("the head of the answer is longer than %d bytes", maxHeader)

// Read reads from the connection.
func (h headLimit) Read(p []byte) (int, error) {
	switch {
	case h.c.left < 0:
		return h.c.Read(p)
	case h.c.left == 0:
		return 0, errLongHead
	}
	n, err := h.c.Read(p[:min(len(p), h.c.left)])
	h.c.left -= n
	return n, err
}

// alive tells that the other end has neither closed nor said anything unasked.
func (c *conn) alive() bool {
	if c.r.Buffered() > 0 {
		return false
	}
	silent := false
	err := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && silent
}

// refused tells that the other end's kernel did not take all that we sent,
// although the reading only saw the connection's end: the socket has an error
// that nobody has asked for, or bytes that were never acknowledged. The end
// itself acknowledges all that came before it.
func (c *conn) refused() bool {
	refused := false
	err := c.raw.Control(func(fd uintptr) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			refused = true
			return
		}
		left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		refused = err == nil && left > 0
	})
	return err == nil && refused
}

// verdict says what is known about a request that got no byte of an answer.
//
// When a process ends, its kernel closes its connections. What it had not read
// by then is answered with a reset; when everything was read, the connection
// ends in the usual way. Bytes that arrive later are refused, which shows behind
// the usual end. So a reset, a refusal, or a write that failed proves that the
// process did not have the whole request; and a formation does nothing before it
// has. The usual end alone proves nothing: the request may have been worked on.
func (c *conn) verdict(read error) (unread bool) {
	if errors.Is(read, io.EOF) {
		return c.refused()
	}
	return errors.Is(read, syscall.ECONNRESET) || errors.Is(read, syscall.EPIPE)
}

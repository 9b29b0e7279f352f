package proxy

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns both ends of a connection: ours, as the proxy keeps it, and that
// of the formation.
func pair(t *testing.T) (*conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &backend{target: Target{Addr: l.Addr().String()}}
	c, err := b.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); other.Close() })
	c.left = maxHeader
	return c, other.(*net.TCPConn)
}

const request = "POST /v1/chat HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"

func TestVerdict_SaysWhetherTheRequestCanHaveBeenRead(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, other net.Conn, n int) {
		if _, err := io.ReadFull(other, make([]byte, n)); err != nil {
			t.Error(err)
		}
	}
	for name, tc := range map[string]struct {
		before, after func(t *testing.T, other *net.TCPConn) // the request is sent
		unread        bool
	}{
		"read whole, then ended":   {after: func(t *testing.T, o *net.TCPConn) { read(t, o, len(request)); o.Close() }},
		"ended without reading":    {after: func(t *testing.T, o *net.TCPConn) { awaitBytes(t, o); o.Close() }, unread: true},
		"ended in the midst of it": {after: func(t *testing.T, o *net.TCPConn) { read(t, o, len(request)-1); o.Close() }, unread: true},
		"ended before it was sent": {before: func(_ *testing.T, o *net.TCPConn) { o.Close() }, unread: true},
		"refused by a reset": {before: func(t *testing.T, o *net.TCPConn) {
			if err := errors.Join(o.SetLinger(0), o.Close()); err != nil {
				t.Error(err)
			}
		}, unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, other := pair(t)
			if tc.before != nil {
				tc.before(t, other)
				awaitEnd(t, c)
			}
			_, err := io.WriteString(c, request)
			if err == nil {
				if tc.after != nil {
					tc.after(t, other)
				}
				_, err = c.r.Peek(1)
			} else if tc.before == nil {
				t.Fatal(err)
			}
			if err == nil {
				t.Fatal("an answer came")
			}
			if got := c.verdict(err); got != tc.unread {
				t.Errorf("after %v: unread = %v, want %v", err, got, tc.unread)
			}
		})
	}
}

// awaitBytes waits until the request lies in the other end's kernel, unread.
func awaitBytes(t *testing.T, other *net.TCPConn) {
	t.Helper()
	raw, err := other.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	poll(t, func() bool {
		waiting := 0
		err := raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
		return err == nil && waiting > 0
	})
}

// awaitEnd waits until the end of the connection has come.
func awaitEnd(t *testing.T, c *conn) {
	t.Helper()
	poll(t, func() bool { return !c.alive() })
}

func poll(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("waited in vain")
		}
	}
}

func TestAlive_AConnectionThatEndedOrSpokeUnaskedIsNotUsed(t *testing.T) {
	t.Parallel()
	c, other := pair(t)
	if !c.alive() {
		t.Fatal("a fresh connection is not alive")
	}
	if _, err := io.WriteString(other, "HTTP/1.1 408 Request Timeout\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, c)
	c, other = pair(t)
	other.Close()
	awaitEnd(t, c)
}

func TestBackend_ConnectionsThatNobodyTakesAreClosed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &backend{target: Target{Addr: l.Addr().String()}}
	var all []*conn
	for range 3 {
		c, err := b.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		b.put(c)
	}
	all[0].since = time.Now().Add(-idleTimeout)
	all[1].since = time.Now().Add(-idleTimeout)
	b.sweep()
	if len(b.idle) != 1 || b.idle[0] != all[2] || b.sweeper == nil {
		t.Errorf("%d connections are left", len(b.idle))
	}
	if err := all[0].SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the oldest connection is open: %v", err)
	}
	if got, err := b.take(t.Context()); err != nil || got != all[2] {
		t.Errorf("took %v, %v", got, err)
	}
	b.retire()
	b.put(all[2])
	if err := all[2].SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) || len(b.idle) != 0 || b.sweeper != nil {
		t.Errorf("a retired backend keeps a connection: %v", err)
	}
}

func TestHeadLimit_AnEndlessHeadIsRefused(t *testing.T) {
	t.Parallel()
	c, other := pair(t)
	go func() {
		for line := []byte("X-Long: " + string(make([]byte, 4000)) + "\r\n"); ; {
			if _, err := other.Write(line); err != nil {
				return
			}
		}
	}()
	if _, err := io.Copy(io.Discard, c.r); !errors.Is(err, errLongHead) {
		t.Errorf("%v, want %v", err, errLongHead)
	}
	other.Close()
}

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// exchange is one request and its answer on a connection. It is the body of the
// answer, at whose end the connection is free for the next one.
type exchange struct {
	c    *conn
	b    *backend
	stop func() bool // ends the watch over the client

	body     io.ReadCloser
	reusable bool

	uploaded chan struct{} // of a large body; nil when there is none
	failed   atomic.Bool   // it could not be sent
	once     sync.Once
}

// CloseWrite ends our side of the connection.
func (c *conn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// readHead reads the head of the answer; those of status 1xx before it go to
// whom they may concern.
func (x *exchange) readHead(r *http.Request) (*http.Response, error) {
	for range maxInformed {
		res, err := http.ReadResponse(x.c.r, r)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the formation changes the protocol, which nobody asked for")
		case res.StatusCode >= http.StatusContinue && res.StatusCode < http.StatusOK:
			if err := informed(r.Context(), res); err != nil {
				return nil, err
			}
			continue
		}
		x.c.left = -1
		return res, nil
	}
	return nil, fmt.Errorf("more than %d answers of status 1xx", maxInformed)
}

// Read reads the answer.
func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		x.end()
	default:
		x.drop()
	}
	return n, err
}

// Close gives up what was not read.
func (x *exchange) Close() error {
	x.drop()
	return nil
}

// end frees the connection, unless something about it is not as it should be.
func (x *exchange) end() {
	x.once.Do(func() {
		left := !x.stop()
		if left || !x.reusable || !x.sent() || x.c.r.Buffered() > 0 {
			x.c.Close()
			return
		}
		x.b.put(x.c)
	})
}

// drop closes the connection.
func (x *exchange) drop() {
	x.once.Do(func() {
		x.stop()
		x.c.Close()
	})
}

// sent tells that the whole request was.
func (x *exchange) sent() bool {
	if x.uploaded == nil {
		return true
	}
	select {
	case <-x.uploaded:
		return !x.failed.Load()
	default:
		return false
	}
}

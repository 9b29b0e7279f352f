package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// dialer makes the connections to one child.
type dialer struct {
	socket string
	pid    int // of the child
	tls    *tls.Config
}

// dial connects, and closes the connection again when another process than the
// child listens on the socket: nothing is said to that one.
func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", d.socket)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn) //nolint:forcetypeassert // the network is "unix"
	peer, err := peerOf(conn)
	if err == nil && int(peer.Pid) != d.pid {
		err = fmt.Errorf("process %d answers in the place of process %d", peer.Pid, d.pid)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// probe makes one connection within ctx, with a TLS handshake when that is asked
// for. go-plugin's own takes no context and leaves goroutines behind when it
// fails, so what can fail is tried first.
func (d *dialer) probe(ctx context.Context, handshake bool) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx)
	if err != nil {
		return fmt.Errorf("connect to the child: %w", err)
	}
	if !handshake {
		return conn.Close()
	}
	cfg := d.tls.Clone()
	cfg.NextProtos = []string{"h2"}
	client := tls.Client(conn, cfg)
	if err := client.HandshakeContext(ctx); err != nil {
		return errors.Join(fmt.Errorf("connect to the child: %w", err), conn.Close())
	}
	return client.Close()
}

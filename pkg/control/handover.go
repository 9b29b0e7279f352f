package control

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// HandoverPrefix begins the name of the sockets on which children hand out their
// listening socket; the sockets of killed children stay behind in the run
// directory and are to be swept.
const HandoverPrefix = "fd-"

// Bounds of the hand-over.
const (
	handoverTimeout = 2 * time.Second // one exchange, on the child's side
	maxHandoverName = 12              // bytes of the launch id in the socket's name: see process.MaxRunDir
	maxToken        = 256             // bytes
	maxPeers        = 8               // exchanges at once
	handoverGranted = 'y'
)

// HandoverPath is where the child of a launch hands out its listening socket.
func HandoverPath(runDir, launchID string) string {
	return filepath.Join(runDir, HandoverPrefix+launchID[:min(len(launchID), maxHandoverName)])
}

// handover hands copies of one descriptor to whoever knows the launch token: a
// new supervisor takes the formation's listening socket back that way, which no
// setting of the system can forbid (copying it out of a living process needs the
// right to trace it). gRPC cannot carry descriptors, so it has its own socket.
type handover struct {
	l     *net.UnixListener
	fd    int
	token []byte
	log   zerolog.Logger
	peers chan struct{} // capacity maxPeers
	done  sync.WaitGroup
}

// newHandover listens at path (0600) and serves until close.
func newHandover(path, token string, fd int, log zerolog.Logger) (*handover, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen for a new supervisor: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the hand-over socket to others: %w", err), l.Close())
	}
	h := &handover{l: l, fd: fd, token: []byte(token), log: log, peers: make(chan struct{}, maxPeers)}
	h.done.Go(h.serve)
	return h, nil
}

// close ends the serving and removes the socket. It waits at most for the
// exchanges that have begun.
func (h *handover) close() {
	_ = h.l.Close()
	h.done.Wait()
}

func (h *handover) serve() {
	for {
		conn, err := h.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor is left: the peer sees its end, the supervisor has another way
			h.log.Warn().Err(err).Msg("a hand-over of the listening socket failed")
			return
		}
		h.peers <- struct{}{}
		h.done.Go(func() {
			defer func() { <-h.peers }()
			defer conn.Close()
			if err := h.answer(conn); err != nil {
				h.log.Warn().Err(err).Msg("the listening socket was not handed over")
			}
		})
	}
}

// answer gives the descriptor to a peer of our own user, or root, that sends the
// launch token and nothing else.
func (h *handover) answer(conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return err
	}
	peer, err := peerOf(conn)
	if err != nil {
		return err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d of user %d asks for it", peer.Pid, peer.Uid)
	}
	got, err := io.ReadAll(io.LimitReader(conn, maxToken))
	if err != nil {
		return fmt.Errorf("read the launch token: %w", err)
	}
	if subtle.ConstantTimeCompare(got, h.token) != 1 {
		return fmt.Errorf("process %d sent a wrong launch token", peer.Pid)
	}
	_, _, err = conn.WriteMsgUnix([]byte{handoverGranted}, unix.UnixRights(h.fd), nil)
	return err
}

// peerOf returns the credentials of the process at the other end: of a dialled
// connection, of the one that began to listen.
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var perr error
	if err := rc.Control(func(fd uintptr) {
		peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if perr != nil {
		return nil, fmt.Errorf("ask who is at the other end: %w", perr)
	}
	return peer, nil
}

// Handover names the child that is to hand its listening socket over.
type Handover struct {
	RunDir   string
	LaunchID string
	Token    string
	PID      int // of the child, already proven
}

// TakeListener asks a living child for its listening socket. The descriptor is
// the caller's, close-on-exec; whether it listens, and where, is for the caller
// to check. ctx bounds the exchange. A child that hangs does not answer.
func TakeListener(ctx context.Context, from Handover) (int, error) {
	fd, err := takeListener(ctx, from)
	if err != nil {
		return -1, fmt.Errorf("take over the listening socket of process %d: %w", from.PID, err)
	}
	return fd, nil
}

func takeListener(ctx context.Context, from Handover) (int, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", HandoverPath(from.RunDir, from.LaunchID))
	if err != nil {
		return -1, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn := c.(*net.UnixConn) //nolint:forcetypeassert // the network is "unix"
	peer, err := peerOf(conn)
	if err != nil {
		return -1, err
	}
	if int(peer.Pid) != from.PID { // before the token leaves our hands
		return -1, fmt.Errorf("process %d answers in its place", peer.Pid)
	}
	if _, err := conn.Write([]byte(from.Token)); err != nil {
		return -1, err
	}
	if err := conn.CloseWrite(); err != nil {
		return -1, err
	}
	// Room for more than one, so that none is cut off and lost open.
	said, rights := make([]byte, 2), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(said, rights)
	if err != nil {
		return -1, fmt.Errorf("it refused or did not answer: %w", err)
	}
	fds, err := descriptors(rights[:oobn])
	if err == nil && n == 1 && said[0] == handoverGranted && len(fds) == 1 {
		return fds[0], nil
	}
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return -1, errors.Join(fmt.Errorf("it sent %d bytes and %d descriptors, want one of each", n, len(fds)), err)
}

// descriptors returns what a message carried. ReadMsgUnix has made them
// close-on-exec.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envBridge makes the program a bridge instead of a supervisor.
const envBridge = "SVC_BRIDGE"

// The descriptors of a bridge.
const (
	fdControl = 3 // its end of a socket pair
	fdDoor    = 4 // the management API's listening socket
	fdStderr  = 5 // what becomes its descriptor 2 when it has begun
)

const (
	bridgeVersion = 1
	// bridgeStart bounds the time until a bridge serves.
	bridgeStart = 20 * time.Second
	maxMessage  = 1 << 20 // bytes of one message between the two
	relieved    = "relieved"
	hatchName   = "hatch" // in the run directory
)

// A bridge is a second process of the (new) program, which answers on the
// management API's socket while this process finishes its requests, is replaced
// and looks for its children:
//
//	this process   serves ─┬─ drains ── becomes the new program ─┬─ serves …
//	bridge                 └─ serves ────────────────────────────┴─ drains, ends
//
// It forwards to the formations that run. Everything else has to wait for the new
// program, which gets it through a unix socket, the hatch. That it starts proves
// that the new program works and likes the settings.
type bridge struct {
	pid     int
	control int   // our end of the socket pair
	hatch   *door // where it brings what it cannot answer
	ended   chan struct{}
}

// orders are what a bridge has to know; they are its first message.
type orders struct {
	Version    int            `json:"version"`
	Ports      map[string]int `json:"ports"` // of the formations that run, by id
	Host       string         `json:"host"`  // where they answer
	Hatch      string         `json:"hatch"` // path of the unix socket
	Formations int            `json:"formations"`
	Leased     int            `json:"leased"` // ports
	StartedAt  time.Time      `json:"started_at"`
}

// report is a bridge's only message.
type report struct {
	Ready bool   `json:"ready"`
	Fault string `json:"fault,omitempty"`
}

// raiseBridge starts a bridge and returns when it serves. Its error tells what
// the new program does not like.
func (s *Supervisor) raiseBridge(ctx context.Context, d *door, o orders) (_ *bridge, err error) {
	if s.cfg.Self.Path == "" {
		return nil, errors.New("this program does not know how it was started")
	}
	b := &bridge{ended: make(chan struct{})}
	if b.hatch, err = openHatch(o.Hatch); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		b.hatch.close()
		return nil, fmt.Errorf("connect to the bridge: %w", err)
	}
	b.control = pair[0]
	theirs := os.NewFile(uintptr(pair[1]), "control")
	words, err := s.startBridge(b, d, theirs)
	theirs.Close()
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start %s: %w", s.cfg.Self.Path, err)
	}
	defer words.Close()
	if err := b.brief(ctx, o); err != nil {
		b.kill()
		if said := lastWords(words); errors.Is(err, errSilent) && said != "" {
			return nil, fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return b, nil
}

// startBridge starts the process. What it writes to its standard error before it
// serves is returned: it tells why it does not.
func (s *Supervisor) startBridge(b *bridge, d *door, control *os.File) (words *os.File, err error) {
	listener, err := d.file()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	fd, err := unix.MemfdCreate("words", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	words = os.NewFile(uintptr(fd), "words")
	self := s.cfg.Self
	cmd := &exec.Cmd{
		Path: self.Path, Args: self.Args, Stdout: os.Stdout, Stderr: words,
		// Systemd watches this process, not that one.
		Env:        append(without(self.Env, envEstate, "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"), envBridge+"=1"),
		ExtraFiles: []*os.File{control, listener, os.Stderr},
		// A Ctrl-C at the terminal is for the supervisor.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, words.Close())
	}
	b.pid = cmd.Process.Pid
	return words, cmd.Process.Release() // waited for by number, as after a reload
}

// errSilent is the end of a new program without a report.
var errSilent = errors.New("the new program does not start")

// brief sends the orders and waits for the report.
func (b *bridge) brief(ctx context.Context, o orders) error {
	line, err := b.file()
	if err != nil {
		return err
	}
	defer line.Close()
	limit := time.Now().Add(bridgeStart)
	if err := line.SetDeadline(limit); err != nil {
		return fmt.Errorf("speak to the new program: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = line.SetDeadline(time.Now()) })()
	if err := json.NewEncoder(line).Encode(o); errors.Is(err, unix.EPIPE) {
		return errSilent
	} else if err != nil {
		return fmt.Errorf("speak to the new program: %w", err)
	}
	text, err := bufio.NewReader(io.LimitReader(line, maxMessage)).ReadBytes('\n')
	var r report
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return errSilent
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new program did not serve within %s", bridgeStart)
	case err != nil:
		return fmt.Errorf("hear the new program: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("hear the new program: %w", err)
	}
	if !r.Ready {
		return errors.New(r.Fault)
	}
	return nil
}

// lastWords returns what a program that did not begin has written.
func lastWords(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 16<<10))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// file returns a copy of our end of the socket pair; the caller closes it.
func (b *bridge) file() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(b.control), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("speak to the bridge: %w", err)
	}
	return os.NewFile(uintptr(fd), "control"), nil
}

// inheritBridge takes over the bridge that a former program has raised.
func inheritBridge(w bridgeWill) (*bridge, error) {
	hatch, err := takeDoor(w.Hatch)
	if err != nil {
		return nil, err
	}
	return &bridge{pid: w.PID, control: w.Control, hatch: hatch, ended: make(chan struct{})}, nil
}

// relieve tells the bridge that somebody serves again. It finishes what it has
// and ends.
func (b *bridge) relieve() error {
	line, err := b.file()
	if err != nil {
		return err
	}
	defer line.Close()
	if _, err := io.WriteString(line, relieved+"\n"); err != nil {
		return fmt.Errorf("relieve the bridge: %w", err)
	}
	return nil
}

// attend waits until the bridge has ended, and frees what belongs to it. It is
// called once, and alone waits for the process.
func (b *bridge) attend() {
	defer close(b.ended)
	if line, err := b.file(); err == nil {
		_, _ = io.Copy(io.Discard, line) // until its end is closed
		line.Close()
	}
	b.reap()
	b.close()
}

// dismiss ends a bridge that is attended.
func (b *bridge) dismiss() {
	// Its end of the socket pair is open until it ends, and its number is its own
	// until it is reaped.
	select {
	case <-b.ended:
	default:
		_ = unix.Kill(b.pid, unix.SIGKILL)
		<-b.ended
	}
}

// kill ends a bridge that nobody attends.
func (b *bridge) kill() {
	_ = unix.Kill(b.pid, unix.SIGKILL) // not reaped, so the number is still its own
	b.reap()
	b.close()
}

// reap takes the exit status, which also frees the number.
func (b *bridge) reap() {
	for {
		if _, err := unix.Wait4(b.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (b *bridge) close() {
	_ = unix.Close(b.control)
	b.hatch.close()
}

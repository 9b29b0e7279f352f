package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-plugin/runner"
)

// identity is what go-plugin's address translation is for us: nothing, since
// child and supervisor share a file system.
type identity struct{}

func (identity) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }

func (identity) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }

// attached lets go-plugin wait for and kill a process that we hold.
type attached struct {
	identity
	proc *proc
}

var _ runner.AttachedRunner = (*attached)(nil)

// Wait returns when the process has ended, or is no longer ours to watch.
func (a *attached) Wait(context.Context) error {
	select {
	case <-a.proc.exited:
	case <-a.proc.detached:
	}
	return nil
}

// Kill kills the whole process group.
func (a *attached) Kill(context.Context) error { return a.proc.killGroup() }

// ID is the process's number.
func (a *attached) ID() string { return strconv.Itoa(a.proc.pid) }

// launched starts the process. Its descriptor 2 is the error log itself, so
// that no pipe can break or fill when the supervisor dies.
type launched struct {
	attached
	cmd     *exec.Cmd
	stdout  *os.File // carries the handshake line; nil before Start
	start   func(*exec.Cmd) error
	onStart func(*proc) error

	mu     sync.Mutex // guards attached.proc and killed: Kill may come during Start
	killed bool
}

var _ runner.Runner = (*launched)(nil)

// Start implements runner.Runner. What it started is killed when it fails.
func (l *launched) Start(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return errors.New("killed before the start")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the handshake: %w", err)
	}
	l.cmd.Stdout = w
	p, err := startProc(l.cmd, l.start)
	err = errors.Join(err, w.Close())
	if err == nil {
		l.stdout, l.proc = r, p
		err = l.onStart(p)
	}
	if err != nil && p != nil {
		err = errors.Join(err, p.killGroup())
	}
	if p != nil {
		p.watch()
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// ID implements runner.Runner; it is empty before the start.
func (l *launched) ID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proc == nil {
		return ""
	}
	return l.attached.ID()
}

// Kill implements runner.Runner. Before the start it prevents it.
func (l *launched) Kill(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = true
	if l.proc == nil {
		return nil
	}
	return l.attached.Kill(ctx)
}

// Stdout implements runner.Runner.
func (l *launched) Stdout() io.ReadCloser { return l.stdout }

// Stderr implements runner.Runner: there is none, it goes to the error log.
func (l *launched) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (l *launched) Name() string { return l.cmd.Path }

// Diagnose implements runner.Runner; the error log tells more.
func (l *launched) Diagnose(context.Context) string { return "" }

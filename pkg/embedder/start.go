package embedder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/filelock"
)

// A failed start is not tried again at once, but after a pause that doubles:
// otherwise a formation without the process would pay for it with each message.
const (
	firstPause = time.Second
	mostPause  = time.Minute
)

// What a process is started with beside "--dir": ReadyFlag asks it to call
// Ready, which writes to ReadyFD; InheritFlag says that ListenFD is the socket
// to accept on, and LifeFD ends when its keeper does; UsersFlag is followed by
// whose calls are taken, as "100-199".
const (
	ReadyFlag   = "--ready"
	InheritFlag = "--inherit"
	UsersFlag   = "--users"

	ReadyFD  = 3
	ListenFD = 4
	LifeFD   = 5
)

// ready is what a process writes when it listens.
const ready = "ready\n"

// starter starts the process for one client.
type starter struct {
	cfg Config

	mu    sync.Mutex // one start at a time; guards what follows
	err   error      // of the last start
	until time.Time  // not before
	pause time.Duration
}

// ensure returns when somebody listens: a process that was started meanwhile by
// whomever, or one that it starts itself, which is fresh. So is whatever is
// behind a keeper's socket, the only one there is without a command.
func (s *starter) ensure(ctx context.Context) (fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening(ctx) {
		return len(s.cfg.Command) == 0, nil
	}
	if len(s.cfg.Command) == 0 {
		return false, errors.New("none runs, and starting it is up to the supervisor")
	}
	if s.err != nil && time.Now().Before(s.until) {
		return false, s.err
	}
	err = s.start(ctx)
	if ctx.Err() != nil {
		return false, err
	}
	s.err = err
	if err == nil {
		s.pause = 0
		return true, nil
	}
	s.pause = min(max(2*s.pause, firstPause), mostPause)
	s.until = time.Now().Add(s.pause)
	s.cfg.Log.Warn().Err(err).Dur("pause", s.pause).Msg("the embedding process doesn't start")
	return false, err
}

func (s *starter) listening(ctx context.Context) bool {
	conn, err := dial(ctx, s.cfg.Dir)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// start takes the lock that all formations of the host have for it, and runs the
// command.
func (s *starter) start(ctx context.Context) error {
	if err := makeDir(s.cfg.Dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	unlock, err := filelock.Take(ctx, filepath.Join(s.cfg.Dir, startLock), 0o600, nil)
	if err != nil {
		return fmt.Errorf("wait for another start of the embedding process: %w", err)
	}
	defer unlock()
	if s.listening(ctx) {
		return nil // somebody else was quicker
	}
	p, err := launch(s.cfg)
	if err != nil {
		return err
	}
	go func() { _ = p.cmd.Wait() }() // it outlives us, unless it ends first and wants to be reaped
	return p.await(ctx)
}

// process is a started embedding process.
type process struct {
	cmd   *exec.Cmd
	ready *os.File
	log   string
}

// launch runs the command in a session of its own, so that no signal to our
// terminal or group reaches it.
// It is given more on the descriptors after ReadyFD.
func launch(cfg Config, more ...*os.File) (*process, error) {
	path := filepath.Join(cfg.Dir, logName)
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of the embedding process: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to the embedding process: %w", err)
	}
	defer w.Close()
	args := slices.Concat(cfg.Command[1:], []string{"--dir", cfg.Dir, ReadyFlag})
	cmd := exec.Command(cfg.Command[0], args...) //nolint:noctx // our own program; it lives longer than this call
	cmd.Env = slices.Concat([]string{}, cfg.Env) // not nil, which would be ours
	cmd.Dir = cfg.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = append([]*os.File{w}, more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("start the embedding process: %w", err)
	}
	return &process{cmd: cmd, ready: r, log: path}, nil
}

// await waits until the process says that it listens. One that never does is
// killed.
func (p *process) await(ctx context.Context) error {
	defer p.ready.Close()
	stop := context.AfterFunc(ctx, func() { _ = p.ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(p.ready, 4096))
	switch {
	case string(said) == ready:
		return nil
	case len(said) > 0:
		return fmt.Errorf("the embedding process: %s", strings.TrimSpace(string(said)))
	case err != nil:
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("the embedding process was not ready in time%s", p.tail())
	}
	return fmt.Errorf("the embedding process ended at its start%s", p.tail())
}

// tail is the end of its log, for the error.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	last := strings.Join(lines[max(0, len(lines)-5):], "\n")
	return ": " + last[max(0, len(last)-1000):]
}

// KeeperGone returns a channel that is closed when the keeper of this process,
// started with InheritFlag, has ended. Its successor starts another process,
// which waits for the lock that this one holds.
func KeeperGone() <-chan struct{} {
	gone := make(chan struct{})
	life := os.NewFile(LifeFD, "life")
	go func() {
		defer close(gone)
		defer life.Close()
		_, _ = io.Copy(io.Discard, life)
	}()
	return gone
}

// Ready tells whoever started this process, with ReadyFlag, that it listens, or
// why it can't. It is called once.
func Ready(failure error) {
	f := os.NewFile(ReadyFD, "ready")
	said := ready
	if failure != nil {
		said = failure.Error()
	}
	_, _ = io.WriteString(f, said)
	_ = f.Close()
}

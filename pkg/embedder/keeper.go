package embedder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// UIDRange is the users, from First to Last, whose processes may ask.
type UIDRange struct{ First, Last uint32 }

// String is what ParseUIDRange reads.
func (r UIDRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// ParseUIDRange reads "100-199".
func ParseUIDRange(s string) (UIDRange, error) {
	first, last, _ := strings.Cut(s, "-")
	from, err1 := strconv.ParseUint(first, 10, 32)
	to, err2 := strconv.ParseUint(last, 10, 32)
	if err1 != nil || err2 != nil || from > to {
		return UIDRange{}, fmt.Errorf("%q is no range of user ids like 100-199", s)
	}
	return UIDRange{uint32(from), uint32(to)}, nil
}

// KeeperConfig is what a Keeper needs: of Config all but Timeout, with Command.
type KeeperConfig struct {
	Config
	// Users may ask beside this user and root: those whom a supervisor runs
	// formations as. nil is nobody.
	Users *UIDRange
}

// Keeper is how a supervisor provides the process: it owns the listening socket
// and runs the process when somebody connects, again after it has ended. The
// formations need no right to start anything, nor to write in the model cache,
// and a call that comes while there is no process waits for the next one. The process
// ends with its keeper.
type Keeper struct {
	cfg KeeperConfig
	// Started, when set, is told the process id of each process; for tests and logs.
	Started func(pid int)
}

// quickEnd is how soon an end counts as a failed start.
const quickEnd = 5 * time.Second

// NewKeeper checks the configuration.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if len(cfg.Command) == 0 {
		return nil, errors.New("embedder: a keeper without a command")
	}
	if _, err := New(cfg.Config); err != nil {
		return nil, err
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 15 * time.Second
	}
	return &Keeper{cfg: cfg}, nil
}

// Run listens and keeps the process until ctx ends; the process ends with it.
func (k *Keeper) Run(ctx context.Context) error {
	listener, err := k.listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		return fmt.Errorf("share the socket of the embedding process: %w", err)
	}
	defer file.Close()
	pause := time.Duration(0)
	for ctx.Err() == nil {
		if err := awaitCaller(ctx, file); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		begin := time.Now()
		if err := k.serve(ctx, file); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn().Err(err).Msg("the embedding process ended")
			if time.Since(begin) < quickEnd {
				pause = min(max(2*pause, firstPause), mostPause)
				wait(ctx, pause)
				continue
			}
		}
		pause = 0
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// listen takes the place of the socket: this process is the only one that keeps
// it, which ServeLock of the processes can't say while there is none.
func (k *Keeper) listen(ctx context.Context) (*net.UnixListener, error) {
	if err := makeDir(k.cfg.Dir); err != nil {
		return nil, err
	}
	path := socketPath(k.cfg.Dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket of the embedding process: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for those who ask the embedding process: %w", err)
	}
	// Whom the modes let in, the process asks for his user.
	dirMode, socketMode := os.FileMode(0o700), os.FileMode(0o600)
	if k.cfg.Users != nil {
		dirMode, socketMode = 0o711, 0o666
	}
	if err := errors.Join(os.Chmod(path, socketMode), os.Chmod(k.cfg.Dir, dirMode)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open the socket of the embedding process to its users: %w", err)
	}
	return l.(*net.UnixListener), nil
}

// awaitCaller returns when a connection waits to be accepted, or ctx ends.
func awaitCaller(ctx context.Context, listener *os.File) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("wait for callers of the embedding process: %w", err)
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer func() {
		if stop() {
			_ = w.Close()
		}
	}()
	for {
		fds := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for callers of the embedding process: %w", err)
		}
	}
}

// serve runs one process until it ends.
func (k *Keeper) serve(ctx context.Context, listener *os.File) error {
	cfg := k.cfg.Config
	cfg.Command = slices.Concat(cfg.Command, []string{InheritFlag})
	if u := k.cfg.Users; u != nil {
		cfg.Command = append(cfg.Command, UsersFlag, u.String())
	}
	// Whatever ends us closes the other end, which ends the process.
	life, ours, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe to the embedding process: %w", err)
	}
	defer ours.Close()
	p, err := launch(cfg, listener, life)
	_ = life.Close()
	if err != nil {
		return err
	}
	if k.Started != nil {
		k.Started(p.cmd.Process.Pid)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Signal(unix.SIGTERM) })
	defer stop()
	startCtx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	if err := p.await(startCtx); err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return err
	}
	k.cfg.Log.Info().Int("pid", p.cmd.Process.Pid).Str("log", filepath.Join(cfg.Dir, logName)).Msg("the embedding process runs")
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w%s", err, p.tail())
	}
	return nil
}

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// signalGroupFlag makes pidfd_send_signal reach the process group (Linux 6.9).
const signalGroupFlag = 1 << 2

// maxProcFile bounds what is read of a file in /proc, in bytes.
const maxProcFile = 1 << 20

// proc is a process held by a pidfd, so that nothing done through it can meet
// another process that got its number.
type proc struct {
	pid   int
	start uint64 // clock ticks since boot
	pidfd *os.File
	own   bool // we started it: its number stays taken until we reap it
	// proven says that it is ours to signal: we started it, or it has shown that a
	// supervisor of this formation did. A record may be wrong, and it may be forged.
	proven atomic.Bool

	// exited is closed when the process has ended and status is set; detached
	// is closed when it is no longer watched.
	exited, detached chan struct{}
	status           unix.WaitStatus
	known            bool // status is real: the process was our own child

	mu     sync.Mutex // guards reaped
	reaped bool       // its number may belong to another process now
}

// openProc holds the process with this number, whichever it is. The caller
// checks that it is the right one, then calls watch or close.
func openProc(pid int) (*proc, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &proc{
		pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd"),
		exited: make(chan struct{}), detached: make(chan struct{}),
	}
	// Read after the pidfd was opened: the number cannot have changed hands
	// before that for a process that is as old as this.
	if p.start, err = startTime(pid); err != nil {
		return nil, errors.Join(err, p.pidfd.Close())
	}
	return p, nil
}

// startProc starts cmd by start and holds it; from then on it is ours to wait for,
// and its number is its own until watch is called. When it fails nothing of the
// process is left.
func startProc(cmd *exec.Cmd, start func(*exec.Cmd) error) (*proc, error) {
	if err := start(cmd); err != nil {
		return nil, err
	}
	p, err := openProc(cmd.Process.Pid)
	if err != nil {
		// It died before we could hold it, or no descriptor is left.
		return nil, errors.Join(err, cmd.Process.Kill(), ignoreExit(cmd.Wait()))
	}
	p.own = true
	p.prove()
	if err := cmd.Process.Release(); err != nil {
		err = errors.Join(err, p.killGroup())
		p.watch()
		return nil, err
	}
	return p, nil
}

func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// watch begins to wait for the end, on a goroutine that ends then or by detach.
func (p *proc) watch() { go p.wait() }

func (p *proc) wait() {
	if err := p.awaitEnd(); err != nil {
		close(p.detached)
		return
	}
	if p.proven.Load() {
		// What it left behind in its group must not live on. The dead leader still
		// holds the group's number until it is reaped, if it is our child.
		_ = p.killGroup()
		p.reap()
	}
	p.pidfd.Close()
	close(p.exited)
}

// reap takes the exit status of a process that has ended, if it was our child.
func (p *proc) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := unix.Wait4(p.pid, &p.status, unix.WNOHANG, nil)
	p.known = err == nil && n == p.pid
	p.reaped = true
}

// awaitEnd returns nil when the process has ended, an error when p was detached.
func (p *proc) awaitEnd() error {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(fd uintptr) bool { return ended(int(fd)) })
}

// over tells whether the process has ended; it needs no watching.
func (p *proc) over() bool {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	over := true
	_ = rc.Control(func(fd uintptr) { over = ended(int(fd)) })
	return over
}

// ended tells whether the process of a pidfd has ended.
func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// awaitDeath tells whether the process, which is watched, ends within limit.
func (p *proc) awaitDeath(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		if !p.over() {
			return false
		}
	}
	select { // it has ended, only the watching is not there yet
	case <-p.exited:
		return true
	case <-p.detached:
		return false
	}
}

// detach stops watching and leaves the process alone.
func (p *proc) detach() {
	p.pidfd.Close()
	select {
	case <-p.detached:
	case <-p.exited:
	}
}

// close frees a proc that was never watched.
func (p *proc) close() { p.pidfd.Close() }

// prove says that the process is ours, from now on.
func (p *proc) prove() { p.proven.Store(true) }

// errNotProven refuses to signal a process that is perhaps not ours.
var errNotProven = errors.New("the process is not proven to be ours")

// signal reaches the process itself. A process that has ended is no error.
func (p *proc) signal(sig unix.Signal) error {
	return p.send(sig, 0)
}

// killGroup kills the process and all others of its group.
func (p *proc) killGroup() error {
	err := p.send(unix.SIGKILL, signalGroupFlag)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// An older kernel. While our child is not reaped, the number of its group is
	// its own; so it is while another's child lives.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped || !p.own && p.over() {
		return nil
	}
	if err := unix.Kill(-p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", p.pid, err)
	}
	return nil
}

func (p *proc) send(sig unix.Signal, flags int) error {
	if !p.proven.Load() {
		return errNotProven
	}
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return nil //nolint:nilerr // closed: the process ended or is left alone
	}
	var serr error
	if err := rc.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, flags) }); err != nil {
		return nil //nolint:nilerr // as above
	}
	if serr != nil && !errors.Is(serr, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, serr)
	}
	return nil
}

// fd copies a descriptor of the process, as long as we may trace it.
func (p *proc) fd(number int) (int, error) {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return -1, err
	}
	got := -1
	var gerr error
	if err := rc.Control(func(fd uintptr) { got, gerr = unix.PidfdGetfd(int(fd), number, 0) }); err != nil {
		return -1, err
	}
	if gerr != nil {
		return -1, fmt.Errorf("copy descriptor %d of process %d: %w", number, p.pid, gerr)
	}
	return got, nil
}

// hasEnv tells whether the process was started with this variable, which is a
// secret between it and us.
func (p *proc) hasEnv(name, secret string) bool {
	env, err := readProc(p.pid, "environ")
	if err != nil || secret == "" {
		return false
	}
	want := []byte(name + "=" + secret)
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(entry, want) {
			return true
		}
	}
	return false
}

// startTime is when a process began, in clock ticks since boot. It is known
// until the process is reaped.
func startTime(pid int) (uint64, error) {
	stat, err := readProc(pid, "stat")
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	start, err := parseStat(string(stat))
	if err != nil {
		return 0, fmt.Errorf("read start time of process %d: %w", pid, err)
	}
	return start, nil
}

// parseStat reads the start time from the text of /proc/<pid>/stat. The second
// field is the program's name in parentheses, which may hold anything.
func parseStat(stat string) (uint64, error) {
	const stateField, startField = 3, 22
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("no program name in stat")
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) <= startField-stateField {
		return 0, errors.New("too few fields in stat")
	}
	return strconv.ParseUint(fields[startField-stateField], 10, 64)
}

func readProc(pid int, name string) ([]byte, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProcFile))
}

// bootID tells one run of the machine from another: start times repeat.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// oomKills is how many processes the kernel has killed for want of memory;
// 0 when it does not say.
func oomKills() uint64 {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(count), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

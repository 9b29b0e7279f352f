package mcpclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EnvLaunch marks the processes of tool servers with the launch of the formation
// that started them.
const EnvLaunch = "SVC_TOOL_LAUNCH"

// spawner starts processes from one thread that lives as long as they do: the
// kernel kills a process at the end of the thread that started it, which is to
// happen when this process ends and not before. The thread is made for the first.
type spawner struct {
	mu      sync.Mutex // guards work and closed, and that nothing is added to running afterwards
	work    chan func()
	closed  bool
	running sync.WaitGroup
}

// start starts cmd; the caller tells running when the process is gone.
func (s *spawner) start(cmd *exec.Cmd) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	if s.work == nil {
		s.work = make(chan func())
		go spawnThread(s.work)
	}
	s.running.Add(1)
	work := s.work
	s.mu.Unlock()
	started := make(chan error, 1)
	work <- func() { started <- cmd.Start() }
	err := <-started
	if err != nil {
		s.running.Done()
	}
	return err
}

func spawnThread(work <-chan func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for do := range work {
		do()
	}
}

// close waits for the end of all processes and tells whether there was any.
func (s *spawner) close() bool {
	s.mu.Lock()
	s.closed = true
	work := s.work
	s.mu.Unlock()
	s.running.Wait()
	if work == nil {
		return false
	}
	close(work)
	return true
}

// process is a tool server that runs as a child, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	spawn  *spawner
	grace  time.Duration
	ended  chan struct{} // closed when it is gone
	how    string        // it ended; set before ended is closed
	ending sync.Once
	errs   sync.WaitGroup

	mu   sync.Mutex // guards the fields that follow
	gone bool       // the number of the group is ours until then
	sent []syscall.Signal
}

// startProcess starts the command of a target. complaints gets what it writes to
// its standard error, line by line.
func startProcess(s *spawner, t *target, grace time.Duration, complaints func(line []byte)) (*process, error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), stdin.Close())
	}
	stderr, complain, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), stdin.Close(), stdout.Close(), out.Close())
	}
	// Not CommandContext: its end has an order of its own, see end.
	cmd := exec.Command(t.command, t.args...) //nolint:noctx // ended by end
	cmd.Env, cmd.Dir = t.env, t.dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, complain
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = s.start(cmd)
	for _, theirs := range []*os.File{in, out, complain} {
		theirs.Close()
	}
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), stdout.Close(), stderr.Close())
	}
	p := &process{cmd: cmd, stdin: stdin, stdout: stdout, spawn: s, grace: grace, ended: make(chan struct{})}
	p.errs.Go(func() {
		readLines(stderr, complaints)
		stderr.Close()
	})
	go p.reap(stderr)
	return p, nil
}

// drainTime is how long the output of a process that has ended is still read:
// what is in the pipes comes at once.
const drainTime = time.Second

// reap awaits the end, kills what the process left in its group, and only then
// gives its number back.
func (p *process) reap(stderr *os.File) {
	defer p.spawn.running.Done()
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	// The dead leader holds the number of the group, so that it is no other's.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.gone = true
	p.mu.Unlock()
	err := p.cmd.Wait()
	p.how = howEnded(p.cmd, err)
	soon := time.Now().Add(drainTime)
	_ = p.stdout.SetReadDeadline(soon)
	_ = stderr.SetReadDeadline(soon)
	p.errs.Wait()
	close(p.ended)
}

// howEnded describes the end of a process in a few words.
func howEnded(cmd *exec.Cmd, err error) string {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return "was killed by " + unix.SignalName(status.Signal())
	case ok:
		return "ended with exit status " + strconv.Itoa(status.ExitStatus())
	}
	return fmt.Sprintf("ended: %v", err)
}

// end ends the process: its input is closed, then it is asked to end, then it
// and all that it started are killed. It returns at once.
func (p *process) end() {
	p.ending.Do(func() {
		p.stdin.Close()
		go func() {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
				timer := time.NewTimer(p.grace)
				select {
				case <-p.ended:
					timer.Stop()
				case <-timer.C:
					p.signal(sig)
					continue
				}
				break
			}
			<-p.ended
			p.stdout.Close()
		}()
	})
}

// signal sends a signal to the process' group.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
		p.sent = append(p.sent, sig)
	}
}

// endedSoon bounds how long the end of a process is awaited whose pipes have
// ended. It is far more than that takes, also where the processor is wanted by
// many: how a process died is what people need to know.
const endedSoon = 10 * time.Second

// itself says how a process ended whose connection is over; "" when it had to be
// made to, or does not end soon.
func (p *process) itself() string {
	timer := time.NewTimer(endedSoon)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && slices.Contains(p.sent, status.Signal()) {
		return ""
	}
	return p.how
}

// readLines calls line with each line of r until its end. Of long ones the
// beginning is told.
func readLines(r io.Reader, line func([]byte)) {
	const longest = 4 << 10
	buf := make([]byte, longest)
	var have int
	var skipping bool
	for {
		n, err := r.Read(buf[have:])
		have += n
		for {
			i := bytes.IndexByte(buf[:have], '\n')
			if i < 0 {
				break
			}
			if !skipping {
				line(bytes.TrimRight(buf[:i], "\r"))
			}
			skipping = false
			have = copy(buf, buf[i+1:have])
		}
		if have == len(buf) {
			if !skipping {
				line(buf)
			}
			have, skipping = 0, true
		}
		if err != nil {
			if have > 0 && !skipping {
				line(buf[:have])
			}
			return
		}
	}
}

// Sweep kills the processes of tool servers that dead says belong to a launch
// that is over, and returns how many. A process is known by its environment
// alone, which it can't lose by leaving its group.
func Sweep(dead func(launch string) bool) int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	killed := 0
	self := os.Getpid()
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == self || !marked(dir, dead) {
			continue
		}
		if killMarked(pid, dir, dead) {
			killed++
		}
	}
	return killed
}

// killMarked kills a process if it is still the one that was looked at, and
// waits for its end.
func killMarked(pid int, dir string, dead func(string) bool) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if !marked(dir, dead) {
		return false // the number is another's by now
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return false
	}
	// Who asked wants it gone, and a killed process takes a moment.
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, dyingMillis); !errors.Is(err, unix.EINTR) {
			return true
		}
	}
}

// dyingMillis is how long the end of a killed process is awaited.
const dyingMillis = 5000

// marked reads whose tool server a process is. Processes of others can't be read.
func marked(dir string, dead func(string) bool) bool {
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil || !bytes.Contains(env, []byte(EnvLaunch+"=")) {
		return false
	}
	for entry := range strings.SplitSeq(string(env), "\x00") {
		if launch, ok := strings.CutPrefix(entry, EnvLaunch+"="); ok {
			return launch != "" && dead(launch)
		}
	}
	return false
}

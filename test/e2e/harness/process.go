package harness

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Output keeps what a program prints.
type Output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all that was printed.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// value returns a field of the first log record with a message, "" when there
// is none yet.
func (o *Output) value(message, field string) string {
	for line := range strings.Lines(o.String()) {
		if r := (Reply{Body: []byte(line)}); r.Text("message") == message {
			return r.Text(field)
		}
	}
	return ""
}

// without returns the lines that do not hold mark.
func (o *Output) without(mark string) string {
	var b strings.Builder
	for line := range strings.Lines(o.String()) {
		if !strings.Contains(line, mark) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Process is a program that runs.
type Process struct {
	Out *Output // stdout and stderr

	cmd  *exec.Cmd
	done chan struct{}
}

// run starts a program. The caller sees to its end.
func run(tb testing.TB, env []string, program string, args ...string) *Process {
	tb.Helper()
	p := &Process{Out: &Output{}, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p.Out, p.Out
	p.cmd.WaitDelay = Patience // for the end of what it printed
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", filepath.Base(program), err)
	}
	go func() {
		_ = p.cmd.Wait() // the state tells how it ended
		close(p.done)
	}()
	return p
}

// PID is the process number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Kill ends the process at once and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Ended tells whether the process is gone.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Exit waits for the end and returns the exit code, -1 after a signal.
func (p *Process) Exit(tb testing.TB) int {
	tb.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-Context(tb).Done():
		tb.Fatalf("%s does not end:\n%s", filepath.Base(p.cmd.Path), p.Out)
		return 0
	}
}

// Alive tells whether a process exists and is no zombie. The first thread of a
// killed process may be one while others, and so its open files, are still there.
func Alive(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	if !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X") {
		return true
	}
	threads, err := os.ReadDir(dir + "/task")
	return err == nil && len(threads) > 1
}

// Halted tells whether every thread of a process has stopped. SIGSTOP returns
// before that, and until then one may still accept a connection.
func Halted(pid int) bool {
	stats, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		if _, after, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(after, "T") {
			return false
		}
	}
	return true
}

// CPU is the processor time that a process has used.
func CPU(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		tb.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	const perTick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	return time.Duration(user+system) * perTick
}

// KillProcess sends SIGKILL to a process that the product started and waits
// until it is dead: it may go on for a moment after the signal.
func KillProcess(tb testing.TB, pid int) {
	tb.Helper()
	if pid <= 1 {
		tb.Fatalf("no process to kill: %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		tb.Fatalf("kill %d: %v", pid, err)
	}
	Until(tb, "the killed process is dead", func() bool { return !Alive(pid) })
}

// processesBelow returns the processes that work in a directory.
func processesBelow(dir string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	var found []int
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(to, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// terminate asks the process to end and kills it when it does not.
func (p *Process) terminate() (code int) {
	p.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(Patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Result is how a program ended that ran to its end.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// output runs a program to its end.
func output(tb testing.TB, env []string, program string, args ...string) Result {
	tb.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(Context(tb), program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &errs
	cmd.WaitDelay = Patience
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("run %s %q: %v", filepath.Base(program), args, err)
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Stdout: out.String(), Stderr: errs.String()}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a program that the bench started.
type process struct {
	name string
	cmd  *exec.Cmd
	pid  int
	addr string // host:port that it serves on
	log  string // file with its stdout and stderr
	done chan struct{}
}

// command says how to start a process.
type command struct {
	name string
	log  string // directory for its log
	path string
	args []string
	env  []string
}

// launch starts a program with its output in a log file.
func launch(ctx context.Context, c command) (*process, error) {
	if err := os.MkdirAll(c.log, 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	p := &process{name: c.name, log: filepath.Join(c.log, c.name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	defer out.Close()
	p.cmd = exec.CommandContext(ctx, c.path, c.args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	p.cmd.Env = append(os.Environ(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A ^C reaches only the bench, which then stops its processes in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	p.pid = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop asks the process to end and waits; after 15 s it is killed.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		p.kill()
	}
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// failed says that the process did not do what it should, with its last words.
func (p *process) failed(what string) error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		text = []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return fmt.Errorf("%s %s; its last words:\n%s", p.name, what, bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
}

// poll tries until try succeeds, the process ends, or the time is over.
func (p *process) poll(ctx context.Context, timeout time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return p.failed("ended")
		case <-ctx.Done():
			return p.failed(fmt.Sprintf("did not get ready (%v)", err))
		}
	}
}

// startSelf starts this program with a sub-command that announces its address
// as the first line of its log.
func startSelf(ctx context.Context, dir, name string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p, err := launch(ctx, command{name: name, log: dir, path: self, args: append([]string{name}, args...)})
	if err != nil {
		return nil, err
	}
	err = p.poll(ctx, 20*time.Second, func() error {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		line, _, ok := strings.Cut(string(text), "\n")
		if !ok {
			return errors.New("no address yet")
		}
		p.addr = line
		return nil
	})
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func startModel(ctx context.Context, dir string) (*process, error) {
	return startSelf(ctx, dir, "model")
}

func startLimit(ctx context.Context, dir, model string) (*process, error) {
	return startSelf(ctx, dir, "limit", "-model", model, "-db", filepath.Join(dir, "limit.db"))
}

// startRuntime serves one formation without a supervisor. It returns as soon
// as the process runs; wait with answers.
func startRuntime(ctx context.Context, bin, dir string, port int) (*process, error) {
	p, err := launch(ctx, command{
		name: "formation-runtime",
		log:  filepath.Dir(dir),
		path: filepath.Join(bin, "formation-runtime"),
		args: []string{"serve", "--dir", dir, "--port", fmt.Sprint(port)},
	})
	if err != nil {
		return nil, err
	}
	p.addr = fmt.Sprintf("127.0.0.1:%d", port)
	return p, nil
}

// answers waits until one chat with the formation succeeds.
func (p *process) answers(ctx context.Context) error {
	request, done := chatRequest(p.addr, firstAgent, false, plainMessage)
	c := caller{addr: p.addr, request: request, done: done}
	defer c.close()
	return p.poll(ctx, 20*time.Second, c.call)
}

// freePort returns a loopback port that nothing listens on.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(path), strings.Join(args, " "), err, errs.Bytes(), out.Bytes())
	}
	return out.Bytes(), nil
}

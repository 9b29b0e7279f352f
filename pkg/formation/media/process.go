package media

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/confine"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/media/document"
)

// Self is the path of the running program, also when its file was replaced.
const Self = "/proc/self/exe"

// The limits of the process that works on one file.
const (
	defaultTimeout = 20 * time.Second
	defaultMemory  = 448 << 20 // bytes that Go's heap, its threads and C take together
	maxOpen        = 64
	// readDelay bounds how long after its end, or the time of its file, what the
	// process has written is still read. Nobody else has its pipes, so it is
	// reached only where this process stands still.
	readDelay = 20 * time.Second
)

// BadFileError is a file that cannot be read.
type BadFileError struct{ Text string }

func (p *BadFileError) Error() string { return p.Text }

// ProcessConfig is what a Process is made of.
type ProcessConfig struct {
	// Program serves Command and is a stage of confine; Self when "".
	Program string
	// Timeout is of one file; 0 means 20 s. As much processor time is allowed.
	Timeout time.Duration
	// Memory is how many bytes the process may write to; 0 means 448 MiB, below
	// 0 is no limit.
	Memory int64
	Log    zerolog.Logger
}

// Process works on files, each in a process of its own that can open no file
// and may use little. It implements Worker.
type Process struct{ cfg ProcessConfig }

// NewProcess returns a worker.
func NewProcess(cfg ProcessConfig) *Process {
	if cfg.Program == "" {
		cfg.Program = Self
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Memory == 0 {
		cfg.Memory = defaultMemory
	}
	return &Process{cfg: cfg}
}

// spec is what the process takes on: it reads what the loader of programs needs
// and nothing else.
func (p *Process) spec() *confine.Spec {
	s := &confine.Spec{
		UID: -1, GID: -1, NoNewPrivs: true, NoCapabilities: true, Parent: os.Getpid(),
		Rlimits: map[string]uint64{
			"core": 0, "fsize": 0, "nofile": maxOpen, "cpu": uint64(p.cfg.Timeout/time.Second) + 1,
		},
		ReadOnly: []string{
			p.cfg.Program, "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib",
			"/nix/store", "/gnu/store", "/etc/ld.so.cache",
		},
	}
	if p.cfg.Memory > 0 {
		s.Rlimits["data"] = uint64(p.cfg.Memory)
	}
	return s
}

// Text implements Worker.
func (p *Process) Text(ctx context.Context, format document.Format, data []byte, maxText int) (document.Text, error) {
	const perByte = 6 // what JSON makes of a byte at most
	r, err := p.do(ctx, job{Format: format, MaxText: maxText}, data, maxText*perByte)
	return r.Text, err
}

// Fit implements Worker.
func (p *Process) Fit(ctx context.Context, image []byte, width, height int) (out []byte, mediaType string, err error) {
	const most = 64 << 20 // far more than an image within bounds
	r, err := p.do(ctx, job{Image: &bounds{width, height}}, image, most)
	return r.Image, r.MediaType, err
}

// do has a job done. A file that breaks the process, or takes longer or more
// memory than allowed, is a *BadFileError; SERVICE_UNAVAILABLE tells that no process
// could be started.
func (p *Process) do(ctx context.Context, j job, data []byte, maxOut int) (reply, error) {
	arg, err := json.Marshal(j)
	if err != nil {
		return reply{}, fmt.Errorf("write the job of a file: %w", err)
	}
	entry, err := p.spec().Encode()
	if err != nil {
		return reply{}, err
	}
	within, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, &BadFileError{"it took longer than " + p.cfg.Timeout.String()})
	defer cancel()
	const frame = 4096 // around a text, and what is kept of complaints
	out, said := &capped{most: maxOut + frame, strict: true}, &capped{most: frame}
	cmd := exec.CommandContext(within, p.cfg.Program, p.cfg.Program, Command, string(arg))
	cmd.Env, cmd.Dir = []string{entry}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), out, said
	// It dies with this process, and with whatever it may have started; from its
	// confinement on by Spec.Parent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = readDelay
	err = run(cmd)
	var r reply
	switch {
	case ctx.Err() != nil:
		return reply{}, context.Cause(ctx)
	case within.Err() != nil:
		return reply{}, context.Cause(within)
	case err == nil:
		if err = json.Unmarshal(out.b, &r); err != nil {
			err = fmt.Errorf("%w: %w", errGarbled, err)
		}
	}
	if err != nil {
		return reply{}, p.broken(err, said.b)
	}
	if r.Problem != "" {
		return reply{}, &BadFileError{r.Problem}
	}
	return r, nil
}

// run starts and awaits a process from a thread that lives as long: the signal
// at the death of a parent is one at the death of the thread.
func run(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

var (
	errGarbled  = errors.New("the reply is garbled")
	errOverflow = errors.New("more output than allowed")
)

// broken tells a file that broke its process from a process that could not do
// its work at all: that one says so by its exit.
func (p *Process) broken(err error, said []byte) error {
	const failed = 1
	p.cfg.Log.Warn().Err(err).Bytes("said", said).Msg("a process that worked on a file ended badly")
	exit, ended := errors.AsType[*exec.ExitError](err)
	if ended && exit.ExitCode() != failed || errors.Is(err, errOverflow) || errors.Is(err, errGarbled) {
		return &BadFileError{"it breaks its reader, or needs more memory than it may have"}
	}
	return fault.Wrap(fault.Unavailable, "SERVICE_UNAVAILABLE", "files cannot be read at present", fmt.Errorf("work on a file: %w", err))
}

// capped keeps what is written up to a limit. More is an error when it is
// strict, and else forgotten.
type capped struct {
	b      []byte
	most   int
	strict bool
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.most-len(c.b))
	c.b = append(c.b, p[:n]...)
	if n < len(p) && c.strict {
		return n, errOverflow
	}
	return len(p), nil
}

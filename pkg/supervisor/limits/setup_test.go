package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/confine"
)

// The test program is its own stage and its own child: what the child does is
// said by an argument.
func TestMain(m *testing.M) {
	if _, staged, err := confine.FromEnv(); staged || err != nil {
		if err == nil {
			err = confine.Stage(os.Args[1:])
		}
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
	if len(os.Args) > 2 && os.Args[1] == "child" {
		rest, err := confine.Settle()
		if err != nil {
			fmt.Fprintln(os.Stderr, "settle:", err)
			os.Exit(1)
		}
		if os.Args[2] == "told" {
			fmt.Println(rest.Memory, rest.CPU)
			os.Exit(0)
		}
		os.Exit(child(os.Args[2], os.Args[3:]))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for another process. Nothing takes this long unless
// it is broken.
const patience = time.Minute

// child is what the processes under test do. All are bounded, should a limit not
// hold.
func child(does string, args []string) int {
	switch does {
	case "allocate": // far more than it may, and keep it until somebody looks
		allocate(256 << 20)
		await()
	case "allocate-in-tools": // three processes that hold 30 MiB each
		for range 3 {
			cmd := exec.Command("/proc/self/exe", "child", "hold", "30")
			cmd.Stdin = os.Stdin
			if err := cmd.Start(); err != nil {
				return 1
			}
		}
		await()
	case "hold":
		mib, _ := strconv.Atoi(args[0])
		allocate(mib << 20)
		await()
	case "open": // files, and say how many could be
		var n int
		for ; n < 5000; n++ {
			if _, err := os.Open("/dev/null"); err != nil {
				break
			}
		}
		fmt.Println(n)
	case "spin": // when it is told to, until it is killed or the time is over
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		for end := time.Now().Add(2 * patience); time.Now().Before(end); {
		}
	case "exec":
		if err := syscall.Exec(args[0], args, os.Environ()); err != nil {
			fmt.Println(err)
			return 1
		}
	case "wait":
		fmt.Println("ready")
		await()
	}
	return 0
}

// kept is what allocate took, so that it is not collected.
var kept [][]byte

func allocate(bound int) {
	const step = 1 << 20
	for range bound / step {
		b := make([]byte, step)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
	}
}

// await ends with its parent's pipe, or when nobody can wait for it any more.
func await() {
	done := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * patience):
	}
}

// house is the directories of one formation.
type house struct {
	home string
	GuardConfig
}

func newHouse(t *testing.T, l Limits) house {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "limits") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(home); err != nil {
			t.Error(err)
		}
	})
	h := house{home: home, GuardConfig: GuardConfig{
		ID: filepath.Base(home), Limits: l, Home: home, ConfigDir: home, Stage: self,
		StateDir: filepath.Join(home, "formations/sample/state"), VersionDir: filepath.Join(home, "formations/sample/versions/1"),
		RunDir: filepath.Join(home, "run/12345678"), CacheDir: filepath.Join(home, "cache"),
		Log: zerolog.New(zerolog.NewTestWriter(t)),
	}}
	for _, dir := range []string{h.VersionDir, h.CacheDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h house) guard(t *testing.T) *Guard {
	t.Helper()
	g, err := NewGuard(h.GuardConfig)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// process is a guarded process under test.
type process struct {
	t       *testing.T
	guard   *Guard
	cmd     *exec.Cmd
	out     string // the file with what it wrote
	in      io.WriteCloser
	exited  chan struct{}
	killing chan string // what the guard gave as the reason, at most one
}

// start runs what child does under guard.
func start(t *testing.T, g *Guard, does ...string) *process {
	t.Helper()
	return launch(t, g, exec.Command(g.cfg.Stage, append([]string{"child"}, does...)...))
}

func launch(t *testing.T, g *Guard, cmd *exec.Cmd) *process {
	t.Helper()
	p := begin(t, g, cmd)
	if err := g.Started(cmd.Process.Pid, p.kill); err != nil {
		t.Fatal(err)
	}
	return p
}

// begin starts cmd and leaves the watching to the caller.
func begin(t *testing.T, g *Guard, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{
		t: t, guard: g, cmd: cmd, out: filepath.Join(t.TempDir(), "out"), exited: make(chan struct{}), killing: make(chan string, 1),
	}
	out, err := os.Create(p.out) // a pipe would stay open as long as anything that the process started
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Env = append(cmd.Env, "PATH=/usr/bin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Dir = g.cfg.VersionDir
	cmd.Stdout, cmd.Stderr = out, out
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := g.Command(cmd); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-p.exited
		g.Ended()
	})
	return p
}

// kill ends the process group, as the process room does.
func (p *process) kill(reason string) {
	p.killing <- reason
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// await waits for the process' end.
func (p *process) await() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("the process lives on: %s", p.wrote())
	}
}

// wrote is what the process wrote so far.
func (p *process) wrote() string {
	text, err := os.ReadFile(p.out)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// untilOut waits until the process has written text.
func (p *process) untilOut(text string) {
	p.t.Helper()
	until(p.t, "it wrote "+text, func() bool { return strings.Contains(p.wrote(), text) })
}

// until waits for something that another process does.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// living tells whether a process is there and no zombie.
func living(pid int) bool {
	s, err := statOf(pid)
	return err == nil && s.state != 'Z' && s.state != 'X'
}

// needCgroup skips a test where no cgroup holds this controller's limit.
func needCgroup(t *testing.T, controller string) place {
	t.Helper()
	parents, err := findParents("")
	if err != nil {
		t.Skip(err)
	}
	p, ok := parents[controller]
	if !ok {
		t.Skip("this process may make no cgroups with the controller " + controller)
	}
	return p
}

// both runs a test with cgroups and without.
func both(t *testing.T, controller string, test func(t *testing.T, cgroupRoot string)) {
	t.Helper()
	t.Run("cgroup", func(t *testing.T) {
		t.Parallel()
		needCgroup(t, controller)
		test(t, "")
	})
	t.Run("watcher", func(t *testing.T) {
		t.Parallel()
		test(t, "none")
	})
}

// exitedWith fails unless the process was killed by SIGKILL.
func (p *process) wasKilled() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

var errNoRoot = errors.New("it takes root")

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(errNoRoot)
	}
}

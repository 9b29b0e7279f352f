package deploytest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/registry"
	"github.com/agentformation/service/test/testports"
)

// The environment of a test binary that is a supervisor instead.
const (
	supervisorEnv = "DEPLOYTEST_SUPERVISOR" // the home directory
	firstEnv      = "DEPLOYTEST_FIRST"      // of the ports
	probationEnv  = "DEPLOYTEST_PROBATION"
)

// Supervisor is a process of its own with a Service on the rig's home, so that
// a test can kill it.
type Supervisor struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// Elsewhere starts such a process. The rig's own Service must have ended. It is
// killed at the end of the test, unless Kill came before.
func (r *Rig) Elsewhere(t testing.TB, probation time.Duration) *Supervisor {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{cmd: exec.CommandContext(t.Context(), binary), lines: make(chan string, 1000)}
	s.cmd.Env = append(os.Environ(), supervisorEnv+"="+r.Home, firstEnv+"="+strconv.Itoa(r.First), probationEnv+"="+probation.String())
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { s.Kill() })
	return s
}

// Update asks for an update of id to body and returns when a line of its
// progress, "<stage> <message>", contains text.
func (s *Supervisor) Update(t testing.TB, id string, body []byte, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(s.in, id, path); err != nil {
		t.Fatal(err)
	}
	for line := range s.lines {
		if strings.Contains(line, text) {
			return
		}
		if strings.HasPrefix(line, "end ") {
			t.Fatalf("the update did not come to %q: %s", text, line)
		}
	}
	t.Fatalf("the supervisor ended before the update came to %q", text)
}

// Kill ends the process at once, as SIGKILL does; its children go on.
func (s *Supervisor) Kill() {
	if s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Kill()
	for range s.lines { // the pipe is read to its end before Wait closes it
		continue
	}
	_ = s.cmd.Wait()
}

// supervisorMain serves updates that standard input asks for, until its end.
func supervisorMain(home string) int {
	if err := superviseHome(context.Background(), home); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor:", err)
		return 1
	}
	return 0
}

func superviseHome(ctx context.Context, home string) error {
	r := &Rig{Home: home}
	var err error
	if r.First, err = strconv.Atoi(os.Getenv(firstEnv)); err != nil {
		return err
	}
	if r.Registry, err = registry.Open(ctx, registry.Config{Path: filepath.Join(home, "registry.db")}); err != nil {
		return err
	}
	if r.Ports, err = ports.New(ports.Config{Host: "127.0.0.1", First: r.First, Last: r.First + testports.BlockSize - 1}); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	r.Config = r.config(binary, zerolog.Nop())
	if r.Config.Probation, err = time.ParseDuration(os.Getenv(probationEnv)); err != nil {
		return err
	}
	if r.Service, err = deploy.New(r.Config); err != nil {
		return err
	}
	if err := r.Service.Restore(ctx); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		id, path, _ := strings.Cut(in.Text(), " ")
		go r.updateAloud(ctx, id, path)
	}
	return nil
}

// updateAloud writes the progress and the end of an update to standard output.
func (r *Rig) updateAloud(ctx context.Context, id, path string) {
	var out sync.Mutex
	say := func(a ...any) {
		out.Lock()
		defer out.Unlock()
		_, _ = fmt.Fprintln(os.Stdout, a...)
	}
	f, err := os.Open(path)
	if err != nil {
		say("end", err)
		return
	}
	defer f.Close()
	b, err := r.Service.Receive(ctx, f)
	if err != nil {
		say("end", err)
		return
	}
	_, err = r.Service.Update(ctx, deploy.UpdateRequest{ID: id, Bundle: b}, func(p deploy.Progress) { say(p.Stage, p.Message) })
	say("end", err)
}

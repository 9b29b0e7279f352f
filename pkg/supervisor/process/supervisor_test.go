package process_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/test/testprogram"
)

// earlierSupervisor is a supervisor that launches the sample in SUPERVISOR_HOME
// on SUPERVISOR_PORT and ends as SUPERVISOR_END says, without touching it.
func earlierSupervisor() int {
	s, err := newSupervisor()
	if err == nil {
		err = s.live(os.Getenv("SUPERVISOR_END"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type supervisor struct {
	pool   *ports.Pool
	spec   process.Spec
	m      *process.Manager
	events chan process.Event
}

func newSupervisor() (*supervisor, error) {
	home := os.Getenv("SUPERVISOR_HOME")
	port, err := strconv.Atoi(os.Getenv("SUPERVISOR_PORT"))
	if err != nil {
		return nil, err
	}
	pool, err := ports.New(ports.Config{Host: "127.0.0.1", First: port, Last: port})
	if err != nil {
		return nil, err
	}
	mode := os.Getenv("SUPERVISOR_MODE")
	if mode == "" {
		mode = "ok"
	}
	s := &supervisor{pool: pool, spec: specIn(home, mode), events: make(chan process.Event, 100)}
	s.spec.Init = os.Getenv("SUPERVISOR_INIT")
	s.spec.Socket, err = pool.Reserve("sample", port)
	s.m = process.NewManager(process.ManagerConfig{
		Log: zerolog.New(os.Stderr), HealthTimeout: patience, Notify: func(e process.Event) { s.events <- e },
	})
	return s, err
}

func (s *supervisor) live(end string) error {
	ctx := context.Background()
	switch end {
	case "adopt":
		ok, err := s.m.Adopt(ctx, s.spec)
		fmt.Printf("adopted=%v bound=%v\n", ok, s.spec.Socket.Bound())
		s.m.Close()
		return err
	case "second life":
		return s.secondLife(ctx)
	case "update", "updated":
		s.spec.Dir = filepath.Join(s.spec.StateDir, "v1")
		s.spec.LameDuck = patience // the old child is still there when this one dies
	case "restart":
		s.spec.LameDuck = patience
	}
	if err := errors.Join(os.MkdirAll(s.spec.Dir, 0o700), s.m.Start(ctx, s.spec, nil)); err != nil {
		return err
	}
	switch end {
	case "kill":
		die()
	case "update", "updated":
		return s.update(ctx, end)
	case "restart":
		return s.restart(ctx)
	case "exec":
		return s.exec()
	}
	s.m.Close()
	return nil
}

// die is the end without any farewell.
func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// update dies before or after the commit of an update.
func (s *supervisor) update(ctx context.Context, end string) error {
	next := s.spec
	next.Dir = filepath.Join(s.spec.StateDir, "v2")
	o := process.UpdateOptions{Commit: func(context.Context) error {
		if end == "update" {
			die()
		}
		return nil
	}}
	if end == "updated" {
		o.Progress = func(stage, _ string, _, _ int) {
			if stage == "stopping" {
				die()
			}
		}
	}
	return errors.Join(os.MkdirAll(next.Dir, 0o700), s.m.Update(ctx, next, o))
}

// restart dies while the child drains.
func (s *supervisor) restart(ctx context.Context) error {
	c, _ := s.m.Control()
	go func() {
		for {
			if h, err := c.Health(ctx); err == nil && h.Message == "draining" {
				die()
			}
			<-time.After(time.Millisecond)
		}
	}()
	return s.m.Restart(ctx, s.spec, nil)
}

// exec puts this program into its own place.
func (s *supervisor) exec() error {
	fds, err := s.pool.Export()
	if err != nil {
		return err
	}
	fd := fds[s.spec.Socket.Port()]
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return err
	}
	pid := s.m.Snapshot().PID
	s.m.Close()
	for name, value := range map[string]string{
		"END": "second life", "FD": strconv.Itoa(fd), "CHILD": strconv.Itoa(pid), "PID": strconv.Itoa(os.Getpid()),
	} {
		os.Setenv("SUPERVISOR_"+name, value)
	}
	return syscall.Exec(os.Args[0], os.Args, os.Environ())
}

// secondLife goes on after exec: it adopts its own child, kills it, and tells
// what it saw.
func (s *supervisor) secondLife(ctx context.Context) error {
	fd, err := strconv.Atoi(os.Getenv("SUPERVISOR_FD"))
	if err != nil {
		return err
	}
	if err := s.spec.Socket.Take(fd); err != nil {
		return err
	}
	load := newLoad(s.spec.Socket.Addr().String(), 2)
	adopted, err := s.m.Adopt(ctx, s.spec)
	if err != nil || !adopted {
		return fmt.Errorf("adopt: %v, %w", adopted, err)
	}
	child := s.m.Snapshot().PID
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		return err
	}
	var exit process.Exit
	for e := range s.events {
		if e.Kind == process.EventExited {
			exit = e.Exit
		}
		if e.Kind == process.EventRunning {
			break
		}
	}
	load.stop()
	fmt.Printf("same process=%v bound=%v adopted=%v exit=%s replaced=%v refused=%d\n",
		os.Getenv("SUPERVISOR_PID") == strconv.Itoa(os.Getpid()), s.spec.Socket.Bound(),
		os.Getenv("SUPERVISOR_CHILD") == strconv.Itoa(child), exit.Reason, s.m.Snapshot().PID != child, load.refused.Load())
	return s.m.Stop(ctx)
}

// supervisorCommand is an earlier supervisor on the fixture's home and port,
// which is free for it.
func (f *fixture) supervisorCommand(env ...string) *exec.Cmd {
	f.t.Helper()
	if err := f.spec.Socket.Shutdown(); err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(f.spec.Binary)
	cmd.Env = append(os.Environ(), modeEnv+"=supervisor", "SUPERVISOR_HOME="+f.home,
		"SUPERVISOR_PORT="+strconv.Itoa(f.spec.Socket.Port()), "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, env...)
	if f.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: f.uid, Gid: f.uid}}
	}
	return cmd
}

// runToEnd runs an earlier supervisor and returns what it printed.
func (f *fixture) runToEnd(env ...string) string {
	f.t.Helper()
	cmd := f.supervisorCommand(env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("earlier supervisor: %v\n%s%s", err, out, said.Bytes())
	}
	return string(out)
}

// runSupervisor starts an earlier supervisor and returns the function that kills
// it.
func (f *fixture) runSupervisor(env ...string) func() {
	f.t.Helper()
	cmd := f.supervisorCommand(env...)
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// inherit runs an earlier supervisor to its end; the fixture's port is reserved,
// not bound.
func (f *fixture) inherit(end string, env ...string) {
	f.t.Helper()
	cmd := f.supervisorCommand(append(env, "SUPERVISOR_END="+end)...)
	out, err := cmd.CombinedOutput()
	if killed := cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(); end != "close" && !killed || end == "close" && err != nil {
		f.t.Fatalf("earlier supervisor: %v\n%s", err, out)
	}
}

func inherit(t *testing.T, end string) *fixture {
	t.Helper()
	f := setup(t, "ok")
	f.inherit(end)
	return f
}

// unprivileged makes the fixture's supervisors and children run as a user
// without privileges; where the tests have none themselves, as their own.
func (f *fixture) unprivileged() {
	f.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	f.uid = nobody
	program := filepath.Join(f.home, "program") // the test binary lies where only root comes
	if err := errors.Join(testprogram.Copy(os.Args[0], program), os.Chmod(f.home, 0o755), os.Chown(f.home, nobody, nobody)); err != nil {
		f.t.Fatal(err)
	}
	f.spec.Binary = program
}

// record is what the tests read of a run record.
type record struct {
	LaunchID string `json:"launch_id"`
	PID      int    `json:"pid"`
	Dir      string `json:"dir"`
}

func (f *fixture) readRecords() []record {
	f.t.Helper()
	var all []record
	for _, path := range f.records() {
		var r record
		if err := json.Unmarshal([]byte(read(f.t, path)), &r); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

package control_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-plugin/runner"

	"github.com/agentformation/service/pkg/control"
)

func TestReattach_ReachesTheSameChild(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	pid := f.runner.cmd.Process.Pid
	f.conn.Detach()
	child := control.Child{RunDir: f.dir, Socket: f.conn.Socket(), PID: pid}
	again, err := control.Reattach(t.Context(), child, func() (runner.AttachedRunner, error) { return f.runner, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	h, err := again.Hello(t.Context(), control.HelloRequest{FormationID: "sample", LaunchToken: "token"})
	if err != nil || h.PID != pid || h.LaunchID != "launch" {
		t.Errorf("hello %+v, %v; want process %d", h, err, pid)
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	again.Detach()
	f.exited()
}

func TestReattach_WithOtherKeysIsRefused(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	other := t.TempDir()
	if err := control.EnsureTLS(other); err != nil {
		t.Fatal(err)
	}
	attach := func() (runner.AttachedRunner, error) { return ended{f.runner}, nil }
	child := control.Child{RunDir: other, Socket: f.conn.Socket(), PID: f.runner.cmd.Process.Pid}
	if _, err := control.Reattach(t.Context(), child, attach); err == nil {
		t.Error("a child believed another formation's keys")
	}
	child.RunDir = t.TempDir()
	if _, err := control.Reattach(t.Context(), child, attach); err == nil {
		t.Error("reattached without keys")
	}
}

func TestReattach_SaysNothingToAnotherProcessThanTheChild(t *testing.T) {
	t.Parallel()
	f := launch(t, "ok")
	socket := filepath.Join(f.dir, "plugin-other")
	l, err := net.Listen("unix", socket) // this process
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			heard <- err.Error()
			return
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		heard <- fmt.Sprintf("%d bytes, %v", len(text), err)
	}()
	attach := func() (runner.AttachedRunner, error) { return ended{f.runner}, nil }
	child := control.Child{RunDir: f.dir, Socket: socket, PID: f.runner.cmd.Process.Pid}
	_, err = control.Reattach(t.Context(), child, attach)
	want := fmt.Sprintf("process %d answers in the place of process %d", os.Getpid(), child.PID)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("reattach: %v, want %q", err, want)
	}
	if got := <-heard; got != "0 bytes, <nil>" {
		t.Errorf("the other process heard %s", got)
	}
}

// ended is a runner whose process is not watched.
type ended struct{ *cmdRunner }

func (ended) Wait(context.Context) error { return nil }

package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// A program that is there for the bridge and gone at the replacement itself.
func TestReload_WhenTheReplacementFailsTheOldProgramGoesOn(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	ready, ended := make(chan Ready, 2), make(chan struct{})
	sup := build(t, s.home, func(r Ready) { ready <- r })
	sup.cfg.Listen = strings.TrimPrefix(s.url, "http://")
	sup.cfg.Reload = make(chan os.Signal, 1)
	sup.cfg.Self = Self{Path: s.binary, Args: []string{s.binary}, Env: append(os.Environ(), programEnv+"="+s.home, runtimeEnv+"="+testBinary(t))}
	replaced := 0
	sup.replace = func(path string, _, env []string) error {
		replaced++
		if path != s.binary || !strings.HasPrefix(env[len(env)-1], envEstate+"=") {
			t.Errorf("replaced by %s with %s", path, env[len(env)-1])
		}
		return errors.New("the disk is on fire")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var end error
	go func() {
		defer close(ended)
		end = sup.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	isReady := func() {
		t.Helper()
		deploytest.Eventually(t, "the supervisor is ready", func() bool {
			select {
			case <-ready:
				return true
			case <-ended:
				t.Fatalf("it ended: %v", end)
			default:
			}
			return false
		})
	}
	isReady()
	d := s.deploy("hello")
	l := s.load(d.Port, d.PID)
	l.more(100)
	sup.cfg.Reload <- syscall.SIGHUP
	isReady()
	o, err := LastReload(s.home)
	if err != nil || o.Done || !strings.Contains(o.Message, "the disk is on fire") {
		t.Errorf("outcome %+v, %v", o, err)
	}
	l.more(100)
	l.end()
	s.http.CloseIdleConnections()
	cancel()
	if <-ended; end != nil || replaced != 1 {
		t.Errorf("end: %v after %d replacements", end, replaced)
	}
}

// longReload begins a reload that has to wait for an endless stream.
func (s *served) longReload() (stream *http.Response) {
	s.t.Helper()
	text := readFile(s.t, s.made.ConfigPath)
	writeFile(s.t, s.made.ConfigPath, strings.Replace(text, "drain_timeout: 2", "drain_timeout: 60", 1))
	s.start()
	s.deploy("hello")
	stream = get(s.t, s.http, s.url+"/api/hello/stream")
	s.t.Cleanup(func() { stream.Body.Close() })
	if _, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	deploytest.Eventually(s.t, "a bridge answers", func() bool {
		res := get(s.t, s.http, s.url+"/api/hello/")
		res.Body.Close()
		return len(s.bridges()) == 1
	})
	return stream
}

func TestReload_AStopMeanwhileStops(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	stream := s.longReload()
	children := s.children() // the formation and the bridge
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "the supervisor is stopping", func() bool { return strings.Contains(s.log.String(), `"stopping"`) })
	stream.Body.Close() // which the formation's drain waits for
	s.http.CloseIdleConnections()
	s.stop()
	if len(children) != 2 {
		t.Errorf("children %v", children)
	}
	for _, pid := range children {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is left behind", pid)
		}
	}
}

func TestReload_ADeathMeanwhileLeavesTheFormationsAndTheAddress(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.longReload()
	bridge := s.bridges()[0]
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	deploytest.Eventually(t, "the bridge has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", bridge))
		return errors.Is(err, os.ErrNotExist)
	})
	s.start()
	list, err := s.api().List(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].Status != "running" || list[0].RestartCount != 0 {
		t.Errorf("afterwards: %+v, %v", list, err)
	}
}

// on calls its function, once, when the log says a text.
type on struct {
	text string
	call func()
}

// Write implements io.Writer.
func (o on) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(o.text)) {
		o.call()
	}
	return len(line), nil
}

// A stop that comes when the requests are cut, before the children are let go:
// the next program could not know of it.
func TestReload_AStopJustBeforeTheReplacementStops(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan Ready, 2), make(chan error, 1)
	sup := build(t, s.home, func(r Ready) { ready <- r })
	sup.log = zerolog.New(on{"requests that were open before the reload are cut", cancel})
	sup.cfg.Listen = strings.TrimPrefix(s.url, "http://")
	sup.cfg.Reload = make(chan os.Signal, 1)
	sup.cfg.Self = Self{Path: s.binary, Args: []string{s.binary}, Env: append(os.Environ(), programEnv+"="+s.home, runtimeEnv+"="+testBinary(t))}
	sup.replace = func(string, []string, []string) error {
		t.Error("the program was replaced")
		return errors.New("the stop came before")
	}
	go func() { ended <- sup.Run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	d := s.deploy("hello")
	stream := get(t, s.http, s.url+"/api/hello/stream")
	t.Cleanup(func() { stream.Body.Close() })
	if _, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	sup.cfg.Reload <- syscall.SIGHUP
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
	if syscall.Kill(d.PID, 0) == nil {
		t.Error("the formation is left behind")
	}
}

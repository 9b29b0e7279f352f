package deploy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// runsSystemd tells whether this test may start services: systemd is process 1,
// and we are root.
func runsSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil && os.Geteuid() == 0
}

// service is the unit under another name, with directories, a user and a port of
// its own, until the host is booted again at most.
type service struct {
	t    *testing.T
	name string
	path string // of the unit
}

func newService(t *testing.T) *service {
	t.Helper()
	bin := filepath.Join("/var/tmp", "svc-test-"+strconv.Itoa(os.Getpid())) // where others may read and start programs
	t.Cleanup(func() { os.RemoveAll(bin) })
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/supervisor", "./cmd/formation-runtime")
	build.Dir = repository(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	name := filepath.Base(bin)
	text := strings.NewReplacer(
		"/usr/local/bin", bin, "/var/lib/svc", "/var/lib/"+name, "StateDirectory=svc", "StateDirectory="+name,
		"ConfigurationDirectory=svc", "ConfigurationDirectory="+name, "/etc/svc/", "/etc/"+name+"/",
		"User=svc", "User=nobody", "Group=svc\n", "\n", "--no-models", "--no-models --port "+strconv.Itoa(port),
	).Replace(read(t, deployed(t, "systemd/supervisor.service")))
	s := &service{t: t, name: name + ".service", path: "/run/systemd/system/" + name + ".service"}
	t.Cleanup(func() {
		for _, args := range [][]string{{"stop", s.name}, {"reset-failed", s.name}} {
			_ = exec.Command("systemctl", args...).Run()
		}
		for _, path := range []string{s.path, "/var/lib/" + name, "/etc/" + name} {
			os.RemoveAll(path)
		}
		_ = exec.Command("systemctl", "daemon-reload").Run()
	})
	write(t, s.path, text, 0o644)
	s.ctl("daemon-reload")
	return s
}

func (s *service) ctl(args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "systemctl", args...).CombinedOutput()
	if err != nil {
		log, _ := exec.CommandContext(s.t.Context(), "journalctl", "-u", s.name, "-n", "50", "--no-pager").CombinedOutput()
		s.t.Fatalf("systemctl %v: %v\n%s%s", args, err, out, log)
	}
	return strings.TrimSpace(string(out))
}

func (s *service) property(name string) string {
	s.t.Helper()
	return s.ctl("show", "--value", "-p", name, s.name)
}

// Where systemd does not run, as in a container, the other tests are what there
// is.
func TestUnit_StartsReloadsAndStopsUnderSystemd(t *testing.T) {
	t.Parallel()
	if !runsSystemd() {
		t.Log("systemd does not run here, or this is not root")
		return
	}
	s := newService(t)
	s.ctl("start", s.name) // returns when the supervisor says that it is ready
	pid := s.property("MainPID")
	if got := s.property("ActiveState"); got != "active" || pid == "0" {
		t.Fatalf("state %s, process %s", got, pid)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%s/exe", pid)); err != nil || filepath.Base(exe) != "supervisor" {
		t.Errorf("the main process is %s, %v", exe, err)
	}
	s.ctl("reload", s.name)
	if got := s.property("MainPID"); got != pid {
		t.Errorf("after a reload the process is %s, before it was %s", got, pid)
	}
	s.ctl("stop", s.name)
	if got := s.property("Result"); got != "success" {
		t.Errorf("the stop ended with %s", got)
	}
}

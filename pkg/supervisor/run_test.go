package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/test/testports"
)

// daemon is a supervisor that runs in the test.
type daemon struct {
	home   string
	url    string
	keyID  string
	secret string
	client *http.Client
	stop   func() error // ends Run and returns its error; once
}

// newHome is a short directory: a unix socket's path has to be.
func newHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "sv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return home
}

func initHome(t *testing.T) (string, InitResult) {
	t.Helper()
	home := newHome(t)
	made, err := Init(InitOptions{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	first := testports.Block(t)
	text := readFile(t, made.ConfigPath)
	text = strings.Replace(text, "port_range_start: 8000", fmt.Sprintf("port_range_start: %d", first), 1)
	text = strings.Replace(text, "port_range_end: 9000", fmt.Sprintf("port_range_end: %d\n  env_allow: [DEPLOYTEST_CHILD]\n  drain_timeout: 2\n  cgroup_root: none", first+testports.BlockSize-1), 1)
	writeFile(t, made.ConfigPath, text)
	return home, made
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	// By one rename: a supervisor that watches the file never sees half of it.
	err := os.WriteFile(path+".fresh", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".fresh", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// build makes a supervisor whose children are this test binary.
func build(t *testing.T, home string, ready func(Ready)) *Supervisor {
	t.Helper()
	cfg, err := LoadConfig(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen, cfg.OnReady = "127.0.0.1:0", ready
	cfg.Log = zerolog.New(zerolog.NewTestWriter(t))
	if cfg.Runtime, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	cfg.LookupEnv = func(name string) (string, bool) { return "1", name == "DEPLOYTEST_CHILD" }
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, home string, made InitResult) *daemon {
	t.Helper()
	ready := make(chan Ready, 1)
	s := build(t, home, func(r Ready) { ready <- r })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	d := &daemon{home: home, keyID: made.KeyID, secret: made.Secret, client: &http.Client{Transport: &http.Transport{}}}
	stopped := false
	d.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		d.client.CloseIdleConnections()
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	})
	select {
	case r := <-ready:
		d.url = "http://" + r.Addr.String()
	case err := <-done:
		stopped = true
		t.Fatalf("run: %v", err)
	}
	return d
}

func (d *daemon) server(t *testing.T, keyID, secret string) *client.Server {
	t.Helper()
	s, err := client.NewServer(client.ServerConfig{URL: d.url, KeyID: keyID, SecretKey: client.Secret(secret), HTTP: d.client})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (d *daemon) get(t *testing.T, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRun_ServesStopsAndRestores(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	d := start(t, home, made)
	api := d.server(t, made.KeyID, made.Secret)
	bundle := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	launched, err := api.Deploy(t.Context(), client.DeployRequest{ID: "hello", Bundle: bytes.NewReader(bundle)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if launched.Status != "running" || launched.URL != d.url+"/api/hello" {
		t.Errorf("launched = %+v", launched)
	}
	if err := d.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", launched.PID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the child survived a stop: %v", err)
	}
	if log := readFile(t, filepath.Join(home, "logs/audit.log")); !strings.Contains(log, `"action":"formations.deploy"`) {
		t.Errorf("audit log: %s", log)
	}

	d = start(t, home, made)
	deploytest.Eventually(t, "the formation answers again through the proxy", func() bool {
		res := d.get(t, "/api/hello/")
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
	list, err := d.server(t, made.KeyID, made.Secret).List(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].Port != launched.Port || list[0].Status != "running" {
		t.Errorf("after the restart: %+v, %v", list, err)
	}
}

func TestRun_ASecondSupervisorOnTheSameHomeIsRefused(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	start(t, home, made)
	err := build(t, home, nil).Run(t.Context())
	if fault.NameOf(err) != "AlreadyRunning" || !strings.Contains(err.Error(), fmt.Sprintf("(process %d)", os.Getpid())) {
		t.Errorf("second run: %v", err)
	}
}

func TestRun_ATakenAddressIsAnErrorAndFreesTheHome(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := build(t, home, nil)
	s.cfg.Listen = l.Addr().String()
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("run = %v", err)
	}
	l.Close()
	start(t, home, made)
}

func TestRun_KeysFollowTheFile(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	d := start(t, home, made)
	refused := func(keyID, secret string) bool {
		_, err := d.server(t, keyID, secret).List(t.Context(), "")
		var e *client.Error
		if err != nil && (!errors.As(err, &e) || e.Status != http.StatusUnauthorized) {
			t.Fatalf("list: %v", err)
		}
		return err != nil
	}
	text := readFile(t, made.ConfigPath)
	writeFile(t, made.ConfigPath, strings.Replace(text, "  keys:\n", "  keys:\n    - {id: second, secret: s2}\n", 1))
	deploytest.Eventually(t, "the second key works", func() bool { return !refused("second", "s2") })
	if refused(made.KeyID, made.Secret) {
		t.Error("the first key stopped working when another was added")
	}
	writeFile(t, made.ConfigPath, "auth: {keys: [{id: second, secret: s2}]}\n")
	deploytest.Eventually(t, "the removed key is refused", func() bool { return refused(made.KeyID, made.Secret) })
	if refused("second", "s2") {
		t.Error("the key that stayed is refused")
	}
}

// The way that the specification writes down: add the new key, move the clients,
// remove the old one, restart. No client is refused on the way.
func TestRun_AKeyIsRotatedWithoutARefusal(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	works := func(d *daemon, keyID, secret string) bool {
		_, err := d.server(t, keyID, secret).List(t.Context(), "")
		return err == nil
	}
	d := start(t, home, made)
	if !works(d, made.KeyID, made.Secret) || works(d, "next", "s3cret") {
		t.Fatal("before the rotation the old key alone should work")
	}
	text := readFile(t, made.ConfigPath)
	both := strings.Replace(text, "  keys:\n", "  keys:\n    - {id: next, secret: s3cret}\n", 1)
	writeFile(t, made.ConfigPath, both)
	deploytest.Eventually(t, "the new key works", func() bool {
		if !works(d, made.KeyID, made.Secret) {
			t.Fatal("a client that was not moved yet is refused")
		}
		return works(d, "next", "s3cret")
	})
	old := fmt.Sprintf("    - id: %s\n      secret: %s\n", made.KeyID, made.Secret)
	if !strings.Contains(both, old) {
		t.Fatalf("the settings hold no %q", old)
	}
	writeFile(t, made.ConfigPath, strings.Replace(both, old, "", 1))
	if err := d.stop(); err != nil {
		t.Fatal(err)
	}
	d = start(t, home, made)
	if works(d, made.KeyID, made.Secret) || !works(d, "next", "s3cret") {
		t.Error("after the restart the new key alone should work")
	}
}

func TestRun_AStopEndsFollowedLogsAndSlowClients(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	d := start(t, home, made)
	api := d.server(t, made.KeyID, made.Secret)
	bundle := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	if _, err := api.Deploy(t.Context(), client.DeployRequest{ID: "hello", Bundle: bytes.NewReader(bundle)}, nil); err != nil {
		t.Fatal(err)
	}
	res := d.get(t, "/api/hello/stream")
	defer res.Body.Close()
	followed := make(chan error, 1)
	go func() {
		followed <- api.FollowLogs(t.Context(), "hello", client.LogsRequest{}, func(client.LogLine) error { return nil })
	}()
	idle, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	began := time.Now()
	if err := d.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	// The drain of the child waits for its open stream; nothing waits longer.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if err := <-followed; err == nil {
		t.Error("following ended without a word")
	}
}

func TestNew_RefusesAHomeTooLongForSockets(t *testing.T) {
	t.Parallel()
	cfg := defaults("/" + strings.Repeat("x", 100))
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "101 bytes") {
		t.Errorf("new = %v", err)
	}
}

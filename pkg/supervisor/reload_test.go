package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// served is a supervisor in a process of its own.
type served struct {
	t      *testing.T
	home   string
	made   InitResult
	binary string // its program, which a test may replace
	url    string
	env    []string // beside that of the test
	log    *syncBuffer
	cmd    *exec.Cmd
	done   chan struct{}
	http   *http.Client
}

// newServed makes a home; settings are appended to its file.
func newServed(t *testing.T, settings string) *served {
	t.Helper()
	home, made := initHome(t)
	port := freePort(t)
	text := strings.Replace(readFile(t, made.ConfigPath), "port: 7890", fmt.Sprintf("port: %d", port), 1)
	writeFile(t, made.ConfigPath, text+settings)
	s := &served{t: t, home: home, made: made, url: fmt.Sprintf("http://127.0.0.1:%d", port), binary: filepath.Join(t.TempDir(), "supervisor")}
	s.http = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 100, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	t.Cleanup(s.http.CloseIdleConnections)
	s.install(testBinary(t))
	return s
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// install puts another program at the supervisor's path, as an upgrade does.
func (s *served) install(program string) {
	s.t.Helper()
	if err := os.Remove(s.binary); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	if os.Link(program, s.binary) == nil {
		return
	}
	text, err := os.ReadFile(program) // on another file system
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.binary, text, 0o755); err != nil {
		s.t.Fatal(err)
	}
}

func (s *served) start() {
	s.t.Helper()
	s.log, s.done = &syncBuffer{}, make(chan struct{})
	s.cmd = exec.Command(s.binary)
	s.cmd.Env = append(append(os.Environ(), s.env...), programEnv+"="+s.home, runtimeEnv+"="+testBinary(s.t))
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.WaitDelay = 5 * time.Second
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	s.t.Cleanup(s.stop)
	deploytest.Eventually(s.t, "the supervisor is ready", func() bool {
		if s.ended() {
			s.t.Fatalf("it ended:\n%s", s.log)
		}
		return strings.Contains(s.log.String(), "supervisor is ready")
	})
}

func (s *served) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *served) stop() {
	if !s.ended() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		<-s.done
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			s.t.Errorf("exit code %d", code)
		}
	}
	if s.t.Failed() {
		s.t.Logf("log of the supervisor:\n%s", s.log)
	}
}

func (s *served) api() *client.Server {
	s.t.Helper()
	c, err := client.NewServer(client.ServerConfig{
		URL: s.url, KeyID: s.made.KeyID, SecretKey: client.Secret(s.made.Secret), HTTP: s.http,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *served) deploy(id string) *client.Launched {
	s.t.Helper()
	bundle := deploytest.Bundle(s.t, id, deploytest.Files(id, nil))
	d, err := s.api().Deploy(s.t.Context(), client.DeployRequest{ID: id, Bundle: bytes.NewReader(bundle)}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// hangUp asks for a reload and returns how it went.
func (s *served) hangUp() Outcome {
	s.t.Helper()
	before, err := LastReload(s.home)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	var after Outcome
	deploytest.Eventually(s.t, "the reload has an outcome", func() bool {
		if s.ended() {
			s.t.Fatalf("it ended:\n%s", s.log)
		}
		after, err = LastReload(s.home)
		return err == nil && !after.At.Equal(before.At)
	})
	return after
}

func (s *served) reload() {
	s.t.Helper()
	if o := s.hangUp(); !o.Done {
		s.t.Fatalf("refused: %s", o.Message)
	}
}

// ask sends a request and returns the answer's text.
func (s *served) ask(ctx context.Context, c *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("some body"))
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", res.Status, text)
	}
	return string(text), nil
}

// load asks all the time, in several ways, and counts.
type load struct {
	s      *served
	done   atomic.Int64
	faults chan string
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (s *served) load(port, pid int) *load {
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &load{s: s, faults: make(chan string, 1000), cancel: cancel}
	own := "http://127.0.0.1:" + strconv.Itoa(port)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	number := func(text string) bool { return text == strconv.Itoa(pid) }
	ticked := func(text string) bool { return strings.HasSuffix(text, "data: 49\n\ndata: end\n\n") }
	for range 3 {
		l.worker(ctx, "kept", s.http, s.url+"/api/hello/", number)
		l.worker(ctx, "fresh", fresh, s.url+"/api/hello/", number)
		l.worker(ctx, "stream", s.http, s.url+"/api/hello/ticks?50", ticked)
	}
	l.worker(ctx, "own port", s.http, own+"/", number)
	l.worker(ctx, "own port, fresh", fresh, own+"/", number)
	l.wg.Go(func() { // management calls
		for ctx.Err() == nil {
			list, err := s.api().List(ctx, "")
			l.count(ctx, "list", err, err == nil && len(list) == 1 && list[0].PID == pid && list[0].Status == "running")
		}
	})
	return l
}

func (l *load) worker(ctx context.Context, name string, c *http.Client, url string, good func(string) bool) {
	l.wg.Go(func() {
		for ctx.Err() == nil {
			text, err := l.s.ask(ctx, c, url)
			l.count(ctx, name, err, err == nil && good(text))
		}
	})
}

func (l *load) count(ctx context.Context, name string, err error, good bool) {
	switch {
	case ctx.Err() != nil:
	case good:
		l.done.Add(1)
	default:
		select {
		case l.faults <- fmt.Sprintf("%s: %v", name, err):
		default:
		}
	}
}

// more waits until so many further requests are answered.
func (l *load) more(n int64) {
	l.s.t.Helper()
	from := l.done.Load()
	deploytest.Eventually(l.s.t, "the load goes on", func() bool { return l.done.Load() >= from+n || len(l.faults) > 0 })
}

func (l *load) end() {
	l.s.t.Helper()
	l.cancel()
	l.wg.Wait()
	close(l.faults)
	n := 0
	for f := range l.faults {
		if n++; n < 10 {
			l.s.t.Errorf("failed: %s", f)
		}
	}
	l.s.t.Logf("%d requests, %d failed", l.done.Load()+int64(n), n)
}

func TestReload_UnderLoadFailsNothing(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"plain": "", "TLS": "server: {tls: {cert: c.pem, key: k.pem}}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t, "")
			if settings != "" {
				makeCertificate(t, s.home, "localhost")
				text := readFile(t, s.made.ConfigPath)
				writeFile(t, s.made.ConfigPath, strings.Replace(text, "server:\n", "server:\n  tls: {cert: c.pem, key: k.pem}\n", 1))
				s.url = strings.Replace(s.url, "http:", "https:", 1)
			}
			s.start()
			d := s.deploy("hello")
			l := s.load(d.Port, d.PID)
			l.more(200)
			for range 3 {
				s.install(testBinary(t))
				s.reload()
				l.more(200)
			}
			l.end()
			if s.ended() {
				t.Fatal("the process is another one")
			}
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.cmd.Process.Pid)); err != nil || exe != s.binary {
				t.Errorf("the program is %s, %v; want the new %s", exe, err, s.binary)
			}
			// It is still the parent: the end of the child has a reason, and another follows.
			if err := syscall.Kill(d.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			deploytest.Eventually(t, "the child is replaced", func() bool {
				f, err := s.api().Get(t.Context(), "hello")
				return err == nil && f.Status == "running" && f.PID != d.PID && f.RestartCount == 1
			})
			if !strings.Contains(s.log.String(), `"reason":"signal: killed"`) && !strings.Contains(s.log.String(), "killed") {
				t.Error("the reason of the child's end is not known")
			}
			s.leavesNothing()
		})
	}
}

// leavesNothing looks for bridges.
func (s *served) leavesNothing() {
	s.t.Helper()
	deploytest.Eventually(s.t, "the bridges have ended and are waited for", func() bool {
		for _, pid := range s.children() {
			if state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); bytes.Contains(state, []byte(") Z ")) {
				return false
			}
		}
		return len(s.bridges()) == 0
	})
}

func TestReload_IsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.start()
	d := s.deploy("hello")
	l := s.load(d.Port, d.PID)
	good := readFile(t, s.made.ConfigPath)
	for _, tc := range []struct {
		name, want string
		spoil      func()
	}{
		{"settings", s.made.ConfigPath + ":", func() { writeFile(t, s.made.ConfigPath, good+"servr: {}\n") }},
		{"certificate", "no such file", func() {
			writeFile(t, s.made.ConfigPath, strings.Replace(good, "server:\n", "server:\n  tls: {cert: c.pem, key: k.pem}\n", 1))
		}},
		{"address", "address already in use", func() {
			writeFile(t, s.made.ConfigPath, strings.Replace(good, "port: "+s.url[strings.LastIndex(s.url, ":")+1:], "port: "+strconv.Itoa(d.Port), 1))
		}},
		{"no program", "no such file", func() {
			if err := os.Remove(s.binary); err != nil {
				t.Fatal(err)
			}
		}},
		{"another program", "it is not for you", func() {
			script := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(script, []byte("#!/bin/sh\necho it is not for you >&2\nexit 3\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			s.install(script)
		}},
	} {
		tc.spoil()
		o := s.hangUp()
		if o.Done || !strings.Contains(o.Message, tc.want) {
			t.Errorf("%s: outcome %+v, want %q", tc.name, o, tc.want)
		}
		writeFile(t, s.made.ConfigPath, good)
		s.install(testBinary(t))
		l.more(100)
	}
	s.reload()
	l.more(100)
	l.end()
	s.leavesNothing()
}

func TestReload_TakesNewSettings(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.start()
	d := s.deploy("hello")
	port := freePort(t)
	text := readFile(t, s.made.ConfigPath)
	old := s.url
	writeFile(t, s.made.ConfigPath, strings.Replace(text, "port: "+s.url[strings.LastIndex(s.url, ":")+1:], "port: "+strconv.Itoa(port), 1)+
		"header_prefix: Acme\n")
	s.reload()
	s.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	if text, err := s.ask(t.Context(), s.http, s.url+"/api/hello/"); err != nil || text != strconv.Itoa(d.PID) {
		t.Errorf("at the new address: %q, %v", text, err)
	}
	deploytest.Eventually(t, "the old address is closed", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(old, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	s.leavesNothing()
}

// Streams are finished as long as the drain time allows; nobody else waits for
// them.
func TestReload_ALongStreamIsFinishedAndAnEndlessOneIsCut(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	text := readFile(t, s.made.ConfigPath)
	writeFile(t, s.made.ConfigPath, strings.Replace(text, "drain_timeout: 2", "drain_timeout: 5", 1))
	s.start()
	d := s.deploy("hello")
	open := func(path string) *bufio.Reader {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		r := bufio.NewReader(res.Body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return r
	}
	long, endless := open("/api/hello/ticks?250"), open("/api/hello/stream")
	began := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "a bridge serves", func() bool { return len(s.bridges()) == 1 })
	for time.Since(began) < 2*time.Second { // the program is not replaced yet
		asked := time.Now()
		if text, err := s.ask(t.Context(), s.http, s.url+"/api/hello/"); err != nil || text != strconv.Itoa(d.PID) {
			t.Fatalf("meanwhile: %q, %v", text, err)
		}
		if took := time.Since(asked); took > time.Second {
			t.Errorf("a request took %s", took)
		}
	}
	var health client.ServerHealth
	res := get(t, s.http, s.url+"/health")
	if err := json.NewDecoder(res.Body).Decode(&health); err != nil || health.Formations != 1 {
		t.Errorf("health meanwhile: %+v, %v", health, err)
	}
	res.Body.Close()
	// What needs the supervisor waits for it.
	if list, err := s.api().List(t.Context(), ""); err != nil || len(list) != 1 || list[0].PID != d.PID {
		t.Errorf("list: %+v, %v", list, err)
	}
	if took := time.Since(began); took < 4*time.Second || took > 20*time.Second {
		t.Errorf("the list was answered after %s, want when the drain time was over", took)
	}
	all, err := io.ReadAll(long)
	if err != nil || !strings.HasSuffix(string(all), "data: end\n\n") {
		t.Errorf("the long stream: %v, ... %q", err, all[max(0, len(all)-20):])
	}
	if all, err := io.ReadAll(endless); err == nil {
		t.Errorf("the endless stream ended as if it were complete: %q", all)
	}
	if line := readFile(t, filepath.Join(s.home, "logs/audit.log")); !strings.Contains(line, `"remote_addr":"127.0.0.1"`) {
		t.Errorf("the peer of the call that waited is not recorded: %s", line)
	}
	s.leavesNothing()
}

func get(t *testing.T, c *http.Client, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// bridges are the process numbers of the supervisor's bridges.
func (s *served) bridges() (pids []int) {
	s.t.Helper()
	for _, pid := range s.children() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if bytes.Contains(env, []byte("\x00"+envBridge+"=")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children are the process numbers of all that the supervisor started.
func (s *served) children() (pids []int) {
	s.t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

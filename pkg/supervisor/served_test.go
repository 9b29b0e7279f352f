package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/test/testports"
	"github.com/agentformation/service/test/testprogram"
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
	// logFile is where logging.output leads its log, if anywhere.
	logFile string
	cmd     *exec.Cmd
	done    chan struct{}
	http    *http.Client
}

// newServed makes a home; settings are appended to its file.
func newServed(t *testing.T, settings string) *served {
	t.Helper()
	home, made := initHome(t)
	port := testports.Block(t)
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

// install puts another program at the supervisor's path, as an upgrade does.
func (s *served) install(program string) {
	s.t.Helper()
	if err := os.Remove(s.binary); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	if os.Link(program, s.binary) == nil {
		return
	}
	if err := testprogram.Copy(program, s.binary); err != nil { // it is on another file system
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
		return strings.Contains(s.said(), "supervisor is ready")
	})
}

// said is the supervisor's log.
func (s *served) said() string {
	if s.logFile == "" {
		return s.log.String()
	}
	text, _ := os.ReadFile(s.logFile) // it may not be there yet
	return s.log.String() + string(text)
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
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

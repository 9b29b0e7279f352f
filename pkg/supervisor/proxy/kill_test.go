package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
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

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/proxy"
)

// childEnv makes the test binary a formation's process.
const childEnv = "PROXYTEST_CHILD"

// childMain serves on descriptor 3 and writes the body of each request, a line,
// to descriptor 4 as soon as it has read it: that is what it has "done". Then it
// works for a moment.
func childMain() int {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return 2
	}
	done := os.NewFile(4, "done")
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		line, _, _ := bytes.Cut(body, []byte(" "))
		_, _ = done.Write(append(line, '\n'))
		<-time.After(time.Millisecond)
		_, _ = w.Write(line)
	})}
	fmt.Println(srv.Serve(l))
	return 1
}

// mortal is a formation whose process is killed and replaced; the listening
// socket is ours, as the supervisor's is.
type mortal struct {
	t        *testing.T
	listener *os.File
	addr     string
	done     *os.File
	url      string
	client   *http.Client
	answered atomic.Int64

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	launch int
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{t: t, addr: l.Addr().String()}
	if m.listener, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	m.done, err = os.OpenFile(filepath.Join(t.TempDir(), "done"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p := proxy.New(proxy.Config{Log: zerolog.Nop(), Target: func(context.Context, string) (proxy.Target, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return proxy.Target{Addr: m.addr, Launch: fmt.Sprint(m.launch)}, nil
	}})
	e := httpx.NewEcho(httpx.Config{Log: zerolog.Nop(), OnError: func(c echo.Context, err error) {
		_ = c.String(fault.KindOf(err).HTTPStatus(), err.Error()+": "+fmt.Sprint(errors.Unwrap(err)))
	}})
	p.Mount(e)
	front := httptest.NewServer(e)
	m.url, m.client = front.URL+"/api/hello/", &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	m.begin()
	t.Cleanup(func() {
		m.client.CloseIdleConnections()
		front.Close()
		p.Close()
		m.end()
		m.listener.Close()
		m.done.Close()
	})
	return m
}

// begin starts a process.
func (m *mortal) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launch++
	m.cmd = exec.CommandContext(context.WithoutCancel(m.t.Context()), os.Args[0])
	m.cmd.Env = append(os.Environ(), childEnv+"=1")
	m.cmd.ExtraFiles = []*os.File{m.listener, m.done}
	if err := m.cmd.Start(); err != nil {
		m.t.Error(err)
	}
}

func (m *mortal) signal(s syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Error(err)
	}
}

// end kills the process.
func (m *mortal) end() {
	m.signal(syscall.SIGKILL)
	_ = m.cmd.Wait()
}

// halt stops the process and waits until none of its threads runs: the signal
// only tells them to stop.
func (m *mortal) halt() {
	m.t.Helper()
	m.signal(syscall.SIGSTOP)
	threads := fmt.Sprintf("/proc/%d/task/*/stat", m.cmd.Process.Pid)
	m.await(func() bool {
		stats, err := filepath.Glob(threads)
		if err != nil || len(stats) == 0 {
			m.t.Fatalf("threads of the process: %v, %v", stats, err)
		}
		for _, stat := range stats {
			text, err := os.ReadFile(stat)
			if err != nil || !bytes.Contains(text, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

// established is the kernel's number of that state. One that the proxy has
// closed, and of which the halted process has not seen the end, is in another.
const established = "01"

// awaitUnread waits until n connections to the process hold bytes that it has
// not read, as the kernel's table tells.
func (m *mortal) awaitUnread(n int) {
	m.t.Helper()
	_, text, _ := net.SplitHostPort(m.addr)
	port, _ := strconv.Atoi(text)
	local := fmt.Sprintf(":%04X", port)
	m.await(func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			m.t.Fatal(err)
		}
		unread := 0
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if strings.HasSuffix(f[1], local) && f[3] == established && !strings.HasSuffix(f[4], ":00000000") {
				unread++
			}
		}
		return unread == n
	})
}

func (m *mortal) await(ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			m.t.Fatal("waited in vain")
		}
	}
}

// killUnderLoad kills and replaces the process n times, each time when some more
// requests have been answered, and when each of the workers (may be nil) has had
// an answer since the last time: none of their requests meets two deaths.
func (m *mortal) killUnderLoad(n int, workers []atomic.Int64) {
	before := make([]int64, len(workers))
	for range n {
		more := m.answered.Load() + 20 + rand.Int64N(40)
		for i := range workers {
			before[i] = workers[i].Load()
		}
		m.await(func() bool {
			for i := range workers {
				if workers[i].Load() == before[i] {
					return false
				}
			}
			return m.answered.Load() >= more
		})
		m.end()
		m.begin()
	}
}

// post sends one request and returns its status and answer.
func (m *mortal) post(method, id string) (int, string) {
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.url, strings.NewReader(id+" and more text"))
	if err != nil {
		m.t.Error(err)
		return 0, ""
	}
	res, err := m.client.Do(req)
	if err != nil {
		m.t.Errorf("%s %s: %v", method, id, err)
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		m.t.Errorf("%s %s: %v", method, id, err)
	}
	m.answered.Add(1)
	return res.StatusCode, string(text)
}

// counted is how often each request was done.
func (m *mortal) counted() map[string]int {
	m.t.Helper()
	text, err := os.ReadFile(m.done.Name())
	if err != nil {
		m.t.Fatal(err)
	}
	count := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		count[strings.TrimSpace(line)]++
	}
	return count
}

func TestKill_WhatNobodyHadReadIsSentToTheSuccessor(t *testing.T) {
	t.Parallel()
	m := newMortal(t)
	const n = 16
	for round := range 5 {
		all := func(kind string, check func(id string, status int, text string)) *sync.WaitGroup {
			var wg sync.WaitGroup
			for i := range n {
				id := fmt.Sprintf("%s-%d-%d", kind, round, i)
				wg.Go(func() {
					status, text := m.post(http.MethodPost, id)
					check(id, status, text)
				})
			}
			return &wg
		}
		must := func(id string, status int, text string) {
			if status != http.StatusOK || text != id {
				t.Errorf("%s: %d %s", id, status, text)
			}
		}
		all("warm", must).Wait() // many kept connections
		m.halt()
		asked := all("asked", must)
		m.awaitUnread(n)
		m.end()
		m.begin()
		asked.Wait()
	}
	for id, times := range m.counted() {
		if times != 1 {
			t.Errorf("%s was done %d times", id, times)
		}
	}
	if got := len(m.counted()); got != 5*2*n {
		t.Errorf("%d requests were done, want %d", got, 5*2*n)
	}
}

func TestKill_NothingIsDoneTwiceUnderLoad(t *testing.T) {
	t.Parallel()
	m := newMortal(t)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	answers := make(map[string]int)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("load-%d-%d", w, i)
				status, text := m.post(http.MethodPost, id)
				if status != http.StatusOK && status != http.StatusBadGateway || status == http.StatusOK && text != id {
					t.Errorf("%s: %d %s", id, status, text)
				}
				mu.Lock()
				answers[id] = status
				mu.Unlock()
			}
		})
	}
	const kills = 30
	m.killUnderLoad(kills, nil)
	cancel()
	wg.Wait()
	count, lost, unexplained := m.counted(), 0, 0
	for id, status := range answers {
		if status == http.StatusBadGateway {
			lost++
		}
		switch times := count[id]; {
		case times > 1, times == 0 && status == http.StatusOK:
			t.Errorf("%s was answered with %d and done %d times", id, status, times)
		case times == 0:
			unexplained++ // killed between its reading and its doing
		}
	}
	t.Logf("%d requests, %d kills, %d cut while they were worked on, %d of those before their first step", len(answers), kills, lost, unexplained)
	// Eight requests are at work at each kill; hardly one of them can be between
	// two statements of the process.
	if unexplained > kills {
		t.Errorf("%d requests were given up although nobody had worked on them", unexplained)
	}
}

func TestKill_ARequestThatChangesNothingIsRepeated(t *testing.T) {
	t.Parallel()
	m := newMortal(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	answered := make([]atomic.Int64, 4) // by worker
	for w := range answered {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if status, text := m.post(http.MethodGet, fmt.Sprintf("get-%d-%d", w, i)); status != http.StatusOK {
					t.Errorf("%d %s", status, text)
				}
				answered[w].Add(1)
			}
		})
	}
	m.killUnderLoad(10, answered)
	cancel()
	wg.Wait()
}

package formation_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/test/fakellm"
)

const worldManifest = `schema: "1.0.0"
id: world
description: One agent over a scripted model.
server:
  api_keys:
    client_key: fmc_world
llm:
  endpoints:
    openai: %s
  models:
    - text: openai/fake
agents:
  - id: writer
    name: Writer
    description: Writes.
`

// patience is how long tests wait for what must come. It is no measure of speed:
// a machine may stand still for seconds.
const patience = time.Minute

// world is what the children of one formation share: files, socket, model.
type world struct {
	t          *testing.T
	fake       *fakellm.Server
	dir, state string
	socket     int // the listening socket, which outlives every child
	addr       string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, fake: fakellm.Start(t, fakellm.Options{Record: -1}), dir: t.TempDir()}
	w.state = filepath.Join(w.dir, "state")
	if err := os.WriteFile(filepath.Join(w.dir, "formation.afs"), fmt.Appendf(nil, worldManifest, w.fake.URL()), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { w.socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(w.socket) })
	w.addr = l.Addr().String()
	return w
}

// listenOn makes a listener of a copy of the socket.
func listenOn(fd int) (net.Listener, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "listener")
	defer f.Close()
	return net.FileListener(f)
}

// config is that of a child in this process.
func (w *world) config(launch string) formation.Config {
	return formation.Config{
		FormationID: "world", LaunchID: launch, Log: zerolog.Nop(),
		Listen: func() (net.Listener, error) { return listenOn(w.socket) },
	}
}

// load starts a child in this process; it is ready and does not serve.
func (w *world) load(cfg formation.Config, fence ...string) *formation.Formation {
	w.t.Helper()
	f := formation.New(cfg)
	req := control.LoadRequest{Dir: w.dir, StateDir: w.state, Fence: fence}
	if _, err := f.Load(w.t.Context(), req, func(string) {}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.check(f.Stop(context.WithoutCancel(w.t.Context()))) })
	return f
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// swap puts a new child in the place of the old one, as an update does.
func (w *world) swap(old, next *formation.Formation, oldLaunch string, lameDuck time.Duration) {
	w.t.Helper()
	ctx := w.t.Context()
	w.check(next.Serve(ctx))
	w.check(old.Pause(ctx))
	if d, err := old.Drain(ctx, control.DrainRequest{Timeout: patience, LameDuck: lameDuck}); err != nil || d.Unfinished != 0 {
		w.t.Errorf("drain: %+v, %v", d, err)
	}
	w.check(old.Stop(ctx))
	if _, err := next.Fence(ctx, []string{oldLaunch}); err != nil {
		w.t.Error(err)
	}
}

// client is an HTTP client with connections of its own.
func (w *world) client(keepAlive bool) *http.Client {
	tr := &http.Transport{DisableKeepAlives: !keepAlive}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// wire is one connection, which the requests of a client share. A transport may
// take another for the next of them: it gives up one whose write it has not heard
// the end of within 50 ms.
type wire struct {
	net.Conn
	in *bufio.Reader
}

func (x *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Write(x.Conn); err != nil {
		return nil, err
	}
	return http.ReadResponse(x.in, r)
}

// wired is an HTTP client with one connection, to the child that accepts it.
func (w *world) wired() *http.Client {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.check(err)
	w.t.Cleanup(func() { conn.Close() })
	return &http.Client{Transport: &wire{Conn: conn, in: bufio.NewReader(conn)}}
}

// ask is one request to the formation.
type ask struct {
	method, path string // POST /v1/chat when empty
	body         string
	stream       bool
	header       map[string]string
}

func (w *world) request(ctx context.Context, a ask) *http.Request {
	if a.method == "" {
		a.method, a.path = http.MethodPost, "/v1/chat"
	}
	req, err := http.NewRequestWithContext(ctx, a.method, "http://"+w.addr+a.path, strings.NewReader(a.body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-SVC-Client-Key", "fmc_world")
	if a.stream {
		req.Header.Set("Accept", "text/event-stream")
	}
	for k, v := range a.header {
		req.Header.Set(k, v)
	}
	return req
}

// reply is what came back.
type reply struct {
	status int
	closed bool // the answer ended its connection
	body   []byte
}

func (w *world) do(c *http.Client, a ask) (reply, error) {
	res, err := c.Do(w.request(w.t.Context(), a))
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return reply{status: res.StatusCode, closed: res.Close, body: body}, err
}

func (w *world) must(c *http.Client, a ask) reply {
	w.t.Helper()
	r, err := w.do(c, a)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// sent is what became of a request.
type sent struct {
	reply
	err error
}

// later sends a request and does not wait for its answer.
func (w *world) later(c *http.Client, a ask) <-chan sent {
	ended := make(chan sent, 1)
	go func() {
		r, err := w.do(c, a)
		ended <- sent{r, err}
	}()
	return ended
}

// answer waits for what later has sent.
func (w *world) answer(ended <-chan sent) reply {
	w.t.Helper()
	s := <-ended
	w.check(s.err)
	return s.reply
}

// envelope is the part of a reply that the tests look at.
type envelope struct {
	Code string `json:"code"`
	Data struct {
		RequestID string `json:"request_id"`
		Status    string `json:"status"`
		Response  string `json:"response"`
		ErrorCode string `json:"error_code"`
	} `json:"data"`
}

func (r reply) envelope(t *testing.T) envelope {
	t.Helper()
	var e envelope
	if err := json.Unmarshal(r.body, &e); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return e
}

// complete tells whether a stream has its end, and that only once.
func complete(body []byte) error {
	completed := bytes.Count(body, []byte(`"type":"completed"`))
	done := bytes.Count(body, []byte("event: done"))
	if completed != 1 || done != 1 || bytes.Contains(body, []byte("event: error")) || !bytes.HasSuffix(bytes.TrimSpace(body), []byte(`{"finished":true}`)) {
		return fmt.Errorf("%d completed, %d done in\n%s", completed, done, body)
	}
	return nil
}

// until polls a condition that another process or goroutine makes true.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !cond() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s did not come true in %v", what, patience)
		}
	}
}

// load keeps many clients busy until it is stopped, and counts what failed.
type load struct {
	w       *world
	wg      sync.WaitGroup
	stopped chan struct{}

	mu     sync.Mutex
	json   int
	stream int
	failed []error
}

func (w *world) startLoad(workers int) *load {
	l := &load{w: w, stopped: make(chan struct{})}
	for i := range workers {
		l.wg.Go(func() { l.work(i) })
	}
	return l
}

func (l *load) work(i int) {
	c, stream := l.w.client(i%2 == 0), i%3 == 0
	session := ""
	if i%4 < 2 { // some talk in one session, over the swaps
		session = fmt.Sprintf(`,"session_id":"sess_%d"`, i)
	}
	for n := 0; ; n++ {
		select {
		case <-l.stopped:
			return
		default:
		}
		text := fmt.Sprintf("worker %d message %d", i, n)
		r, err := l.w.do(c, ask{body: fmt.Sprintf(`{"message":%q,"stream":%v,"agent_id":"writer"%s}`, text, stream, session), stream: stream})
		switch {
		case err != nil:
		case r.status != http.StatusOK:
			err = fmt.Errorf("status %d: %s", r.status, r.body)
		case stream:
			err = complete(r.body)
		}
		l.mu.Lock()
		switch {
		case err != nil:
			l.failed = append(l.failed, fmt.Errorf("%s: %w", text, err))
		case stream:
			l.stream++
		default:
			l.json++
		}
		l.mu.Unlock()
	}
}

// stop ends the load and reports.
func (l *load) stop() {
	l.w.t.Helper()
	close(l.stopped)
	l.wg.Wait()
	l.w.t.Logf("%d answers, %d streams, %d failed", l.json, l.stream, len(l.failed))
	for i, err := range l.failed {
		if i == 5 {
			break
		}
		l.w.t.Error(err)
	}
	if l.json == 0 || l.stream == 0 {
		l.w.t.Error("there was no load")
	}
}

// events reads a stream frame by frame.
type events struct {
	res *http.Response
	in  *bufio.Scanner
}

func (w *world) open(c *http.Client, a ask) *events {
	w.t.Helper()
	res, err := c.Do(w.request(w.t.Context(), a))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	in := bufio.NewScanner(res.Body)
	return &events{res: res, in: in}
}

// skipTo reads up to the line that holds text and returns it.
func (e *events) skipTo(t *testing.T, text string) string {
	t.Helper()
	for e.in.Scan() {
		if strings.Contains(e.in.Text(), text) {
			return e.in.Text()
		}
	}
	t.Fatalf("the stream ended without %s: %v", text, e.in.Err())
	return ""
}

package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// answer is what a call got. err is set when no answer came.
type answer struct {
	status int
	header http.Header
	path   string // of the call
	body   string
	name   string // of the error
	res    *http.Response
	err    error
}

// String is "<status> <name>", as routes document their failures.
func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", a.status, a.name))
}

// begin sends a call beside the test and returns what waits for its answer,
// callLimit at the most.
func (d *door) begin(t *testing.T, c call) func() answer {
	t.Helper()
	req := d.request(t, t.Context(), c)
	got := make(chan answer, 1)
	go func() { got <- d.exchange(req) }()
	return func() answer { return <-got }
}

func (d *door) exchange(req *http.Request) answer { return read(d.client.Do(req)) }

// read reads the whole answer.
func read(res *http.Response, err error) answer {
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	var env struct{ Error string }
	_ = json.Unmarshal(text, &env) // no envelope has no name
	return answer{
		status: res.StatusCode, header: res.Header, path: res.Request.URL.Path, body: string(text), name: env.Error, res: res, err: err,
	}
}

// bundled is a call that sends files as the bundle of the formation id.
func (d *door) bundled(t *testing.T, method, path, id string, files map[string]string) call {
	t.Helper()
	return call{
		method: method, path: path, body: deploytest.Bundle(t, id, deploytest.Files(id, files)),
		header: map[string]string{"Content-Type": "application/gzip", "X-Formation-ID": id},
	}
}

// busy tells that a first deploy or an update of id is in progress.
func (d *door) busy(t *testing.T, id string) bool {
	t.Helper()
	err := d.Service.CheckUpdate(id)
	return err != nil && strings.Contains(err.Error(), "in progress") ||
		err != nil && strings.Contains(err.Error(), "for the first time")
}

// post sends body to a path below /rpc/formations; the answer must be 200.
func (d *door) post(t *testing.T, path, body string) answer {
	t.Helper()
	got := d.exchange(d.request(t, t.Context(), call{method: "POST", path: "/rpc/formations/" + path, body: []byte(body)}))
	if got.status != http.StatusOK {
		t.Fatalf("POST %s %s: %s %s", path, body, got, got.body)
	}
	return got
}

// drafted makes a draft of id with the files that load, and further ones.
func (d *door) drafted(t *testing.T, id string, extra map[string]string) {
	t.Helper()
	d.post(t, id+"/draft/files", `{"action": "init", "mode": "new"}`)
	for name, text := range deploytest.Files(id, extra) {
		d.writeDraft(t, id, name, text)
	}
}

func (d *door) writeDraft(t *testing.T, id, name, text string) {
	t.Helper()
	d.post(t, id+"/draft/files", asJSON(t, map[string]string{"action": "write", "path": name, "content": text}))
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// devRun is the call that runs an author's own directory.
func devRun(t *testing.T, id string, files map[string]string) call {
	t.Helper()
	dir := t.TempDir()
	for name, text := range deploytest.Files(id, files) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return call{method: "POST", path: "/rpc/dev/run", body: []byte(asJSON(t, map[string]string{"path": dir}))}
}

// manifestWith is the manifest of Files with further lines.
func manifestWith(id, more string) map[string]string {
	return map[string]string{"formation.afs": deploytest.Files(id, nil)["formation.afs"] + more}
}

// behaves scripts the next processes of a formation that is deployed; "" is the
// usual behaviour.
func (d *door) behaves(t *testing.T, id, mode string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Home, "formations", id, "state", "behave"), []byte(mode), 0o600); err != nil {
		t.Fatal(err)
	}
}

// block puts a file in the place of whatever is at path of the home, until the
// returned function brings that back.
func (d *door) block(t *testing.T, path string) (restore func()) {
	t.Helper()
	path = filepath.Join(d.Home, path)
	aside := path + ".aside"
	moved := os.Rename(path, aside) == nil
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("a file in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		err := os.Remove(path)
		if err == nil && moved {
			err = os.Rename(aside, path)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// sqlite runs a statement on a database of the home, behind everybody's back.
func (d *door) sqlite(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(d.Home, path)+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// refuse makes the registry refuse one kind of change, for example "UPDATE ON
// formations", until the returned function allows it again.
func (d *door) refuse(t *testing.T, what string) (allow func()) {
	t.Helper()
	name := "refuse_" + strings.ToLower(strings.ReplaceAll(what, " ", "_"))
	d.sqlite(t, "registry.db", "CREATE TRIGGER "+name+" BEFORE "+what+" BEGIN SELECT RAISE(ABORT, 'refused'); END")
	return func() { d.sqlite(t, "registry.db", "DROP TRIGGER "+name) }
}

// takePorts binds every port that is still free, until the test's end.
func (d *door) takePorts(t *testing.T) {
	t.Helper()
	for port := d.First; port < d.First+10; port++ {
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			t.Cleanup(func() { l.Close() })
		}
	}
}

// with returns c with further headers.
func (c call) with(headers map[string]string) call {
	c.header = maps.Clone(c.header)
	if c.header == nil {
		c.header = make(map[string]string)
	}
	maps.Copy(c.header, headers)
	return c
}

// request is the signed request of a call.
func (d *door) request(t *testing.T, ctx context.Context, c call) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, c.method, d.url+c.path, bytes.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	if c.sign == nil {
		c.sign = authorize
	}
	c.sign(req, c.body)
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	return req
}

// malformed sends the head of c, and a body that breaks HTTP's own rules.
func (d *door) malformed(t *testing.T, c call) answer {
	t.Helper()
	c.body = nil
	req := d.request(t, t.Context(), c)
	conn, err := net.Dial("tcp", req.URL.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(callLimit)); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n", req.Method, req.URL.Path, req.URL.Host)
	for name := range req.Header {
		head += name + ": " + req.Header.Get(name) + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\nno size of a chunk\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	return read(res, err)
}

func asMap(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

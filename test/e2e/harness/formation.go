package harness

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Files are the files of a formation, by their path in it.
type Files map[string]string

// Read reads a directory of the repository.
func (s *Suite) Read(tb testing.TB, dir string) Files {
	tb.Helper()
	files := Files{}
	root := filepath.Join(s.root, dir)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		files[rel] = string(text)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// Pair is the formation with the agents poet and cook, with an id and a model
// server of the caller's.
func (s *Suite) Pair(tb testing.TB, id, modelURL string) Files {
	tb.Helper()
	files := s.Read(tb, "test/formations/valid/pair")
	text := strings.NewReplacer("id: pair\n", "id: "+id+"\n", "http://127.0.0.1:1/v1", modelURL).Replace(files["formation.afs"])
	if !strings.Contains(text, "id: "+id+"\n") || !strings.Contains(text, modelURL) {
		tb.Fatalf("the pair formation is not as expected:\n%s", text)
	}
	files["formation.afs"] = text
	return files
}

// With returns the files with a text appended to the manifest.
func (f Files) With(yaml string) Files {
	changed := make(Files, len(f))
	maps.Copy(changed, f)
	changed["formation.afs"] += yaml
	return changed
}

// Write lays the files out in a new directory.
func (f Files) Write(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, text := range f {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// Bundle packs the files under one root directory.
func (f Files) Bundle(tb testing.TB, root string) []byte {
	tb.Helper()
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	entries := make([]Entry, 0, len(f))
	for _, name := range names {
		entries = append(entries, Entry{Name: path.Join(root, name), Text: f[name]})
	}
	return Archive(tb, entries...)
}

// Entry is one entry of an archive.
type Entry struct {
	Name, Text string
	Type       byte // 0 is a regular file
	Link       string
}

// Archive packs entries, sane or not, as they are.
func Archive(tb testing.TB, entries ...Entry) []byte {
	tb.Helper()
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	tw := tar.NewWriter(gz)
	for _, e := range entries {
		kind := e.Type
		if kind == 0 {
			kind = tar.TypeReg
		}
		err := tw.WriteHeader(&tar.Header{Name: e.Name, Typeflag: kind, Linkname: e.Link, Mode: 0o600, Size: int64(len(e.Text))})
		if err == nil {
			_, err = tw.Write([]byte(e.Text))
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// Formation is a deployed formation.
type Formation struct {
	ID         string
	Port       int
	AdminKey   string
	ClientKey  string
	supervisor *Supervisor
	pid        int // as NotePID found it
	killed     int // the process number that Kill ended
}

// TB is the test that deployed the formation.
func (f *Formation) TB() testing.TB { return f.supervisor.TB }

// NotePID remembers the process number, for a time when nobody can be asked.
func (f *Formation) NotePID() {
	f.supervisor.TB.Helper()
	f.pid = f.PID()
}

// LastPID is the process number that NotePID found.
func (f *Formation) LastPID() int { return f.pid }

// Deploy deploys files and returns the formation; a failure ends the test.
func (s *Supervisor) Deploy(id string, files Files) *Formation {
	s.TB.Helper()
	reply := s.HTTP.Must(s.DeployRequest(id, files.Bundle(s.TB, id)))
	if reply.Status != http.StatusCreated {
		s.TB.Fatalf("deploy %s: %d %s", id, reply.Status, reply.Body)
	}
	f := &Formation{ID: id, Port: reply.Int("data.port"), supervisor: s}
	shown := s.CLI("keys", "show", id, "--output", "json")
	keys := Reply{Body: []byte(shown.Stdout)}
	f.AdminKey, f.ClientKey = keys.Text("admin_key"), keys.Text("client_key")
	return f
}

// Own is the base address of the formation's own port.
func (f *Formation) Own() string { return "http://127.0.0.1:" + strconv.Itoa(f.Port) }

// Through is the base address behind the supervisor.
func (f *Formation) Through() string { return f.supervisor.URL + "/api/" + f.ID }

// Get returns what the management API tells about the formation.
func (f *Formation) Get() Reply {
	f.supervisor.TB.Helper()
	return f.supervisor.RPC(http.MethodGet, "/rpc/formations/"+f.ID)
}

// Kill kills the formation's process. No later request tries a connection that
// died with it.
func (f *Formation) Kill() {
	f.supervisor.TB.Helper()
	f.killed = f.PID()
	KillProcess(f.supervisor.TB, f.killed)
	f.supervisor.HTTP.http.CloseIdleConnections()
}

// PID is the process number now, 0 when there is none.
func (f *Formation) PID() int {
	f.supervisor.TB.Helper()
	return f.Get().Int("data.pid")
}

// UntilStatus waits for a status of the process. What the supervisor tells before
// it has seen that Kill ended the process is not meant.
func (f *Formation) UntilStatus(want string) Reply {
	f.supervisor.TB.Helper()
	var last Reply
	Until(f.supervisor.TB, f.ID+" is "+want, func() bool {
		last = f.Get()
		return last.Text("data.status") == want && (f.killed == 0 || last.Int("data.pid") != f.killed)
	})
	return last
}

// Chat is the body of a chat request.
type Chat map[string]any

// Request is a chat request of a user to the formation's own port.
func (f *Formation) Request(body any) Request {
	return Request{
		Method: http.MethodPost, URL: f.Own() + "/v1/chat", Body: body,
		Header: map[string]string{"X-SVC-Client-Key": f.ClientKey, "X-SVC-User-Id": "ann"},
	}
}

// Streamed is Request with a stream as its answer.
func (f *Formation) Streamed(body any) Request {
	r := f.Request(body)
	r.Header["Accept"] = "text/event-stream"
	return r
}

// Read is a GET of a path of the formation with its client key.
func (f *Formation) Read(path string) Request {
	r := f.Request(nil)
	r.Method, r.URL = http.MethodGet, f.Own()+path
	return r
}

// Say sends a message and expects its answer.
func (f *Formation) Say(body Chat) Reply {
	f.supervisor.TB.Helper()
	reply := f.supervisor.HTTP.Must(f.Request(body))
	if reply.Status != http.StatusOK {
		f.supervisor.TB.Fatalf("chat %v: %d %s", body, reply.Status, reply.Body)
	}
	return reply
}

// UntilEnded polls a request until its status is terminal.
func (f *Formation) UntilEnded(ctx context.Context, id string) Reply {
	f.supervisor.TB.Helper()
	var last Reply
	Until(f.supervisor.TB, "request "+id+" ends", func() bool {
		reply, err := f.supervisor.HTTP.Do(ctx, f.Read("/v1/requests/"+id))
		if err != nil { // the one connection of a process that was killed meanwhile
			return false
		}
		last = reply
		switch reply.Text("data.status") {
		case "completed", "failed", "cancelled":
			return true
		}
		return false
	})
	return last
}

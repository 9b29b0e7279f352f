package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const manifestText = `schema: "1.0.0"
id: hello
description: Says hello.
llm:
  models:
    - text: demo/echo
agents:
  - id: greeter
    name: Greeter
    description: Greets.
`

const completeEvent = `event: complete
data: {"formation_id":"hello","port":8000,"status":"running","url":"u"}

`

// newSession returns a session that calls f.
func newSession(t *testing.T, f *fake) *session {
	t.Helper()
	return &session{home: t.TempDir(), env: map[string]string{"SVC_SERVER_URL": f.URL}}
}

// writeTree makes the files in a new directory.
func writeTree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		content := "x"
		if name == "formation.afs" {
			content = manifestText
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// keepBundle answers a deploy and keeps what was sent.
func keepBundle(t *testing.T, f *fake) *[]byte {
	var sent []byte
	f.on("POST /rpc/formations", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Formation-ID") != "hello" {
			t.Errorf("deploys %q", r.Header.Get("X-Formation-ID"))
		}
		var err error
		if sent, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, completeEvent) //nolint:errcheck // the client sees it
	}})
	return &sent
}

func filesOf(t *testing.T, bundle []byte) []string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
}

func TestDeploy_LeavesLocalFilesBehind(t *testing.T) {
	t.Parallel()
	kept := []string{"formation.afs", "secrets.enc", ".key", "agents/a.afs", "knowledge/environment.env", "knowledge/keys", "logs/readme"}
	dropped := []string{
		".git/config", ".svc/x", "secrets", ".env", ".env.local", "node_modules/m/i.js", "__pycache__/a", "a/b.pyc",
		".DS_Store", "deep/er/x.log", "x.tmp", ".vscode/s", ".idea/s", "memory.db-wal", "memory.db-shm",
		"keys", "secrets.state.enc", "secrets.state.key",
	}
	dir := writeTree(t, slices.Concat(kept, dropped, []string{"memory.db"})...)
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, kept},
		{[]string{"--include-db"}, append(slices.Clone(kept), "memory.db")},
	} {
		f := newFake(t)
		sent := keepBundle(t, f)
		s := newSession(t, f)
		if code := s.run(t.Context(), append([]string{"deploy", dir}, tc.args...)...); code != 0 {
			t.Fatalf("exit code %d: %s", code, s.er.String())
		}
		want := make([]string, 0, len(tc.want))
		for _, name := range tc.want {
			want = append(want, "hello/"+name)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, filesOf(t, *sent)); diff != "" {
			t.Error(diff)
		}
	}
}

// An unchanged formation must be the same bytes, or no update is ever "no change".
func TestDeploy_SendsTheSameBytesAgain(t *testing.T) {
	t.Parallel()
	var bundles [][]byte
	for range 2 {
		f := newFake(t)
		sent := keepBundle(t, f)
		s := newSession(t, f)
		if code := s.run(t.Context(), "deploy", writeTree(t, "formation.afs", "agents/a.afs")); code != 0 {
			t.Fatalf("exit code %d: %s", code, s.er.String())
		}
		bundles = append(bundles, *sent)
	}
	if !bytes.Equal(bundles[0], bundles[1]) {
		t.Error("two bundles of the same files differ")
	}
}

func TestDeploy_SendsABundleFileAsItIs(t *testing.T) {
	t.Parallel()
	var raw bytes.Buffer
	gz := gzip.NewWriter(&raw)
	tw := tar.NewWriter(gz)
	if err := tw.WriteHeader(&tar.Header{Name: "any/formation.afs", Mode: 0o600, Size: int64(len(manifestText))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tw, manifestText); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hello.tar.gz")
	if err := os.WriteFile(path, raw.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	sent := keepBundle(t, f)
	s := newSession(t, f)
	if code := s.run(t.Context(), "deploy", path); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	if !bytes.Equal(raw.Bytes(), *sent) {
		t.Error("the bundle changed on its way")
	}
}

func TestDeploy_AnInterruptRemovesTheNewFormation(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f.on("POST /rpc/formations", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: progress\ndata: {\"stage\":\"spawning\"}\n\n") //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		interrupt()
		<-r.Context().Done()
	}})
	f.on("DELETE /rpc/formations/hello", reply{status: 200, body: `{"success":true,"data":{}}`})
	s := newSession(t, f)
	if code := s.run(ctx, "deploy", writeTree(t, "formation.afs")); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if want := "GET /rpc/formations/hello\nPOST /rpc/formations\nDELETE /rpc/formations/hello\n"; f.said() != want {
		t.Errorf("asked something else than %s", want)
	}
	if text := s.er.String(); !strings.Contains(text, "hello is removed again\ninterrupted\n") {
		t.Errorf("said %q", text)
	}
}

// An interrupt between the end of the upload and the server's word waits for
// that word: somebody else's formation of that name must not be removed.
func TestDeploy_AnInterruptOfARefusedDeployRemovesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f.on("POST /rpc/formations", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		interrupt()
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":"ValidationError","message":"it exists"}`) //nolint:errcheck // the client sees it
	}})
	s := newSession(t, f)
	if code := s.run(ctx, "deploy", writeTree(t, "formation.afs")); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if said := f.said(); strings.Contains(said, "DELETE") {
		t.Errorf("asked %s", said)
	}
}

// Before the whole bundle is sent there is nothing of ours to remove.
func TestDeploy_AnInterruptedUploadRemovesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f.on("POST /rpc/formations", reply{do: func(http.ResponseWriter, *http.Request) {
		interrupt() // before the body is asked for
		panic(http.ErrAbortHandler)
	}})
	s := newSession(t, f)
	if code := s.run(ctx, "deploy", writeTree(t, "formation.afs")); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if said := f.said(); strings.Contains(said, "DELETE") {
		t.Errorf("asked %s", said)
	}
}

func TestDeploy_KeepsItsLineWithinANarrowTerminal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("POST /rpc/formations", reply{
		status: 200,
		body: "event: progress\ndata: {\"stage\":\"health_check\",\"message\":\"asking tool servers for their tools\"}\n\n" +
			completeEvent,
	})
	s := newSession(t, f)
	s.errTTY = true
	a := s.app(&s.out, &s.er)
	a.columns = func() int { return 50 }
	if code := run(t.Context(), a, []string{"deploy", writeTree(t, "formation.afs")}); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	if shown := s.er.String(); !strings.Contains(shown, "hello health_check: asking to… ") {
		t.Errorf("shown %q", shown)
	}
}

func TestDeploy_ShowsALineThatChangesAtATerminal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("POST /rpc/formations", reply{
		status: 200,
		body: "event: progress\ndata: {\"stage\":\"health_check\",\"message\":\"wait\",\"attempt\":3,\"max_attempts\":30}\n\n" +
			completeEvent,
	})
	s := newSession(t, f)
	s.errTTY = true
	if code := s.run(t.Context(), "deploy", writeTree(t, "formation.afs")); code != 0 {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	shown := s.er.String()
	if !strings.Contains(shown, "hello health_check: wait (27 s left)") || strings.Contains(shown, "\n") {
		t.Errorf("shown %q, want the attempts on one line", shown)
	}
	if s.out.String() != "hello: running on port 8000, u\n" {
		t.Errorf("printed %q", s.out.String())
	}
}

func TestDeploy_LeavesNoTemporaryFiles(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	f := newFake(t)
	keepBundle(t, f)
	for _, dir := range []string{writeTree(t, "formation.afs"), t.TempDir()} {
		newSession(t, f).run(t.Context(), "deploy", dir)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 2 { // the two directories of this test
		t.Errorf("left %v, %v", left, err)
	}
}

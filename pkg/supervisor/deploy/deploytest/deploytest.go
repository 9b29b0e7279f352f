// Package deploytest is a fleet of scripted formations for tests: real
// processes (the test binary itself), real sockets, a real registry. It
// promises that nothing is left when a test ends. The tests of deploy and of
// the rooms above it import it.
package deploytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
	"github.com/agentformation/service/test/testports"
)

// Rig is a home directory with a deploy.Service over it.
type Rig struct {
	Home     string
	Config   deploy.Config
	Service  *deploy.Service
	Registry *registry.Registry
	Ports    *ports.Pool
	First    int // of the ports, ten of them, which nobody else has

	stop context.CancelFunc
}

// New makes a home and starts a Service on it. change (may be nil) adapts the
// configuration.
func New(t testing.TB, change func(*deploy.Config)) *Rig {
	t.Helper()
	// Not t.TempDir: a unix socket's path has to be short.
	home, err := os.MkdirTemp("", "dt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return NewAt(t, home, change)
}

// NewAt is New on a directory that exists, with a short path.
func NewAt(t testing.TB, home string, change func(*deploy.Config)) *Rig {
	t.Helper()
	r := &Rig{Home: home, First: testports.Block(t)}
	r.Start(t, change)
	return r
}

// Start opens a Service on the rig's home, as a supervisor's start does. It is
// shut down at the end of the test, unless Shutdown or Abandon came before.
func (r *Rig) Start(t testing.TB, change func(*deploy.Config)) {
	t.Helper()
	var err error
	if r.Registry, err = registry.Open(t.Context(), registry.Config{Path: filepath.Join(r.Home, "registry.db")}); err != nil {
		t.Fatal(err)
	}
	if r.Ports, err = ports.New(ports.Config{Host: "127.0.0.1", First: r.First, Last: r.First + testports.BlockSize - 1}); err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.Config = r.config(binary, zerolog.New(zerolog.NewTestWriter(t)))
	if change != nil {
		change(&r.Config)
	}
	if r.Service, err = deploy.New(r.Config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop = cancel
	t.Cleanup(func() { r.Shutdown(t) })
	if err := r.Service.Restore(ctx); err != nil {
		t.Fatal(err)
	}
}

// patience bounds every wait for what must happen. Nothing takes this long unless
// it is broken.
const patience = time.Minute

// fastExit keeps the race detector from a second's sleep at the end of each child.
const fastExit = "GORACE=atexit_sleep_ms=0"

func (r *Rig) config(binary string, log zerolog.Logger) deploy.Config {
	at := func(name string) string { return filepath.Join(r.Home, name) }
	return deploy.Config{
		Log: log, Registry: r.Registry, Ports: r.Ports,
		Dirs: deploy.Dirs{
			Formations: at("formations"), Logs: at("logs"), Run: at("run"), Tmp: at("tmp"), Cache: at("cache"), Keys: at("keys"),
		},
		Child: deploy.Child{
			Binary: binary, Env: []string{childEnv + "=1", fastExit}, ServerURL: "http://localhost:7890", ServerID: "server-test",
			ReadyTimeout: patience, DrainTimeout: 10 * time.Second, KillTimeout: 15 * time.Second,
			// The binaries of tests must not outlive them by long.
			OrphanTimeout: 30 * time.Second,
		},
		Limits:        archive.DefaultLimits(),
		MaxFormations: 5,
		AutoRestart:   true,
		Manager: process.ManagerConfig{HealthTimeout: patience, Unavailable: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		})},
	}
}

// Shutdown drains and stops everything, once.
func (r *Rig) Shutdown(t testing.TB) {
	t.Helper()
	r.end(t, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := r.Service.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Abandon ends the Service and leaves the children serving, as a supervisor
// that dies does.
func (r *Rig) Abandon(t testing.TB) {
	t.Helper()
	r.end(t, func() { r.Service.Close() })
}

func (r *Rig) end(t testing.TB, how func()) {
	t.Helper()
	if r.Service == nil {
		return
	}
	r.stop()
	how()
	r.Service = nil
	if err := errors.Join(r.Ports.Close(), r.Registry.Close()); err != nil {
		t.Error(err)
	}
}

// Files are a formation that loads. extra (may be nil) adds or replaces files;
// "behave" scripts the child: crash, never, secrets, wait, linger, ….
func Files(id string, extra map[string]string) map[string]string {
	files := map[string]string{
		"formation.afs": fmt.Sprintf(
			"schema: \"1.0.0\"\nid: %s\nname: Name of %s\ndescription: for tests\nversion: 1.2.3\nllm:\n  models:\n    - text: demo/hello\nagents:\n  - one\n", id, id),
		"agents/one.afs": "schema: \"1.0.0\"\nid: one\nname: One\ndescription: answers\n",
	}
	maps.Copy(files, extra)
	return files
}

// Bundle packs files below the root directory root.
func Bundle(t testing.TB, root string, files map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if err := archive.Pack(&buf, dir, root, nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Deploy receives and deploys a bundle of Files(id, extra).
func (r *Rig) Deploy(t testing.TB, id string, extra map[string]string) (deploy.View, error) {
	t.Helper()
	return r.DeployBundle(t, deploy.Request{ID: id}, Bundle(t, id, Files(id, extra)), nil)
}

// DeployBundle receives body and deploys it.
func (r *Rig) DeployBundle(t testing.TB, req deploy.Request, body []byte, sink deploy.Sink) (deploy.View, error) {
	t.Helper()
	b, err := r.Service.Receive(t.Context(), bytes.NewReader(body))
	if err != nil {
		return deploy.View{}, err
	}
	defer b.Discard()
	req.Bundle = b
	return r.Service.Deploy(t.Context(), req, sink)
}

// Update receives and updates to a bundle of Files(id, extra).
func (r *Rig) Update(t testing.TB, id string, extra map[string]string) (deploy.Updated, error) {
	t.Helper()
	return r.UpdateBundle(t, deploy.UpdateRequest{ID: id}, Bundle(t, id, Files(id, extra)), nil)
}

// UpdateBundle receives body and updates to it.
func (r *Rig) UpdateBundle(t testing.TB, req deploy.UpdateRequest, body []byte, sink deploy.Sink) (deploy.Updated, error) {
	t.Helper()
	b, err := r.Service.Receive(t.Context(), bytes.NewReader(body))
	if err != nil {
		return deploy.Updated{}, err
	}
	defer b.Discard()
	req.Bundle = b
	return r.Service.Update(t.Context(), req, sink)
}

// MustUpdate fails the test when the update fails.
func (r *Rig) MustUpdate(t testing.TB, id string, extra map[string]string) deploy.Updated {
	t.Helper()
	u, err := r.Update(t, id, extra)
	if err != nil {
		t.Fatalf("update %s: %v", id, err)
	}
	return u
}

// MustDeploy fails the test when the deploy fails.
func (r *Rig) MustDeploy(t testing.TB, id string, extra map[string]string) deploy.View {
	t.Helper()
	v, err := r.Deploy(t, id, extra)
	if err != nil {
		t.Fatalf("deploy %s: %v", id, err)
	}
	return v
}

// Ask sends GET path to a formation's own port.
func Ask(t testing.TB, port int, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, string(text)
}

// Eventually waits until ok returns true; another process is waited for, which
// sends no signal. It fails the test when its patience is over.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// Left lists what lies in the home beside the empty rooms of a supervisor, as
// slash paths. registry.db is left out.
func (r *Rig) Left(t testing.TB) []string {
	t.Helper()
	rooms := map[string]bool{
		"formations": true, "formations/.staging": true, "formations/.trash": true, "logs": true, "run": true,
		"tmp": true, "cache": true, "keys": true,
	}
	var left []string
	err := filepath.WalkDir(r.Home, func(p string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		rel, _ := filepath.Rel(r.Home, p)
		if rel = filepath.ToSlash(rel); rel != "." && !rooms[rel] && !strings.HasPrefix(rel, "registry.db") {
			left = append(left, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

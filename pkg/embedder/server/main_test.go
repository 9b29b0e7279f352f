package server_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/server"
)

// Variables that make the test program another one.
const (
	beProcess = "EMBEDDER_TEST_PROCESS" // the embedding process
	beCaller  = "EMBEDDER_TEST_CALLER"  // a caller; the value is the directory
	beKeeper  = "EMBEDDER_TEST_KEEPER"  // a keeper, likewise
)

// patience is how long a test waits for what must happen, here and in the
// processes it starts. It costs time only when the test fails.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(beKeeper) != "":
		err = keeper(os.Getenv(beKeeper))
	case os.Getenv(beProcess) != "":
		err = process()
	case os.Getenv(beCaller) != "":
		err = caller(os.Getenv(beCaller))
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is the embedding process as the command makes it, with short times.
func process() error {
	flags := flag.NewFlagSet("embed", flag.ContinueOnError)
	dir := flags.String("dir", "", "")
	ready := flags.Bool("ready", false, "")
	inherit := flags.Bool("inherit", false, "")
	users := flags.String("users", "", "")
	engine := flags.String("engine", server.EngineGo, "")
	idle := flags.Duration("idle", patience, "")
	broken := flags.Bool("broken", false, "")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := appendLine(filepath.Join(*dir, "starts"), fmt.Sprint(os.Getpid())); err != nil {
		return err
	}
	if *broken {
		return fmt.Errorf("this one never starts")
	}
	log := zerolog.New(os.Stderr)
	cfg := server.Config{Dir: *dir, Idle: *idle, Patience: patience, Log: log, MaxModels: 2}
	if *ready {
		cfg.Ready = embedder.Ready
	}
	if *users != "" {
		u, err := embedder.ParseUIDRange(*users)
		if err != nil {
			return err
		}
		cfg.Users = &u
	}
	var err error
	if *inherit {
		if cfg.Listener, err = net.FileListener(os.NewFile(embedder.ListenFD, "socket")); err != nil {
			return err
		}
	}
	hubConfig, err := hub.FromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	hubConfig.Backoff, hubConfig.Stall = time.Millisecond, patience
	if cfg.Hub, err = hub.New(hubConfig); err != nil {
		return err
	}
	if cfg.Engine, err = server.NewEngine(server.EngineConfig{Kind: *engine, Lookup: os.LookupEnv, Log: log}); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if *inherit {
		gone := embedder.KeeperGone()
		go func() {
			<-gone
			stop()
		}()
	}
	return server.Run(ctx, cfg)
}

// keeper keeps a process until it is killed; the variables are those of rig.env.
func keeper(dir string) error {
	if err := os.Unsetenv(beKeeper); err != nil {
		return err
	}
	k, err := embedder.NewKeeper(embedder.KeeperConfig{Config: embedder.Config{Dir: dir, Env: os.Environ(), Command: os.Args[:1], StartTimeout: patience}})
	if err != nil {
		return err
	}
	return k.Run(context.Background())
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

// caller asks for one vector and tells how that went.
func caller(dir string) error {
	client, err := embedder.New(embedder.Config{Dir: dir, Timeout: patience})
	if err != nil {
		return err
	}
	_, err = client.Embed(context.Background(), tiny, []string{"cat"}, "")
	return err
}

const (
	repo = "acme/tiny"
	tiny = "local/" + repo
)

// rig is a directory for the socket and a hub with one model.
type rig struct {
	*embedtest.Hub
	bert *embedtest.Bert
	dir  string
	env  []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Hub: embedtest.NewHub(t), bert: embedtest.NewBert(embedtest.Tiny, 1)}
	r.Add(repo, embedtest.Files(r.bert))
	var err error
	if r.dir, err = os.MkdirTemp("", "emb"); err != nil { // short: it is the path of a socket
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Cleanup(func() {
		r.killAll(t)
		_ = os.RemoveAll(r.dir)
	})
	r.env = []string{beProcess + "=1", "HF_ENDPOINT=" + r.URL, "SVC_CACHE_DIR=" + cache}
	return r
}

// client returns one that starts processes with the given arguments.
func (r *rig) client(t *testing.T, args ...string) *embedder.Client {
	t.Helper()
	return r.clientOf(t, embedder.Config{Command: append([]string{os.Args[0]}, args...)})
}

func (r *rig) clientOf(t *testing.T, cfg embedder.Config) *embedder.Client {
	t.Helper()
	cfg.Dir, cfg.Env = r.dir, r.env
	cfg.Timeout, cfg.StartTimeout = cmp.Or(cfg.Timeout, patience), cmp.Or(cfg.StartTimeout, patience)
	c, err := embedder.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// hub is a client of the hub with an empty cache of its own, for a server
// within the test.
func (r *rig) hub(t *testing.T) *hub.Hub {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	h, err := hub.New(hub.Config{Dir: t.TempDir(), Endpoint: r.URL, Backoff: time.Millisecond, Stall: patience, Client: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// starts are the ids of the processes that were started, first to last.
func (r *rig) starts(t *testing.T) []int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "starts"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var pids []int
	for line := range strings.FieldsSeq(string(data)) {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// kill ends the last process and waits for it to be gone.
func (r *rig) kill(t *testing.T) {
	t.Helper()
	pids := r.starts(t)
	pid := pids[len(pids)-1]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill process %d: %v", pid, err)
	}
	r.gone(t, pid)
}

// gone waits until a process has ended. It is a child of this one, which reaps
// it, so its id vanishes.
func (r *rig) gone(t *testing.T, pid int) {
	t.Helper()
	until(t, fmt.Sprintf("process %d has ended", pid), func() bool { return !isChild(pid) })
}

// until looks again and again until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// isChild tells whether a process is a child of this one that was not reaped.
func isChild(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // behind the name
	fields := strings.Fields(rest)
	return len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid())
}

// killAll ends what is left, and waits: what still writes would be in the way of
// removing its directory, and who waits for its end would be a leak.
func (r *rig) killAll(t *testing.T) {
	t.Helper()
	for _, pid := range r.starts(t) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == self() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			r.gone(t, pid)
		}
	}
}

func self() string {
	exe, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return exe
}

// right embeds and compares with the plain computation.
func (r *rig) right(t *testing.T, c *embedder.Client, texts ...string) {
	t.Helper()
	got, err := c.Embed(t.Context(), tiny, texts, "query")
	if err != nil {
		t.Error(err) // goroutines of a test come here too
		return
	}
	for i, text := range texts {
		embedtest.Near(t, text, got.Vectors[i], r.bert.Mean(embedtest.IDs("search _ query : "+text)))
	}
}

package mcpclient_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/test/npm"
)

// patience is how long a test waits for what must happen; it costs time only
// where a test fails.
const patience = 2 * time.Minute

// self is a server that is the test binary.
func self(t testing.TB, id, kind string, args ...string) mcpclient.Server {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return command(id, program, append([]string{"tool-server", kind}, args...)...)
}

func command(id, program string, args ...string) mcpclient.Server {
	return mcpclient.Server{MCPServer: manifest.MCPServer{
		ID: id, Type: manifest.MCPCommand, Active: true, Command: program, Args: args,
		Timeout: patience, ConnectionTTL: time.Hour, RetryAttempts: 1,
	}}
}

func everything(t testing.TB) mcpclient.Server {
	t.Helper()
	return command("everything", "node", npm.Module(t, "@modelcontextprotocol/server-everything/dist/index.js"))
}

// open makes a client that is closed, and has left nothing, at the end.
func open(t testing.TB, edit func(*mcpclient.Config), servers ...mcpclient.Server) *mcpclient.Client {
	t.Helper()
	cfg := mcpclient.Config{
		Servers: servers, Dir: t.TempDir(), Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()},
		Launch: "test-" + strconv.Itoa(os.Getpid()) + "-" + filepath.Base(t.TempDir()) + "-" + t.Name(),
		Log:    zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
		NewID:  func(prefix string) string { return prefix + "123456789012345678901" },
		Limits: mcpclient.Limits{Connect: patience},
	}
	if edit != nil {
		edit(&cfg)
	}
	c := mcpclient.New(t.Context(), cfg)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if left := running(cfg.Launch); len(left) > 0 {
			t.Errorf("processes outlive Close: %v", left)
		}
	})
	return c
}

// running returns the processes that carry the mark of a launch.
func running(launch string) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err == nil && strings.Contains("\x00"+string(env), "\x00"+mcpclient.EnvLaunch+"="+launch+"\x00") {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// tool finds a tool by its name at the server.
func tool(t testing.TB, c *mcpclient.Client, name string) *mcpclient.Tool {
	t.Helper()
	for _, tool := range c.For("agent", nil).Tools(t.Context(), chat.Invocation{}) {
		if tool.Name() == name {
			return tool
		}
	}
	t.Fatalf("there is no tool %s", name)
	return nil
}

// discover learns the tools; it must go well.
func discover(t testing.TB, c *mcpclient.Client) {
	t.Helper()
	if warnings := c.Discover(t.Context()); len(warnings) > 0 {
		t.Fatal(warnings)
	}
}

func call(t testing.TB, c *mcpclient.Client, name, args string) chat.ToolResult {
	t.Helper()
	res, err := tool(t, c, name).Call(t.Context(), chat.Invocation{CallID: "c1", Args: json.RawMessage(args), User: "u1"})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

// eventually waits for what another process does.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// about asks the test's own server what it is.
type about struct {
	PID int      `json:"pid"`
	Dir string   `json:"dir"`
	Env []string `json:"env"`
}

func aboutOf(t testing.TB, c *mcpclient.Client) about {
	t.Helper()
	var a about
	if err := json.Unmarshal([]byte(call(t, c, "about", "{}").Content), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// heard collects progress.
type heard struct {
	mu   sync.Mutex
	list []chat.ToolProgress
}

func (h *heard) add(p chat.ToolProgress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, p)
}

func (h *heard) all() []chat.ToolProgress {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]chat.ToolProgress(nil), h.list...)
}

package mcpclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/test/npm"
)

func TestEverything_OverPipes(t *testing.T) {
	t.Parallel()
	c := open(t, nil, everything(t))
	discover(t, c)
	tryEverything(t, c)
}

// tryEverything has server-everything do what it can.
func tryEverything(t *testing.T, c *mcpclient.Client) {
	t.Helper()
	if n := len(c.Catalog()); n < 10 {
		t.Fatalf("%d tools", n)
	}
	if res := call(t, c, "echo", `{"message":"hello"}`); res.Content != "Echo: hello" || res.IsError || res.CallID != "c1" {
		t.Errorf("echo: %+v", res)
	}
	if spec := tool(t, c, "echo").Spec(); spec.Name != "everything__echo" || !spec.ReadOnly || !spec.Idempotent || !strings.Contains(string(spec.Schema), "message") {
		t.Errorf("the spec of echo: %+v", spec)
	}
	if res := call(t, c, "echo", `{}`); !res.IsError {
		t.Errorf("echo without its argument: %+v", res)
	}
	if res := call(t, c, "get-tiny-image", `{}`); len(res.Parts) != 1 || res.Parts[0].MediaType != "image/png" || !strings.Contains(res.Content, "[image: image/png") {
		t.Errorf("image: %q, %d parts", res.Content, len(res.Parts))
	}
	if res := call(t, c, "get-structured-content", `{"location":"Chicago"}`); !json.Valid(res.Structured) || !strings.Contains(string(res.Structured), "humidity") {
		t.Errorf("structured: %+v", res)
	}
	if res := call(t, c, "trigger-long-running-operation", `{"duration":0.4,"steps":4}`); res.IsError {
		t.Errorf("long: %+v", res)
	}
	// The last reports of a call that ends may come after its end.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var progress heard
	_, err := tool(t, c, "trigger-long-running-operation").Call(ctx, chat.Invocation{Args: json.RawMessage(`{"duration":60,"steps":600}`), Progress: func(p chat.ToolProgress) {
		if progress.add(p); len(progress.all()) == 3 {
			cancel()
		}
	}})
	if got := progress.all(); len(got) < 3 || got[0].Total != 600 || !errors.Is(err, context.Canceled) {
		t.Errorf("progress: %+v, %v", got, err)
	}
	if res := call(t, c, "read_resource", `{}`); !strings.Contains(res.Content, "demo://resource") {
		t.Errorf("resources: %.300s", res.Content)
	}
	if res := call(t, c, "read_resource", `{"uri":"demo://resource/dynamic/text/1"}`); !strings.Contains(res.Content, "Resource 1") {
		t.Errorf("a resource: %.300s", res.Content)
	}
	if res := call(t, c, "read_resource", `{"uri":"demo://nowhere"}`); !res.IsError {
		t.Errorf("a resource that there is not: %+v", res)
	}
	if res := call(t, c, "get_prompt", `{}`); !strings.Contains(res.Content, "prompt") {
		t.Errorf("prompts: %.300s", res.Content)
	}
	if res := call(t, c, "get_prompt", `{"name":"args-prompt","arguments":{"city":"Paris"}}`); !strings.Contains(res.Content, "Paris") {
		t.Errorf("a prompt: %+v", res)
	}
}

func TestEverything_CancelReturnsAtOnceAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	c := open(t, nil, everything(t))
	discover(t, c)
	call(t, c, "echo", `{"message":"a"}`)
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	go func() {
		_, err := tool(t, c, "trigger-long-running-operation").Call(ctx, chat.Invocation{
			Args: json.RawMessage(`{"duration":60,"steps":600}`), Progress: func(chat.ToolProgress) { once.Do(func() { close(began) }) },
		})
		done <- err
	}()
	<-began
	cancel()
	start := time.Now()
	err := <-done
	if took := time.Since(start); took > 50*time.Second || !errors.Is(err, context.Canceled) { // its answer would take a minute
		t.Errorf("after %s: %v", took, err)
	}
	if res := call(t, c, "echo", `{"message":"b"}`); res.Content != "Echo: b" {
		t.Errorf("%+v", res)
	}
}

func TestEverything_KilledDuringACallSaysSoAndIsStartedAgain(t *testing.T) {
	t.Parallel()
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, everything(t))
	discover(t, c)
	call(t, c, "echo", `{"message":"a"}`)
	pids := running(launch)
	_, err := tool(t, c, "trigger-long-running-operation").Call(t.Context(), chat.Invocation{
		Args: json.RawMessage(`{"duration":60,"steps":600}`),
		Progress: func(chat.ToolProgress) {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	})
	e, ok := errors.AsType[*mcpclient.Error](err)
	if !ok || !e.Begun() || !strings.Contains(e.Error(), `The tool server "everything" ended during the call`) || !strings.Contains(e.Error(), "SIGKILL") {
		t.Errorf("the call of a killed server: %v", err)
	}
	if res := call(t, c, "echo", `{"message":"b"}`); res.Content != "Echo: b" {
		t.Errorf("%+v", res)
	}
}

func TestFilesystemAndMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := strings.Repeat("0123456789abcdef", 5<<20/16)
	if err := os.WriteFile(filepath.Join(dir, "large.txt"), []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	memory := command("memory", "node", npm.Module(t, "@modelcontextprotocol/server-memory/dist/index.js"))
	memory.Env = map[string]string{"MEMORY_FILE_PATH": filepath.Join(t.TempDir(), "memory.json")}
	files := command("files", "node", npm.Module(t, "@modelcontextprotocol/server-filesystem/dist/index.js"), ".")
	c := open(t, func(cfg *mcpclient.Config) { cfg.Dir = dir }, files, memory)
	discover(t, c)
	res := call(t, c, "read_text_file", `{"path":"`+filepath.Join(dir, "large.txt")+`"}`)
	if !strings.Contains(res.Content, large) || res.IsError {
		t.Errorf("a large file: %d bytes", len(res.Content))
	}
	if res := call(t, c, "read_text_file", `{"path":"/etc/passwd"}`); !res.IsError {
		t.Errorf("a file elsewhere: %+v", res)
	}
	if res := call(t, c, "create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["writes programs"]}]}`); res.IsError {
		t.Errorf("%+v", res)
	}
	if res := call(t, c, "search_nodes", `{"query":"ada"}`); !strings.Contains(res.Content, "writes programs") {
		t.Errorf("%+v", res)
	}
}

// TestEverything_NothingLeaksOverManyCalls has a server end in the middle of
// calls time and again. It runs alone: the pipes of other tests come and go.
func TestEverything_NothingLeaksOverManyCalls(t *testing.T) {
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { launch = cfg.Launch }, self(t, "tester", "works"), everything(t))
	discover(t, c)
	use := func(i int) {
		call(t, c, "echo", `{"message":"a"}`)
		if i%20 == 0 {
			_, err := tool(t, c, "exit").Call(t.Context(), chat.Invocation{})
			if e, ok := errors.AsType[*mcpclient.Error](err); !ok || !e.Begun() || !strings.Contains(e.Error(), "exit status 7") {
				t.Fatalf("%v", err)
			}
		}
		call(t, c, "count", `{}`)
	}
	use(0)
	eventually(t, "two processes", func() bool { return len(running(launch)) == 2 })
	fds := openFiles(t)
	for i := range 200 {
		use(i)
	}
	eventually(t, "two processes", func() bool { return len(running(launch)) == 2 })
	eventually(t, "as many open files as before", func() bool { return openFiles(t) <= fds+2 })
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries { // pipes only: connections stay open for a while
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

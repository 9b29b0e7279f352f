package mcpclient_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// TestMain makes the test binary a tool server when its first argument says so:
// one that works, or one with a fault.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "tool-server" {
		if err := toolServer(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func toolServer(kind string, args []string) error {
	switch kind {
	case "dies":
		fmt.Fprintln(os.Stderr, "no configuration found")
		return errors.New("giving up")
	case "throws": // dies with a dump after the cause
		return errors.New(strings.Join([]string{
			"loader:1210", "  throw new Error(`Cannot find`)", "  ^", "", "Error: Cannot find module '/outside/index.js'", "    at resolve (loader:1207:15)",
			"  code: 'MODULE_NOT_FOUND',", "  requireStack: []", "}", "", "Node.js v20.20.2",
		}, "\n"))
	case "silent": // reads and never answers
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "deaf": // reads nothing after the handshake
		return deaf()
	case "stubborn": // ends neither with its input nor when asked
		signal.Ignore(syscall.SIGTERM)
		go func() { _ = serve(args) }()
		select {}
	case "parent": // leaves a process behind that ignores everything
		if err := grandchild(args[0]); err != nil {
			return err
		}
		return serve(nil)
	case "sleeper":
		signal.Ignore(syscall.SIGTERM)
		select {}
	case "chatty": // writes what is no message
		fmt.Println("Server listening on stdio")
		fmt.Println(`{"level":"info","msg":"not a message"}`)
		fmt.Println()
		return serve(args)
	case "babble":
		for {
			if _, err := fmt.Println("la la la"); err != nil {
				return err
			}
		}
	case "huge":
		return huge()
	case "ofuser": // talks of its user all the time, or dies after a while
		return ofUser(args[0])
	}
	return serve(args)
}

// ofUser is a server that runs with the credentials of one user.
func ofUser(user string) error {
	if user == "bert" {
		<-time.After(time.Second)
		return errors.New("giving up")
	}
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			fmt.Fprintln(os.Stderr, "error: "+user+" has the key k-4711")
		}
	}()
	return serve(nil)
}

// grandchild starts a process in a session of its own and writes its number to a
// file.
func grandchild(file string) error {
	cmd := exec.Command(os.Args[0], "tool-server", "sleeper")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	same := exec.Command(os.Args[0], "tool-server", "sleeper") // in the group of its parent
	if err := same.Start(); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)+" "+strconv.Itoa(same.Process.Pid)), 0o600)
}

// answer writes the answers of a handshake by hand.
func answer(in *bufio.Scanner, stop string) error {
	for in.Scan() {
		var msg struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if err := json.Unmarshal(in.Bytes(), &msg); err != nil {
			return err
		}
		switch msg.Method {
		case stop:
			return nil
		case "initialize":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}}`+"\n", msg.ID)
		case "tools/list":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"big","inputSchema":{"type":"object"}}]}}`+"\n", msg.ID)
		}
	}
	return in.Err()
}

func deaf() error {
	if err := answer(bufio.NewScanner(os.Stdin), "notifications/initialized"); err != nil {
		return err
	}
	select {}
}

// huge answers a call with a line that never ends.
func huge() error {
	if err := answer(bufio.NewScanner(os.Stdin), "tools/call"); err != nil {
		return err
	}
	piece := strings.Repeat("x", 1<<20)
	if _, err := os.Stdout.WriteString(`{"jsonrpc":"2.0","id":2,"result":"`); err != nil {
		return err
	}
	for {
		if _, err := os.Stdout.WriteString(piece); err != nil {
			return err
		}
	}
}

type empty struct{}

// serve is a server that works. Its tools do what their arguments say.
func serve(args []string) error {
	s := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "tester", Version: "1"}, &mcpsdk.ServerOptions{PageSize: 3})
	for _, name := range append([]string{"odd name/with.dots"}, args...) {
		mcpsdk.AddTool(s, &mcpsdk.Tool{Name: name, Annotations: &mcpsdk.ToolAnnotations{ReadOnlyHint: true}}, func(context.Context, *mcpsdk.CallToolRequest, map[string]any) (*mcpsdk.CallToolResult, any, error) {
			return text("done"), nil, nil
		})
	}
	var counter struct {
		sync.Mutex
		n int
	}
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "count"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		counter.Lock()
		defer counter.Unlock()
		counter.n++
		return text(strconv.Itoa(counter.n)), nil, nil
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "args"}, func(_ context.Context, _ *mcpsdk.CallToolRequest, in map[string]any) (*mcpsdk.CallToolResult, any, error) {
		data, err := json.Marshal(in)
		return text(string(data)), nil, err
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "about"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		dir, err := os.Getwd()
		data, _ := json.Marshal(map[string]any{"pid": os.Getpid(), "dir": dir, "env": os.Environ()})
		return text(string(data)), nil, err
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "sleep"}, sleep)
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "exit"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		os.Exit(7)
		return nil, nil, nil
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "grow"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "grown"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
			return text("grown up"), nil, nil
		})
		return text("ok"), nil, nil
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "ask"}, func(ctx context.Context, req *mcpsdk.CallToolRequest, _ empty) (*mcpsdk.CallToolResult, any, error) {
		got, err := req.Session.Elicit(ctx, &mcpsdk.ElicitParams{
			Message: "Which colour?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"colour":{"type":"string"}}}`),
		})
		if err != nil {
			return nil, nil, err
		}
		return text(fmt.Sprint(got.Action, " ", got.Content["colour"])), nil, nil
	})
	mcpsdk.AddTool(s, &mcpsdk.Tool{Name: "show"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		return &mcpsdk.CallToolResult{
			Content: []mcpsdk.Content{
				&mcpsdk.TextContent{Text: `{"ok":true,"_link":{"label":"Open","url":"https://example.com/a","hint":"new"}}`},
				&mcpsdk.EmbeddedResource{Resource: &mcpsdk.ResourceContents{URI: "ui://panel/1", MIMEType: "text/html", Text: "<b>hi</b>"}},
				&mcpsdk.ImageContent{MIMEType: "image/png", Data: []byte("png")},
			},
			StructuredContent: map[string]any{"_link": map[string]any{"label": "Bad", "url": "javascript:alert(1)"}},
		}, nil, nil
	})
	return s.Run(context.Background(), &mcpsdk.StdioTransport{})
}

// sleep takes a time, telling how far it is, and notes in a file that it was
// cancelled.
func sleep(ctx context.Context, req *mcpsdk.CallToolRequest, in struct {
	Millis int    `json:"millis"`
	Steps  int    `json:"steps,omitempty"`
	Note   string `json:"note,omitempty"`
},
) (*mcpsdk.CallToolResult, any, error) {
	steps := max(in.Steps, 1)
	for i := range steps {
		select {
		case <-time.After(time.Duration(in.Millis) * time.Millisecond / time.Duration(steps)):
		case <-ctx.Done():
			if in.Note != "" {
				_ = os.WriteFile(in.Note, []byte("cancelled"), 0o600)
			}
			return nil, nil, ctx.Err()
		}
		if in.Steps > 0 {
			_ = req.Session.NotifyProgress(ctx, &mcpsdk.ProgressNotificationParams{
				ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Total: float64(steps), Message: "step",
			})
		}
	}
	return text("slept"), nil, nil
}

func text(s string) *mcpsdk.CallToolResult {
	return &mcpsdk.CallToolResult{Content: []mcpsdk.Content{&mcpsdk.TextContent{Text: s}}}
}

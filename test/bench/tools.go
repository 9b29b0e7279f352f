package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/test/fakellm"
	"github.com/agentformation/service/test/npm"
)

// The tool turns that are measured and soaked: the model asks for echo of the
// real server-everything, over stdio, and answers when it has the result.
const (
	toolAgent = "caller"
	toolConc  = 8
	aimTools  = 400 // turns per second
	// What the message says decides how many calls the model asks for at once.
	oneCall    = "Call the tool once."
	threeCalls = "Call the tool three times."
)

// toolRules make the model server ask for tools.
func toolRules() []fakellm.Rule {
	call := func(n int) fakellm.ToolCall {
		return fakellm.ToolCall{Name: "everything__echo", Args: fmt.Sprintf(`{"message":"word %d"}`, n)}
	}
	return []fakellm.Rule{
		{User: oneCall, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{call(1)}}},
		{User: threeCalls, Reply: fakellm.Reply{Calls: []fakellm.ToolCall{call(1), call(2), call(3)}}},
	}
}

// toolServer is the command of the real tool server.
func toolServer() ([]string, error) {
	path, err := npm.Path("@modelcontextprotocol/server-everything/dist/index.js")
	if err != nil {
		return nil, err
	}
	return []string{"node", path, "stdio"}, nil
}

// writeToolFormation is the measured formation with an agent that has tools.
func writeToolFormation(dir, id, model string) error {
	if err := writeFormation(dir, id, model); err != nil {
		return err
	}
	server, err := toolServer()
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "formation.afs"))
	if err != nil {
		return fmt.Errorf("write the formation: %w", err)
	}
	for name, text := range map[string]string{
		"formation.afs": string(manifest) + "  - " + toolAgent + "\nmcp:\n  servers: [everything]\n",
		"agents/" + toolAgent + ".afs": fmt.Sprintf(`schema: "1.0.0"
id: %s
name: Caller
description: Calls tools
mcp_servers: [everything]
`, toolAgent),
		"mcp/everything.afs": fmt.Sprintf(`schema: "1.0.0"
id: everything
description: The protocol's own test server
type: command
command: %s
args: [%q, %q]
`, server[0], server[1], server[2]),
	} {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			return fmt.Errorf("write the formation: %w", err)
		}
	}
	return nil
}

// toolsResult is what turns with a tool call cost, beside the same server
// called by the protocol's SDK with nothing around it.
type toolsResult struct {
	ours, alone sample
}

// measureTools loads a formation with a tool server, and that server alone, in turns.
func measureTools(ctx context.Context, p plan, dir, model string, r *report) error {
	ours, err := startToolFormation(ctx, p, dir, model)
	if err != nil {
		return err
	}
	defer ours.stop()
	session, err := connectTools(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	res := &toolsResult{}
	t := target{addr: ours.addr, pid: ours.pid}
	t.request, t.done = chatRequest(ours.addr, toolAgent, false, oneCall)
	for range p.rounds {
		if err := loadAlone(ctx, p, session, &res.alone); err != nil {
			return err
		}
		if _, err := (load{conc: toolConc, slice: p.slice / 10, requests: p.requests}).run(ctx, t); err != nil {
			return err
		}
		s, err := load{conc: toolConc, slice: p.slice, requests: p.requests}.run(ctx, t)
		if err != nil {
			return err
		}
		if s.requests == 0 {
			return fmt.Errorf("no turn with a tool call succeeded: %w", s.lastErr)
		}
		res.ours.add(s)
	}
	r.tools = res
	return nil
}

func startToolFormation(ctx context.Context, p plan, dir, model string) (*process, error) {
	formation := filepath.Join(dir, "formation")
	if err := writeToolFormation(formation, "bench-tools", model); err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := startRuntime(ctx, p.bin, formation, port)
	if err != nil {
		return nil, err
	}
	if err := ours.answers(ctx); err != nil {
		ours.stop()
		return nil, err
	}
	return ours, nil
}

func connectTools(ctx context.Context) (*mcpsdk.ClientSession, error) {
	server, err := toolServer()
	if err != nil {
		return nil, err
	}
	client := mcpsdk.NewClient(&mcpsdk.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcpsdk.CommandTransport{Command: exec.CommandContext(ctx, server[0], server[1:]...)}, nil)
	if err != nil {
		return nil, fmt.Errorf("start the tool server alone: %w", err)
	}
	return session, nil
}

// loadAlone calls the tool from as many goroutines as turns run at once.
func loadAlone(ctx context.Context, p plan, session *mcpsdk.ClientSession, into *sample) error {
	var calls atomic.Int64
	var group sync.WaitGroup
	faults := make([]error, toolConc)
	begin := time.Now()
	for i := range faults {
		group.Go(func() {
			for time.Since(begin) < p.slice && faults[i] == nil {
				_, faults[i] = session.CallTool(ctx, &mcpsdk.CallToolParams{Name: "echo", Arguments: map[string]any{"message": "word 1"}})
				calls.Add(1)
			}
		})
	}
	group.Wait()
	into.add(sample{requests: int(calls.Load()), took: time.Since(begin)})
	return errors.Join(faults...)
}

// writeTools prints the table.
func writeTools(b *strings.Builder, r *toolsResult) {
	if r == nil {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "turns with a call of a real stdio server\tper second\taim\tp50\tp99\tcpu/turn\tcalls by the SDK alone\tratio\terrors\t")
	fmt.Fprintf(w, "echo of server-everything, concurrency %d\t%.0f\t> %d\t%s\t%s\t%s\t%.0f\t%.2f\t%d\t\n", toolConc, r.ours.rate(), aimTools,
		ms(quantile(r.ours.latency, .5)), ms(quantile(r.ours.latency, .99)), ms(r.ours.cpuPerTurn()),
		r.alone.rate(), r.ours.rate()/r.alone.rate(), r.ours.errors)
	_ = w.Flush() // a Builder takes everything
	if r.ours.lastErr != nil {
		fmt.Fprintf(b, "last error of turns with tools: %v\n", r.ours.lastErr)
	}
	b.WriteString("\n")
}

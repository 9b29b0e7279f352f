// Command client does with mcpclient what the protocol's conformance suite asks
// of a client. The suite starts it with the address of its server; the scenario
// is in MCP_CONFORMANCE_SCENARIO.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
)

// scenario is what the agent does in a scenario: the tool that it calls, and
// with what. Without a tool it learns which there are.
type scenario struct{ tool, args string }

// scenarios are those that apply to a client without OAuth.
func scenarios() map[string]scenario {
	return map[string]scenario{
		"initialize":                          {},
		"tools_call":                          {"add_numbers", `{"a":5,"b":3}`},
		"elicitation-sep1034-client-defaults": {"test_client_elicitation_defaults", `{}`},
		"sse-retry":                           {"test_reconnection", `{}`},
	}
}

func main() {
	if err := run(os.Getenv("MCP_CONFORMANCE_SCENARIO"), os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name, address string) (err error) {
	s, ok := scenarios()[name]
	if !ok {
		return fmt.Errorf("the scenario %q is not known", name)
	}
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := mcpclient.New(ctx, mcpclient.Config{
		Servers: []mcpclient.Server{{MCPServer: manifest.MCPServer{
			ID: "suite", Type: manifest.MCPHTTP, Endpoint: address, Timeout: patience, ConnectionTTL: time.Minute,
		}}},
		// An empty form: what the schema has defaults for is filled in.
		Elicit: func(context.Context, mcpclient.Elicitation) (mcpclient.Reply, error) {
			return mcpclient.Reply{Accept: true}, nil
		},
		Log: zerolog.New(os.Stderr),
	})
	defer func() { err = errors.Join(err, c.Close()) }()
	if warnings := c.Discover(ctx); len(warnings) > 0 {
		return fmt.Errorf("learn the tools: %v", warnings)
	}
	if s.tool == "" {
		return nil
	}
	for _, tool := range c.For("agent", nil).Tools(ctx, chat.Invocation{}) {
		if tool.Name() != s.tool {
			continue
		}
		res, err := tool.Call(ctx, chat.Invocation{Args: json.RawMessage(s.args), User: "suite"})
		if err == nil && res.IsError {
			err = errors.New(res.Content)
		}
		return err
	}
	return fmt.Errorf("the server has no tool %s", s.tool)
}

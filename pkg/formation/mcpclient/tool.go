package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Tool is one tool of a server, as an agent has it.
type Tool struct {
	server *server
	info   toolInfo
	name   string
	spec   chat.ToolSpec
	call   func(ctx context.Context, t *Tool, in chat.Invocation, args map[string]any) (chat.ToolResult, error)
}

// Spec describes the tool to a model.
func (t *Tool) Spec() chat.ToolSpec { return t.spec }

// Server returns the id of the tool's server.
func (t *Tool) Server() string { return t.server.file.ID }

// Title returns what the server calls the tool to people, or its name.
func (t *Tool) Title() string {
	if t.info.Title != "" {
		return t.info.Title
	}
	return t.info.Name
}

// Name returns the tool's name at its server.
func (t *Tool) Name() string { return t.info.Name }

// Call calls the tool. What the server answers is the result, its errors too. An
// error is an *Error: no answer came.
func (t *Tool) Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error) {
	args := map[string]any{}
	if len(in.Args) > 0 {
		if err := json.Unmarshal(in.Args, &args); err != nil || args == nil {
			return failed("The arguments must be one JSON object."), nil //nolint:nilerr // the model is told
		}
	}
	res, err := t.call(ctx, t, in, args)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if _, lost := errors.AsType[*Error](err); !lost {
			res, err = failed(fmt.Sprintf("The tool server refuses the call: %s (code %d).", short(e.Message), e.Code)), nil
		}
	}
	res.CallID = in.CallID
	return res, err
}

func failed(text string) chat.ToolResult { return chat.ToolResult{Content: text, IsError: true} }

// callTool calls a tool of the server itself.
func callTool(ctx context.Context, t *Tool, in chat.Invocation, args map[string]any) (chat.ToolResult, error) {
	given, err := t.server.parameters(ctx, in.User)
	if err != nil {
		return chat.ToolResult{}, err
	}
	all := make(map[string]any, len(given)+len(args))
	maps.Copy(all, given)
	maps.Copy(all, args)
	var out *mcpsdk.CallToolResult
	err = t.server.do(ctx, request{
		in: in, tool: t.info.Name, repeatable: t.info.ReadOnly || t.info.Idempotent,
		ask: func(ctx context.Context, cs *mcpsdk.ClientSession, token string) (err error) {
			params := &mcpsdk.CallToolParams{Name: t.info.Name, Arguments: all}
			params.SetProgressToken(token)
			out, err = cs.CallTool(ctx, params)
			return err
		},
	})
	if err != nil {
		return chat.ToolResult{}, err
	}
	return t.result(out), nil
}

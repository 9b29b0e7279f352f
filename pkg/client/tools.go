package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// ToolServer is a server whose tools agents may use.
type ToolServer struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Type   string `json:"type"`   // command or http
	Status string `json:"status"` // connected, idle (nothing is wrong: the next call connects) or error
	// Error says why the last connection failed.
	Error       string `json:"error,omitempty"`
	Enabled     bool   `json:"enabled"`
	Tools       int    `json:"tools"` // how many it offers, as far as is known
	Description string `json:"description"`
	// AgentID is the agent whose own it is; "" for one of the formation.
	AgentID string `json:"agent_id,omitempty"`
}

// Tool is a tool as its server describes it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Server      string          `json:"server"`
	AgentID     string          `json:"agent_id,omitempty"` // as in ToolServer
	InputSchema json.RawMessage `json:"input_schema"`
}

// ToolServers returns the formation's tool servers. It needs the admin key.
func (f *Formation) ToolServers(ctx context.Context) ([]ToolServer, error) {
	var out struct {
		Servers []ToolServer `json:"servers"`
	}
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "mcp", "servers"), &out); err != nil {
		return nil, err
	}
	return out.Servers, nil
}

// Tools returns the tools of all tool servers, as far as they are known. It
// needs the admin key.
func (f *Formation) Tools(ctx context.Context) ([]Tool, error) {
	var out struct {
		Tools []Tool `json:"tools"`
	}
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "mcp", "tools"), &out); err != nil {
		return nil, err
	}
	return out.Tools, nil
}

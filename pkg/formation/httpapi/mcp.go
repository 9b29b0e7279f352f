package httpapi

import (
	"encoding/json"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// ToolServers are the formation's connections to tool servers. Neither method
// asks a server.
type ToolServers interface {
	Servers() []ToolServer
	Catalog() []ToolInfo
	// ToolsOf returns the names of the tools that an agent may use, as models
	// know them.
	ToolsOf(agent string) []string
}

// ToolServer is how a tool server is.
type ToolServer struct {
	ID          string
	Agent       string // whose it is alone; "" for one of the formation
	Name        string
	Type        string // command or http
	Status      string // connected, idle or error
	Error       string // why the last connection failed, "" when it did not
	Enabled     bool
	Tools       int // how many it offers, as far as is known
	Description string
	// Capabilities are what its file says that it can do, as written.
	Capabilities any
}

// serverConnected is the status of a server that a session is open to.
const serverConnected = "connected"

// ToolInfo is a tool as its server describes it.
type ToolInfo struct {
	Name        string
	Description string
	Server      string
	Agent       string // as in ToolServer
	InputSchema json.RawMessage
}

// The object and type values of the routes of tool servers (reference runtime.md
// 1.4, 1.5).
const (
	objectMCP        = "mcp_defaults"
	objectMCPServer  = "mcp_server"
	objectMCPServers = "mcp_server_list"
	objectMCPTools   = "mcp_tool_list"
	typeMCP          = "mcp.defaults.retrieved"
	typeMCPServer    = "mcp.server.retrieved"
	typeMCPServers   = "mcp.server.list"
	typeMCPTools     = "mcp_tool.list"
)

type mcpServerDocument struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Type         string `json:"type"`
	Status       string `json:"status"`
	Enabled      bool   `json:"enabled"`
	Tools        int    `json:"tools"`
	Description  string `json:"description"`
	Capabilities any    `json:"capabilities,omitempty"`
	AgentID      string `json:"agent_id,omitempty"`
	Error        string `json:"error,omitempty"`
}

type mcpServersDocument struct {
	Servers []mcpServerDocument `json:"servers"`
	Count   int                 `json:"count"`
}

type mcpToolDocument struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Server      string          `json:"server"`
	AgentID     string          `json:"agent_id,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
}

type mcpToolsDocument struct {
	Tools []mcpToolDocument `json:"tools"`
	Count int               `json:"count"`
}

// getMCP tells how tools are called, whatever their server.
func (a *api) getMCP(c echo.Context, _ caller) error {
	mcp := part(a.effective(), "mcp")
	delete(mcp, "servers")
	return a.reply(c, objectMCP, typeMCP, mcp)
}

func (a *api) toolServers() []ToolServer {
	if a.cfg.ToolServers == nil {
		return nil
	}
	return a.cfg.ToolServers.Servers()
}

// shownServer is the document of a server; what it wrote when it failed may hold
// anything.
func (a *api) shownServer(s ToolServer) mcpServerDocument {
	if s.Capabilities != nil {
		s.Capabilities = a.withoutSecrets(s.Capabilities)
	}
	return mcpServerDocument{
		ID: s.ID, Name: s.Name, Type: s.Type, Status: s.Status, Enabled: s.Enabled, Tools: s.Tools,
		Description: s.Description, AgentID: s.Agent, Capabilities: s.Capabilities, Error: a.cfg.Redact(s.Error),
	}
}

func (a *api) listServers(c echo.Context, _ caller) error {
	doc := mcpServersDocument{Servers: []mcpServerDocument{}}
	for _, s := range a.toolServers() {
		doc.Servers = append(doc.Servers, a.shownServer(s))
	}
	doc.Count = len(doc.Servers)
	return a.reply(c, objectMCPServers, typeMCPServers, &doc)
}

// getServer finds a server of the formation, else one of an agent.
func (a *api) getServer(c echo.Context, _ caller) error {
	id := httpx.Param(c, "id")
	var found *ToolServer
	for _, s := range a.toolServers() {
		if s.ID == id && (found == nil || s.Agent == "" && found.Agent != "") {
			found = &s
		}
	}
	if found == nil {
		return fault.Errorf(fault.NotFound, "", "There is no tool server %q", id[:min(len(id), 64)])
	}
	doc := a.shownServer(*found)
	return a.reply(c, objectMCPServer, typeMCPServer, &doc)
}

func (a *api) listTools(c echo.Context, _ caller) error {
	doc := mcpToolsDocument{Tools: []mcpToolDocument{}}
	if a.cfg.ToolServers != nil {
		for _, t := range a.cfg.ToolServers.Catalog() {
			if len(t.InputSchema) == 0 {
				t.InputSchema = json.RawMessage(`{"type":"object"}`)
			}
			doc.Tools = append(doc.Tools, mcpToolDocument{t.Name, t.Description, t.Server, t.Agent, t.InputSchema})
		}
	}
	doc.Count = len(doc.Tools)
	return a.reply(c, objectMCPTools, typeMCPTools, &doc)
}

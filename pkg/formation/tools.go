package formation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/httpapi"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/httpx"
)

// toolServers are the formation's tool servers, and what each agent may use of
// them.
type toolServers struct {
	client *mcpclient.Client
	boxes  map[string]*mcpclient.Toolbox
	mark   string // of the processes of this state directory, before their launch
}

// basics are the variables of this process that tool servers get: what programs
// need to find others, their files and their language.
func basics() []string {
	return []string{
		"PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR",
	}
}

// openTools prepares the tool servers of all files. What dead launches left of
// theirs is killed; those that nothing is known of are asked for their tools.
func (f *Formation) openTools(ctx context.Context, p *parts, req control.LoadRequest, progress func(string)) *toolServers {
	m := p.manifest
	var servers []mcpclient.Server
	for _, s := range m.MCPServers {
		servers = append(servers, mcpclient.Server{MCPServer: s})
	}
	for i := range m.Agents {
		for _, u := range m.Agents[i].MCPServers {
			if u.Own != nil && u.Own.Active {
				servers = append(servers, mcpclient.Server{MCPServer: *u.Own, Agent: m.Agents[i].ID})
			}
		}
	}
	sum := sha256.Sum256([]byte(req.StateDir))
	t := &toolServers{boxes: make(map[string]*mcpclient.Toolbox, len(m.Agents)), mark: hex.EncodeToString(sum[:4]) + "-"}
	var environ []string
	if f.cfg.Env != nil {
		for _, name := range basics() {
			if value, ok := f.cfg.Env(name); ok {
				environ = append(environ, name+"="+value)
			}
		}
	}
	t.client = mcpclient.New(p.life, mcpclient.Config{
		Servers: servers, Dir: req.Dir, Resolve: p.users.Expander(p.secrets.Resolve), Lists: mcpclient.Stored{DB: p.db}, Environ: environ,
		Launch: t.mark + f.cfg.LaunchID, Limits: mcpclient.Limits{Call: m.MCP.CallLimit()}, Hub: p.hub, NewID: httpx.NewID, Redact: p.redact.Values,
		Log: f.cfg.Log,
	})
	for i := range m.Agents {
		t.boxes[m.Agents[i].ID] = t.client.For(m.Agents[i].ID, m.Agents[i].MCPServers)
	}
	if len(servers) == 0 {
		return t
	}
	t.sweep(f.cfg.LaunchID, req.Fence, f.cfg.Alone)
	progress("asking tool servers for their tools")
	for _, warning := range t.client.Discover(ctx) {
		p.unsure = append(p.unsure, p.redact.Values(warning))
	}
	return t
}

// sweep kills the tool servers of launches that are dead: the fenced ones, or all
// others when nobody else may use the state directory.
func (t *toolServers) sweep(own string, fenced []string, alone bool) {
	if len(fenced) == 0 && !alone {
		return
	}
	mcpclient.Sweep(func(launch string) bool {
		id, ours := strings.CutPrefix(launch, t.mark)
		return ours && id != own && (alone || slices.Contains(fenced, id))
	})
}

// Tools gives an agent its tools at the beginning of a run.
func (t *toolServers) Tools(ctx context.Context, who chat.Invocation) ([]agent.Tool, error) {
	box := t.boxes[who.Agent]
	if box == nil {
		return nil, nil
	}
	found := box.Tools(ctx, who)
	out := make([]agent.Tool, len(found))
	for i := range found {
		out[i] = found[i]
	}
	return out, nil
}

// Specs describes the tools of an agent as they are known now.
func (t *toolServers) Specs(agentID string) []chat.ToolSpec {
	box := t.boxes[agentID]
	if box == nil {
		return nil
	}
	known := box.Known()
	out := make([]chat.ToolSpec, len(known))
	for i := range known {
		out[i] = known[i].Spec()
	}
	return out
}

// ToolsOf implements httpapi.ToolServers.
func (t *toolServers) ToolsOf(agentID string) []string {
	specs := t.Specs(agentID)
	out := make([]string, len(specs))
	for i := range specs {
		out[i] = specs[i].Name
	}
	return out
}

// Servers implements httpapi.ToolServers.
func (t *toolServers) Servers() []httpapi.ToolServer {
	var out []httpapi.ToolServer
	for _, s := range t.client.Servers() {
		out = append(out, httpapi.ToolServer{
			ID: s.ID, Agent: s.Agent, Name: s.Name, Type: s.Type, Status: s.Status, Error: s.LastError,
			Enabled: s.Enabled, Tools: s.Tools, Description: s.Description, Capabilities: s.Capabilities,
		})
	}
	return out
}

// Catalog implements httpapi.ToolServers.
func (t *toolServers) Catalog() []httpapi.ToolInfo {
	var out []httpapi.ToolInfo
	for _, info := range t.client.Catalog() {
		out = append(out, httpapi.ToolInfo{
			Name: info.Name, Description: info.Description, Server: info.Server, Agent: info.Agent, InputSchema: info.InputSchema,
		})
	}
	return out
}

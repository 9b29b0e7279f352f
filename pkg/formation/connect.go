package formation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/secrets/credentials"
	"github.com/agentformation/service/pkg/manifest"
)

// inSession lets what is resolved in a turn heed what its user chose in the
// session.
type inSession struct{ *overlord.Overlord }

// Handle handles a message.
func (s inSession) Handle(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
	return s.Overlord.Handle(credentials.WithSession(ctx, in.SessionID), in, sink)
}

// connect stands for the tools of a server that nobody has been able to ask for
// them, since it takes a user's credentials: an agent that needs the server calls
// it, and the user is told how to give them.
type connect struct {
	users    *credentials.Store
	prefix   string // of the names of the server's tools
	spec     chat.ToolSpec
	services []string
}

// connectors returns, by agent, what stands for its servers that take
// credentials of users.
func connectors(m *manifest.Formation, users *credentials.Store) map[string][]*connect {
	shared := make(map[string]*manifest.MCPServer, len(m.MCPServers))
	for i := range m.MCPServers {
		shared[m.MCPServers[i].ID] = &m.MCPServers[i]
	}
	out := make(map[string][]*connect)
	for i := range m.Agents {
		g := &m.Agents[i]
		uses := g.MCPServers
		if uses == nil {
			for j := range m.MCPServers {
				uses = append(uses, manifest.MCPUse{ID: m.MCPServers[j].ID})
			}
		}
		for _, u := range uses {
			server := u.Own
			if server == nil {
				server = shared[u.ID]
			}
			if server == nil || !server.Active {
				continue
			}
			if services := server.UserServices(); len(services) > 0 {
				out[g.ID] = append(out[g.ID], newConnect(server, services, users))
			}
		}
	}
	return out
}

func newConnect(server *manifest.MCPServer, services []string, users *credentials.Store) *connect {
	prefix := strings.Map(func(r rune) rune {
		if r == '.' {
			return '_'
		}
		return r
	}, server.ID) + "__"
	return &connect{users: users, prefix: prefix, services: services, spec: chat.ToolSpec{
		Name: prefix + "connect", ReadOnly: true,
		Description: fmt.Sprintf("Connects the user's own account at %s. Call it when the request needs this: %s",
			strings.Join(services, ", "), server.Description),
		Schema: json.RawMessage(`{"type":"object","properties":{}}`),
	}}
}

// Spec describes the tool to a model.
func (c *connect) Spec() chat.ToolSpec { return c.spec }

// Call finds out what the user lacks. The error ends the run with how to get it.
func (c *connect) Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error) {
	for _, service := range c.services {
		if _, err := c.users.Resolve(ctx, in.User, service); err != nil {
			return chat.ToolResult{}, err
		}
	}
	return chat.ToolResult{
		CallID: in.CallID, IsError: true,
		Content: "The user's account is known, but the server could not be asked for its tools. Tell the user that it can't be reached at the moment.",
	}, nil
}

// withConnectors adds to an agent's tools what stands for the servers that none
// of them is of.
func withConnectors(found []agent.Tool, list []*connect) []agent.Tool {
	for _, c := range list {
		there := false
		for _, t := range found {
			there = there || strings.HasPrefix(t.Spec().Name, c.prefix)
		}
		if !there {
			found = append(found, c)
		}
	}
	return found
}

// agentTools gives an agent its tools at the beginning of a run.
func (p *parts) agentTools(ctx context.Context, who chat.Invocation) ([]agent.Tool, error) {
	found, err := p.tools.Tools(ctx, who)
	if err != nil {
		return nil, err
	}
	return withConnectors(found, p.connect[who.Agent]), nil
}

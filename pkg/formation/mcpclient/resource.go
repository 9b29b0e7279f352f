package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
)

// Resource is something that a server lets be read.
type Resource struct {
	// URI is what it is read by; of a Template, with {names} to be filled in.
	URI         string `json:"uri"`
	Template    bool   `json:"template,omitempty"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	MIMEType    string `json:"mime_type,omitempty"`
}

// Prompt is a text that a server makes, by arguments.
type Prompt struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Arguments   []string `json:"arguments,omitempty"` // those that are required end in *
}

// maxListed bounds how many resources or prompts of a server are listed.
const maxListed = 500

func (c *Client) known(who chat.Invocation, id string) (*server, error) {
	s := c.server(who.Agent, id)
	if s == nil {
		return nil, fault.Errorf(fault.NotFound, "RESOURCE_NOT_FOUND", "there is no tool server %q", id)
	}
	return s, nil
}

// ListResources returns what a server lets be read, in the name of a user.
func (c *Client) ListResources(ctx context.Context, who chat.Invocation, server string) ([]Resource, error) {
	s, err := c.known(who, server)
	if err != nil {
		return nil, err
	}
	return s.resources(ctx, who)
}

func (s *server) resources(ctx context.Context, who chat.Invocation) ([]Resource, error) {
	var out []Resource
	err := s.do(ctx, request{in: who, tool: "resources/list", repeatable: true, ask: func(ctx context.Context, cs *mcpsdk.ClientSession, _ string) error {
		out = nil
		for r, err := range cs.Resources(ctx, nil) {
			if err != nil {
				return err
			}
			if out = append(out, Resource{URI: r.URI, Name: r.Name, Description: r.Description, MIMEType: r.MIMEType}); len(out) >= maxListed {
				return nil
			}
		}
		for r, err := range cs.ResourceTemplates(ctx, nil) {
			if _, ok := answered(err); ok {
				return nil // a server may have none, and says so by refusing
			}
			if err != nil {
				return err
			}
			if out = append(out, Resource{URI: r.URITemplate, Template: true, Name: r.Name, Description: r.Description, MIMEType: r.MIMEType}); len(out) >= maxListed {
				return nil
			}
		}
		return nil
	}})
	return out, err
}

// ReadResource reads a resource in the name of a user.
func (c *Client) ReadResource(ctx context.Context, who chat.Invocation, server, uri string) (chat.ToolResult, error) {
	s, err := c.known(who, server)
	if err != nil {
		return chat.ToolResult{}, err
	}
	return s.read(ctx, readResourceTool(s), who, uri)
}

func (s *server) read(ctx context.Context, t *Tool, who chat.Invocation, uri string) (chat.ToolResult, error) {
	var got *mcpsdk.ReadResourceResult
	err := s.do(ctx, request{in: who, tool: "resources/read", repeatable: true, ask: func(ctx context.Context, cs *mcpsdk.ClientSession, _ string) (err error) {
		got, err = cs.ReadResource(ctx, &mcpsdk.ReadResourceParams{URI: uri})
		return err
	}})
	if err != nil {
		return chat.ToolResult{}, err
	}
	all := &mcpsdk.CallToolResult{}
	for _, c := range got.Contents {
		all.Content = append(all.Content, &mcpsdk.EmbeddedResource{Resource: c})
	}
	return t.result(all), nil
}

// ListPrompts returns the prompts of a server, in the name of a user.
func (c *Client) ListPrompts(ctx context.Context, who chat.Invocation, server string) ([]Prompt, error) {
	s, err := c.known(who, server)
	if err != nil {
		return nil, err
	}
	return s.prompts(ctx, who)
}

func (s *server) prompts(ctx context.Context, who chat.Invocation) ([]Prompt, error) {
	var out []Prompt
	err := s.do(ctx, request{in: who, tool: "prompts/list", repeatable: true, ask: func(ctx context.Context, cs *mcpsdk.ClientSession, _ string) error {
		out = nil
		for p, err := range cs.Prompts(ctx, nil) {
			if err != nil {
				return err
			}
			prompt := Prompt{Name: p.Name, Description: p.Description}
			for _, arg := range p.Arguments {
				name := arg.Name
				if arg.Required {
					name += "*"
				}
				prompt.Arguments = append(prompt.Arguments, name)
			}
			if out = append(out, prompt); len(out) >= maxListed {
				return nil
			}
		}
		return nil
	}})
	return out, err
}

// GetPrompt has a server make a prompt, in the name of a user. Its messages are
// the content, each after the role that says it.
func (c *Client) GetPrompt(ctx context.Context, who chat.Invocation, server, name string, args map[string]string) (chat.ToolResult, error) {
	s, err := c.known(who, server)
	if err != nil {
		return chat.ToolResult{}, err
	}
	return s.prompt(ctx, getPromptTool(s), who, name, args)
}

func (s *server) prompt(ctx context.Context, t *Tool, who chat.Invocation, name string, args map[string]string) (chat.ToolResult, error) {
	var got *mcpsdk.GetPromptResult
	err := s.do(ctx, request{in: who, tool: "prompts/get", repeatable: true, ask: func(ctx context.Context, cs *mcpsdk.ClientSession, _ string) (err error) {
		got, err = cs.GetPrompt(ctx, &mcpsdk.GetPromptParams{Name: name, Arguments: args})
		return err
	}})
	if err != nil {
		return chat.ToolResult{}, err
	}
	all := &mcpsdk.CallToolResult{}
	for _, m := range got.Messages {
		if text, ok := m.Content.(*mcpsdk.TextContent); ok {
			all.Content = append(all.Content, &mcpsdk.TextContent{Text: string(m.Role) + ": " + text.Text})
			continue
		}
		all.Content = append(all.Content, m.Content)
	}
	return t.result(all), nil
}

// readResourceTool lets an agent read, and find, a server's resources.
func readResourceTool(s *server) *Tool {
	return &Tool{
		server: s,
		info: toolInfo{
			Name: "read_resource", Title: "Read a resource", ReadOnly: true, Idempotent: true,
			Description: fmt.Sprintf("Reads a resource of the server %q by its URI. Without a URI it lists the resources that there are.", s.file.ID),
			Schema:      json.RawMessage(`{"type":"object","properties":{"uri":{"type":"string","description":"URI of the resource; leave it out to list all"}}}`),
		},
		call: func(ctx context.Context, t *Tool, in chat.Invocation, args map[string]any) (chat.ToolResult, error) {
			if uri, _ := args["uri"].(string); uri != "" {
				return s.read(ctx, t, in, uri)
			}
			found, err := s.resources(ctx, in)
			return listing(found, err)
		},
	}
}

// getPromptTool lets an agent use, and find, a server's prompts.
func getPromptTool(s *server) *Tool {
	return &Tool{
		server: s,
		info: toolInfo{
			Name: "get_prompt", Title: "Get a prompt", ReadOnly: true, Idempotent: true,
			Description: fmt.Sprintf("Gets a prompt that the server %q has prepared, by its name. Without a name it lists the prompts that there are.", s.file.ID),
			Schema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","description":"name of the prompt; leave it out to list all"},` +
				`"arguments":{"type":"object","additionalProperties":{"type":"string"},"description":"arguments of the prompt"}}}`),
		},
		call: func(ctx context.Context, t *Tool, in chat.Invocation, args map[string]any) (chat.ToolResult, error) {
			name, _ := args["name"].(string)
			if name == "" {
				found, err := s.prompts(ctx, in)
				return listing(found, err)
			}
			given := map[string]string{}
			if fields, ok := args["arguments"].(map[string]any); ok {
				for key, value := range fields {
					given[key] = strings.TrimSpace(fmt.Sprint(value))
				}
			}
			return s.prompt(ctx, t, in, name, given)
		},
	}
}

// listing is a list as a tool's result.
func listing[T any](found []T, err error) (chat.ToolResult, error) {
	if err != nil {
		return chat.ToolResult{}, err
	}
	if len(found) == 0 {
		return chat.ToolResult{Content: "There are none."}, nil
	}
	lines := make([]string, len(found))
	for i := range found {
		data, err := json.Marshal(found[i])
		if err != nil {
			return chat.ToolResult{}, fmt.Errorf("encode a list: %w", err)
		}
		lines[i] = string(data)
	}
	return chat.ToolResult{Content: strings.Join(lines, "\n")}, nil
}

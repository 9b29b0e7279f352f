package mcpserver

import (
	"context"
	"net/url"
	"strings"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Resource is something to read that does not change while the process lives.
type Resource struct {
	Kind  string // agents, sops or skills
	ID    string // in its kind
	Title string
	About string
	// Text is its content, as JSON.
	Text func() (string, error)
}

// The kinds of resources, each with what a template says of it.
var kinds = []struct{ name, about string }{
	{"agents", "What an agent is for."},
	{"sops", "A standard operating procedure, with its text."},
	{"skills", "What a skill is for."},
}

const jsonType = "application/json"

func uriOf(kind, id string) string { return "formation://" + kind + "/" + url.PathEscape(id) }

func templateOf(kind string) string { return "formation://" + kind + "/{id}" }

// offer adds the resources to the protocol's server.
func (s *Server) offer(server *mcpsdk.Server) {
	for _, k := range kinds {
		server.AddResourceTemplate(&mcpsdk.ResourceTemplate{
			Name: k.name, Description: k.about, MIMEType: jsonType, URITemplate: templateOf(k.name),
		}, func(_ context.Context, req *mcpsdk.ReadResourceRequest) (*mcpsdk.ReadResourceResult, error) {
			return nil, mcpsdk.ResourceNotFoundError(req.Params.URI) // those that exist are found before
		})
	}
	if s.cfg.Resources == nil {
		return
	}
	for _, r := range s.cfg.Resources() {
		uri := uriOf(r.Kind, r.ID)
		server.AddResource(&mcpsdk.Resource{
			URI: uri, Name: r.ID, Title: r.Title, Description: r.About, MIMEType: jsonType,
		}, func(context.Context, *mcpsdk.ReadResourceRequest) (*mcpsdk.ReadResourceResult, error) {
			text, err := r.Text()
			if err != nil {
				s.cfg.Log.Error().Err(err).Str("resource", uri).Msg("read a resource")
				return nil, mcpsdk.ResourceNotFoundError(uri)
			}
			return &mcpsdk.ReadResourceResult{Contents: []*mcpsdk.ResourceContents{{URI: uri, MIMEType: jsonType, Text: text}}}, nil
		})
	}
}

// maxCompletions is how many values the protocol allows in one reply.
const maxCompletions = 100

// complete proposes ids for the templates of resources.
func (s *Server) complete(_ context.Context, req *mcpsdk.CompleteRequest) (*mcpsdk.CompleteResult, error) {
	found := mcpsdk.CompletionResultDetails{Values: []string{}}
	if ref := req.Params.Ref; ref != nil && s.cfg.Resources != nil {
		for _, r := range s.cfg.Resources() {
			if ref.URI != templateOf(r.Kind) || req.Params.Argument.Name != "id" || !strings.HasPrefix(r.ID, req.Params.Argument.Value) {
				continue
			}
			if found.Total++; len(found.Values) < maxCompletions {
				found.Values = append(found.Values, r.ID)
			}
		}
	}
	found.HasMore = found.Total > len(found.Values)
	return &mcpsdk.CompleteResult{Completion: found}, nil
}

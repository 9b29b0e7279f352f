package manifest

import (
	"maps"
	"slices"
	"strings"
)

// UserServices returns the services whose user credentials the server's texts
// name, in lower case and order. A server with some acts for one user at a time.
func (s *MCPServer) UserServices() []string {
	found := map[string]bool{}
	look := func(text string) {
		for {
			at := strings.Index(text, "${{")
			if at < 0 {
				return
			}
			kind, name, size, err := cutPlaceholder(text[at:])
			if err != nil {
				return
			}
			if kind == KindUser {
				found[strings.ToLower(name)] = true
			}
			text = text[at+size:]
		}
	}
	for _, text := range []string{s.Command, s.Cwd, s.Endpoint, s.HealthCheck.Endpoint} {
		look(text)
	}
	for _, text := range s.Args {
		look(text)
	}
	for _, texts := range []map[string]string{s.Env, s.Headers, s.Auth.Values, s.Auth.Headers} {
		for _, text := range texts {
			look(text)
		}
	}
	for _, value := range s.Parameters {
		if text, ok := value.(string); ok {
			look(text)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// inServer returns a function that tells whether a placeholder stands in a tool
// server, in its own file or inline.
func (l *loader) inServer() func(Ref) bool {
	files := map[string]bool{}
	for i := range l.servers {
		if file := l.servers[i].File; file != l.manifest {
			files[file] = true
		}
	}
	return func(r Ref) bool {
		return files[r.File] || strings.Contains(r.Key, "mcp_servers[") ||
			strings.HasPrefix(r.Key, "mcp.servers[") || strings.HasPrefix(r.Key, "mcps.servers[")
	}
}

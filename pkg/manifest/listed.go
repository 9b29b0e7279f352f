package manifest

import (
	"fmt"
	"path"
	"slices"
)

// fileKind is a kind of file that the manifest lists by id.
type fileKind struct {
	dirs []string // where such files lie, the first name is the one to write
	what string   // what an id of it is called, with its article
	rule RuleID   // of a malformed id
}

// listed returns the tree of the file that item names by its id, nil when
// there is none.
func (l *loader) listed(item *node, key string, k fileKind) *node {
	id := item.text
	if !agentID().MatchString(id) {
		l.d.fault(item, key, k.rule, "%q is no %s; it has letters, digits and . _ - only", shorten(id), k.what[len("an "):])
		if base := withoutExtension(path.Base(id)); agentID().MatchString(base) {
			l.d.faults[len(l.d.faults)-1].Suggestion = base
		}
		return nil
	}
	name := l.pathOf(id, k)
	if name == "" {
		l.d.fault(item, key, RuleFileMissing, "%s/%s.afs (or .yaml, .yml) does not exist", k.dirs[0], id)
		if len(l.d.faults) > maxReported {
			return nil
		}
		names := l.idsOf(k)
		if base := withoutExtension(id); slices.Contains(names, base) {
			l.d.faults[len(l.d.faults)-1].Suggestion = base
		} else {
			l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(id, names)
		}
		return nil
	}
	return l.b.doc(name, bad(item, key, "", ""))
}

// pathOf returns the file of an id, "" when there is none.
func (l *loader) pathOf(id string, k fileKind) string {
	if l.b.root == nil {
		return ""
	}
	for _, dir := range k.dirs {
		for _, ext := range agentExtensions() {
			name := path.Join(dir, id+ext)
			if _, err := l.b.root.Lstat(name); err == nil {
				return name
			}
		}
	}
	return ""
}

// idsOf lists the ids that have a file, sorted.
func (l *loader) idsOf(k fileKind) []string {
	var ids []string
	for _, dir := range k.dirs {
		for _, e := range l.b.list(dir) {
			if id := withoutExtension(e.name); id != e.name && !e.dir {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// unlisted warns about files of a kind that nobody read: they are ignored.
func (l *loader) unlisted(k fileKind, key string) {
	for _, dir := range k.dirs {
		for _, e := range l.b.list(dir) {
			name := path.Join(dir, e.name)
			if e.dir || withoutExtension(e.name) == e.name || slices.Contains(l.b.files, name) {
				continue
			}
			l.d.warnings = append(l.d.warnings, Warning{
				File: name, Rule: RuleUnlisted, Message: fmt.Sprintf("the file is not listed in %s, so it is ignored", key),
			})
		}
	}
}

func mcpFiles() fileKind {
	return fileKind{dirs: []string{"mcp", "mcps"}, what: "an id of a server", rule: RuleServerID}
}

// mcpServers reads the servers that the manifest lists.
func (l *loader) mcpServers(o *object) {
	for _, list := range []*slot{o.block("mcp").slot("servers"), o.block("mcps").slot("servers")} {
		list.list(func(_ int, item *slot) {
			if server := l.mcpListed(item); server != nil {
				l.addServer(item, server)
			}
			item.end()
		})
		list.end()
	}
}

// mcpListed reads one item: an id, or the server itself.
func (l *loader) mcpListed(item *slot) *MCPServer {
	if id, ok := item.text("the id of a server"); ok {
		l.f.MCP.Servers = append(l.f.MCP.Servers, id)
		root := l.listed(item.n, item.path, mcpFiles())
		if root == nil {
			return nil
		}
		s := l.d.mcpServer(l.d.object(root, ""), &l.f.MCP, false)
		if s != nil && s.ID != "" && s.ID != id {
			at := root.get("id")
			l.d.fault(at, "id", RuleMismatch, "is %q, but the manifest lists this file as %q; use one id", s.ID, id)
		}
		return s
	}
	b := item.block()
	if b == nil {
		return nil
	}
	inline := b.n == nil || b.n.file == l.manifest
	if !inline {
		b.path = ""
	}
	s := l.d.mcpServer(b, &l.f.MCP, inline)
	if s != nil && s.ID != "" {
		l.f.MCP.Servers = append(l.f.MCP.Servers, s.ID)
	}
	return s
}

func (l *loader) addServer(item *slot, s *MCPServer) {
	if s.ID == "" {
		return
	}
	if !agentID().MatchString(s.ID) {
		l.d.fault(item.n, item.path, RuleServerID, "%q is no id of a server; it has letters, digits and . _ - only", shorten(s.ID))
		return
	}
	for i := range l.servers {
		if l.servers[i].ID == s.ID {
			l.d.fault(item.n, item.path, RuleDuplicate, "the server %q is listed twice; keep one", s.ID)
			return
		}
	}
	l.servers = append(l.servers, *s)
	if s.Active {
		l.f.MCPServers = append(l.f.MCPServers, *s)
	} else if s.File != l.manifest {
		delete(l.b.refs, s.File) // a server that is not loaded needs no secrets
	}
}

func a2aFiles() fileKind {
	return fileKind{dirs: []string{"a2a"}, what: "an id of a service", rule: RuleServerID}
}

// a2aServices reads the services that the manifest lists.
func (l *loader) a2aServices(o *object) {
	out := &l.f.A2A.Outbound
	seen := map[string]bool{}
	list := o.block("a2a").block("outbound").slot("services")
	list.list(func(_ int, item *slot) {
		s := l.a2aListed(item)
		item.end()
		switch {
		case s == nil || s.ID == "":
		case seen[s.ID]:
			l.d.fault(item.n, item.path, RuleDuplicate, "the service %q is listed twice; keep one", s.ID)
		case s.Active:
			out.Services = append(out.Services, *s)
		case s.File != l.manifest:
			delete(l.b.refs, s.File)
		}
		if s != nil {
			seen[s.ID] = true
		}
	})
	list.end()
}

func (l *loader) a2aListed(item *slot) *A2AService {
	out := &l.f.A2A.Outbound
	if id, ok := item.text("the id of a service"); ok {
		root := l.listed(item.n, item.path, a2aFiles())
		if root == nil {
			return nil
		}
		s := l.d.a2aService(l.d.object(root, ""), out, id)
		if s != nil && s.ID != id {
			l.d.object(root, "").faultAt("id", "service_id", RuleMismatch, "is %q, but the manifest lists this file as %q; use one id", s.ID, id)
		}
		return s
	}
	b := item.block()
	if b == nil {
		return nil
	}
	stem := ""
	if b.n != nil && b.n.file != l.manifest {
		stem, b.path = withoutExtension(path.Base(b.n.file)), ""
	}
	return l.d.a2aService(b, out, stem)
}

package manifest

import (
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// groups reads groups/.
func (l *loader) groups() {
	stems, files := l.yamlFiles("groups")
	for _, stem := range stems {
		root := l.b.doc(files[stem], Fault{})
		if root == nil {
			continue
		}
		g := Group{ID: stem, File: files[stem]}
		o := l.d.object(root, "")
		id := stem
		l.d.group(o, &g, &id)
		if !agentID().MatchString(stem) {
			l.d.fault(root, "id", RuleGroupID, "%q is no id of a group; it has letters, digits and . _ - only", shorten(stem))
		} else if id != stem {
			o.faultAt("id", "", RuleMismatch, "is %q, but the file is called %q; use one name", shorten(id), stem)
		}
		l.f.Groups = append(l.f.Groups, g)
	}
	l.inherits()
}

// group reads a group's file.
func (d *decoder) group(o *object, g *Group, id *string) {
	set(id, o.word("id"))
	set(&g.Description, o.text("description"))
	set(&g.Inherits, o.texts("inherits"))
	g.Agents, g.AgentTools = d.groupAgents(o.slot("agents"))
	g.Triggers = d.access(o.slot("triggers"))
	g.SOPs = d.access(o.slot("sops"))
	g.NativeApps = d.access(o.slot("native_apps"))
	g.MCPServers = d.serverTools(o, "mcp_servers")
	mcp := o.block("mcp")
	watch := mcp.block("watch")
	set(&g.MaxConcurrentWatches, watch.integer("max_concurrent", 1, unlimited))
	watch.end()
	mcp.end()
	memory := o.block("memory")
	write := memory.texts("write")
	if write.schema != nil {
		write.schema.Items.Pattern = "^(formation|group:.+)$"
	}
	set(&g.MemoryWrite, write)
	if v := memory.take("write"); v != nil && v.kind == kindList {
		for _, item := range v.items {
			if item.kind == kindText && item.text != "formation" && (!strings.HasPrefix(item.text, "group:") || item.text == "group:") {
				d.fault(item, memory.key("write"), RuleGrant, "%q is no scope; write formation or group:<id>", shorten(item.text))
				d.faults[len(d.faults)-1].Suggestion = d.guess(item.text, []string{"formation"})
			}
		}
	}
	memory.end()
	o.free("schema", "name", "metadata")
	o.end()
}

// access reads a list of globs, or {allow, deny}.
func (d *decoder) access(s *slot) Access {
	var a Access
	if b := s.block(); b != nil {
		a.Allow, a.Deny = d.globs(b.slot("allow")), d.globs(b.slot("deny"))
		b.end()
	}
	s.list(func(_ int, item *slot) {
		if g, ok := item.text("a glob"); ok && d.glob(item.n, item.path) {
			a.Allow = append(a.Allow, g)
		}
		item.end()
	})
	s.end()
	return a
}

// groupAgents reads globs, {allow, deny}, or globs with the tools of each.
func (d *decoder) groupAgents(s *slot) (Access, map[string]map[string]ToolFilter) {
	var a Access
	tools := map[string]map[string]ToolFilter{}
	one := func(glob string, b *object) {
		a.Allow = append(a.Allow, glob)
		if servers := d.serverTools(b, "mcp_servers"); len(servers) > 0 {
			tools[glob] = servers
		}
		b.end()
	}
	if s.n == nil || s.n.kind != kindMap || s.n.get("allow") != nil || s.n.get("deny") != nil {
		if b := s.block(); b != nil {
			a.Allow, a.Deny = d.globs(b.slot("allow")), d.globs(b.slot("deny"))
			if b.schema == nil {
				b.end()
			} else {
				b.schema.AdditionalProperties = &jsonschema.Schema{Types: []string{"object", "null"}}
				one("", &object{d: d, path: s.path, schema: b.schema.AdditionalProperties})
			}
		}
	} else if s.block() != nil {
		for _, e := range s.n.keys {
			one(e.key, d.object(e.value, join(s.path, e.key)))
		}
	}
	s.list(func(_ int, item *slot) {
		if g, ok := item.text("a glob"); ok && d.glob(item.n, item.path) {
			a.Allow = append(a.Allow, g)
		}
		if b := item.block(); b != nil {
			b.require("id", "id: <agent or glob>")
			if id := b.word("id").v; id != nil || b.schema != nil {
				glob := ""
				set(&glob, read[string]{v: id})
				one(glob, b)
			}
		}
		item.end()
	})
	s.end()
	return a, tools
}

// serverTools reads {server: {tools: {allow, deny}}}.
func (d *decoder) serverTools(o *object, key string) map[string]ToolFilter {
	out := map[string]ToolFilter{}
	o.each(key, func(name string, s *slot) {
		if b := s.block(); b != nil {
			var f ToolFilter
			if t := b.block("tools"); !t.absent() {
				f = d.toolFilter(t)
			}
			b.end()
			out[name] = f
		}
		s.end()
	})
	return out
}

// inherits checks that groups inherit from groups, and never in a circle.
func (l *loader) inherits() {
	ids := l.groupIDs()
	for i := range l.f.Groups {
		g := &l.f.Groups[i]
		o := l.d.object(l.b.docs[g.File], "")
		for _, parent := range g.Inherits {
			if !slices.Contains(ids, parent) {
				o.faultAt("inherits", "", RuleReference, "no group is called %q", shorten(parent))
				l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(parent, ids)
			}
		}
	}
	done := map[string]bool{}
	for _, id := range ids {
		l.circles(id, nil, done)
	}
}

// circles follows the groups that id inherits from; way are those on the way
// here, done those that were followed before.
func (l *loader) circles(id string, way []string, done map[string]bool) {
	at := slices.IndexFunc(l.f.Groups, func(g Group) bool { return g.ID == id })
	if first := slices.Index(way, id); first >= 0 {
		o := l.d.object(l.b.docs[l.f.Groups[at].File], "")
		o.faultAt("inherits", "", RuleGroupCycle, "groups inherit from each other in a circle: %s",
			strings.Join(append(slices.Clone(way[first:]), id), " -> "))
		return
	}
	if at < 0 || done[id] {
		return
	}
	way = append(way, id)
	for _, parent := range l.f.Groups[at].Inherits {
		l.circles(parent, way, done)
	}
	done[id] = true
}

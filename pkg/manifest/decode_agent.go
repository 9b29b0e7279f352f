package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

var agentID = lazily(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// agentExtensions are the endings of an agent file, in the order they are
// looked for.
func agentExtensions() []string { return []string{".afs", ".yaml", ".yml"} }

// agents reads the manifest's list of agents and the files it names.
func (l *loader) agents(o *object) []Agent {
	o.require("agents", "agents: [<id of agents/<id>.afs>]")
	list := o.take("agents")
	if list == nil {
		return nil
	}
	if list.kind != kindList {
		l.d.typeFault(list, "agents", kindList)
		return nil
	}
	var out []Agent
	written := map[string]*node{} // id to where it stands
	for i, item := range list.items {
		a, at := l.agent(item, fmt.Sprintf("agents[%d]", i))
		if a == nil {
			continue
		}
		if first := written[a.ID]; first != nil {
			l.d.fault(item, fmt.Sprintf("agents[%d]", i), RuleAgentDuplicate, "the agent id %q is taken by the one at %s:%d:%d", a.ID, first.file, first.at.line, first.at.col)
			continue
		}
		written[a.ID] = at
		if a.Active {
			out = append(out, *a)
		} else if a.File != l.manifest {
			delete(l.b.refs, a.File) // an agent that is not loaded needs no secrets
		}
	}
	if len(out) == 0 && len(written) > 0 {
		l.d.fault(list, "agents", RuleAgentNone, "no agent is active; set active: true in at least one")
	}
	return out
}

// agent reads one item of the list and returns where its id stands.
func (l *loader) agent(item *node, key string) (*Agent, *node) {
	if item.kind == kindText {
		return l.agentFile(item, key)
	}
	if item.kind != kindMap {
		if !item.broken {
			l.d.fault(item, key, RuleType, "takes the id of an agent file or the agent itself, not %s", item.kind)
		}
		return nil, nil
	}
	inline := item.file == l.manifest
	if !inline {
		key = ""
	}
	return l.d.agent(item, agentPlace{key: key, inline: inline, formation: l.f})
}

// agentFile reads the file of an agent that is listed by its id.
func (l *loader) agentFile(item *node, key string) (*Agent, *node) {
	root := l.listed(item, key, fileKind{dirs: []string{"agents"}, what: "an agent id", rule: RuleAgentID})
	if root == nil {
		return nil, nil
	}
	return l.d.agent(root, agentPlace{listed: item.text, formation: l.f})
}

func withoutExtension(name string) string {
	if ext := path.Ext(name); slices.Contains(agentExtensions(), ext) {
		return strings.TrimSuffix(name, ext)
	}
	return name
}

// agentPlace says where an agent is written.
type agentPlace struct {
	key       string // dotted path of the block; "" in a file of its own
	listed    string // the id in the manifest's list, when it names a file
	inline    bool
	formation *Formation
}

// agent reads an agent's block and returns where its id stands.
func (d *decoder) agent(n *node, p agentPlace) (*Agent, *node) {
	o := d.object(n, p.key)
	if o.n == nil {
		return nil, nil
	}
	a := &Agent{Active: true, File: n.file, Line: n.at.line, Buffer: p.formation.Memory.Buffer}
	at := d.agentKeys(o, a, p)
	a.Raw, _ = n.plain().(map[string]any)
	if a.ID == "" {
		return nil, nil
	}
	return a, at
}

// agentKeys reads the keys of an agent and returns where its id stands.
func (d *decoder) agentKeys(o *object, a *Agent, p agentPlace) *node {
	d.schemaOf(o, &a.Schema, !p.inline)
	at := d.agentHead(o, a, p)
	set(&a.SystemMessage, o.text("system_message"))
	set(&a.Role, o.enum("role", "a role", "specialist", "generalist", "coordinator", "researcher", "executor"))
	d.specialization(o, &a.Specialization)
	d.systemBehavior(o.block("system_behavior"), &a.SystemBehavior)
	d.agentLLM(o, &a.LLM)
	memory := o.block("memory")
	d.buffer(memory.block("buffer"), &a.Buffer)
	memory.end()
	d.agentTimeout(o.block("timeout"), &a.Timeout)
	a.Metadata = map[string]any{}
	set(&a.Metadata, o.freeBlock("metadata"))
	set(&a.Active, o.boolean("active"))
	d.delegation(o, a)
	d.knowledge(o.block("knowledge"), &a.Knowledge)
	a.MCPServers = d.mcpUses(o.slot("mcp_servers"), p.formation)
	d.rateLimiting(o.block("rate_limiting"), &a.RateLimit)
	set(&a.Skills, o.texts("skills"))
	o.inert("agent")
	o.free("author", "url", "license", "version")
	o.end()
	return at
}

// delegation reads with whom the agent may work, in its older form too.
func (d *decoder) delegation(o *object, a *Agent) {
	a.A2AEnabled, a.DirectDelegation, a.Delegation = true, true, DelegateAutomatic
	old := o.block("a2a")
	set(&a.DirectDelegation, old.boolean("internal"))
	set(&a.A2AEnabled, old.boolean("external"))
	old.end()
	set(&a.A2AEnabled, o.boolean("a2a_enabled"))
	set(&a.DirectDelegation, o.boolean("enable_direct_delegation"))
	set(&a.Delegation, o.enum("delegation_strategy", "a strategy", DelegateAutomatic, DelegateAskUser, DelegateNever))
}

// mcpUses reads an agent's tool servers: ids, ids with a filter, or servers of
// its own. An agent without the key has all of the formation's, one with an empty
// list has none: nil and empty differ.
func (d *decoder) mcpUses(s *slot, f *Formation) []MCPUse {
	var out []MCPUse
	listed := s.list(func(_ int, item *slot) {
		if id, ok := item.text("the id of a server"); ok {
			out = append(out, MCPUse{ID: id, place: item.n, key: item.path})
		}
		if b := item.block(); b != nil {
			if b.schema == nil && b.take("type") == nil && b.take("command") == nil && b.take("endpoint") == nil {
				out = append(out, d.mcpNarrowed(b))
			} else if server := d.mcpServer(b, &f.MCP, true); server != nil && server.ID != "" && b.schema == nil {
				out = append(out, MCPUse{ID: server.ID, Own: server, place: item.n, key: item.path})
			}
			if b.schema != nil {
				b.schema.Required = []string{"id"}
			}
		}
		item.end()
	})
	s.end()
	if listed && out == nil {
		out = []MCPUse{}
	}
	return out
}

// mcpNarrowed reads {id, tools} of a formation-level server.
func (d *decoder) mcpNarrowed(o *object) MCPUse {
	u := MCPUse{place: o.n, key: o.path}
	o.require("id", "id: <a server of mcp.servers>")
	set(&u.ID, o.word("id"))
	if t := o.block("tools"); !t.absent() {
		u.Tools = d.toolFilter(t)
	}
	o.free("description", "schema")
	o.end()
	return u
}

// agentHead reads id, name and description.
func (d *decoder) agentHead(o *object, a *Agent, p agentPlace) *node {
	o.require("id", "id: my-agent")
	at := o.n
	id := o.word("id")
	patterned(id.schema, agentID().String())
	if id.v != nil && *id.v != "" {
		at = o.n.get("id")
		switch {
		case !agentID().MatchString(*id.v):
			d.fault(at, o.key("id"), RuleAgentID, "%q is no agent id; it has letters, digits and . _ - only", shorten(*id.v))
		case p.listed != "" && p.listed != *id.v:
			d.fault(at, o.key("id"), RuleAgentMismatch, "is %q, but the manifest lists this file as %q; use one id", *id.v, p.listed)
		default:
			a.ID = *id.v
		}
	}
	a.Name = a.ID
	if name := o.text("name").v; name != nil && strings.TrimSpace(*name) != "" {
		a.Name = *name
	} else if o.n != nil && (o.take("name") == nil || name != nil) {
		d.warn(o.n, o.key("name"), RuleAgentName, "the agent has no name; its id is shown instead")
	}
	o.require("description", "description: what this agent is asked for")
	set(&a.Description, o.text("description"))
	return at
}

// specialization also reads the older list of keywords, specialties.
func (d *decoder) specialization(o *object, s *Specialization) {
	b := o.block("specialization")
	set(&s.Domain, b.text("domain"))
	set(&s.Subdomain, b.text("subdomain"))
	set(&s.ExpertiseLevel, b.enum("expertise_level", "a level", "junior", "intermediate", "senior", "expert"))
	set(&s.Keywords, b.texts("keywords"))
	b.end()
	if older := o.texts("specialties").v; older == nil {
		return
	} else if s.Keywords == nil {
		s.Keywords = *older
	} else {
		d.fault(o.take("specialties"), o.key("specialties"), RuleConflict, `is the older name of "specialization.keywords", which is set too; keep one`)
	}
}

func (d *decoder) systemBehavior(o *object, b *SystemBehavior) {
	set(&b.Constraints, o.texts("constraints"))
	set(&b.Capabilities, o.texts("capabilities"))
	set(&b.InteractionStyle, o.enum("interaction_style", "a style", "formal", "casual", "technical", "friendly", "professional"))
	set(&b.ResponseLength, o.enum("response_length", "a length", "concise", "moderate", "detailed", "comprehensive"))
	set(&b.ErrorHandling, o.enum("error_handling", "a way", "graceful", "explicit", "technical", "user-friendly"))
	o.end()
}

// agentLLM reads llm{settings,models} and the separate list llm_models.
func (d *decoder) agentLLM(o *object, l *AgentLLM) {
	llm := o.block("llm")
	l.Settings = d.settings(llm.block("settings"))
	own, list := llm.slot("models"), o.slot("llm_models")
	l.Models = d.models(own, d.llm.Media)
	if models := d.models(list, d.llm.Media); list.n != nil {
		if own.n != nil {
			d.fault(list.n, list.path, RuleConflict, `is another name of "llm.models", which is set too; keep one`)
		}
		l.Models = models
	}
	llm.end()
}

func (d *decoder) agentTimeout(o *object, t *AgentTimeout) {
	set(&t.Default, o.duration("default", time.Millisecond))
	set(&t.Max, o.duration("max", time.Millisecond))
	if t.Max > 0 && t.Default > t.Max {
		d.fault(o.take("default"), o.key("default"), RuleRange, "is above timeout.max")
	}
	o.end()
}

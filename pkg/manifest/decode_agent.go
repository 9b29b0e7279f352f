package manifest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

var agentID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

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
	id := item.text
	if !agentID.MatchString(id) {
		l.d.fault(item, key, RuleAgentID, "%q is no agent id; it has letters, digits and . _ - only", shorten(id))
		if base := withoutExtension(path.Base(id)); agentID.MatchString(base) {
			l.d.faults[len(l.d.faults)-1].Suggestion = base
		}
		return nil, nil
	}
	name := l.agentPath(id)
	if name == "" {
		l.d.fault(item, key, RuleFileMissing, "agents/%s.afs (or .yaml, .yml) does not exist", id)
		names := l.agentNames()
		if base := withoutExtension(id); slices.Contains(names, base) {
			l.d.faults[len(l.d.faults)-1].Suggestion = base
		} else {
			l.d.faults[len(l.d.faults)-1].Suggestion = nearest(id, names)
		}
		return nil, nil
	}
	root := l.b.doc(name, bad(item, key, "", ""))
	if root == nil {
		return nil, nil
	}
	return l.d.agent(root, agentPlace{listed: id, formation: l.f})
}

// agentPath returns the file of an agent, "" when there is none.
func (l *loader) agentPath(id string) string {
	if l.b.root == nil {
		return ""
	}
	for _, ext := range agentExtensions() {
		name := path.Join("agents", id+ext)
		if _, err := l.b.root.Lstat(name); err == nil {
			return name
		}
	}
	return ""
}

// agentNames lists the ids that have an agent file.
func (l *loader) agentNames() []string {
	if l.b.root == nil {
		return nil
	}
	dir, err := l.b.root.Open("agents")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(maxFiles)
	if err != nil {
		return nil
	}
	var ids []string
	for _, name := range names {
		if id := withoutExtension(name); id != name {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
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
	d.schema(o, &a.Schema, !p.inline)
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
	if m := o.block("metadata"); m.n != nil {
		a.Metadata, _ = m.n.plain().(map[string]any)
	}
	set(&a.Active, o.boolean("active"))
	o.inert("a2a_enabled", "enable_direct_delegation", "delegation_strategy", "a2a", "knowledge", "mcp_servers", "rate_limiting", "skills")
	o.free("author", "url", "license", "version")
	o.end()
	if a.ID == "" {
		return nil, nil
	}
	return a, at
}

// agentHead reads id, name and description.
func (d *decoder) agentHead(o *object, a *Agent, p agentPlace) *node {
	o.require("id", "id: my-agent")
	at := o.n
	if id := o.word("id"); id != nil && *id != "" {
		at = o.n.get("id")
		switch {
		case !agentID.MatchString(*id):
			d.fault(at, o.key("id"), RuleAgentID, "%q is no agent id; it has letters, digits and . _ - only", shorten(*id))
		case p.listed != "" && p.listed != *id:
			d.fault(at, o.key("id"), RuleAgentMismatch, "is %q, but the manifest lists this file as %q; use one id", *id, p.listed)
		default:
			a.ID = *id
		}
	}
	a.Name = a.ID
	if name := o.text("name"); name != nil && strings.TrimSpace(*name) != "" {
		a.Name = *name
	} else if o.take("name") == nil || name != nil {
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
	s.Keywords = b.texts("keywords")
	b.end()
	if older := o.texts("specialties"); s.Keywords == nil {
		s.Keywords = older
	} else if older != nil {
		d.fault(o.take("specialties"), o.key("specialties"), RuleConflict, `is the older name of "specialization.keywords", which is set too; keep one`)
	}
}

func (d *decoder) systemBehavior(o *object, b *SystemBehavior) {
	b.Constraints = o.texts("constraints")
	b.Capabilities = o.texts("capabilities")
	set(&b.InteractionStyle, o.enum("interaction_style", "a style", "formal", "casual", "technical", "friendly", "professional"))
	set(&b.ResponseLength, o.enum("response_length", "a length", "concise", "moderate", "detailed", "comprehensive"))
	set(&b.ErrorHandling, o.enum("error_handling", "a way", "graceful", "explicit", "technical", "user-friendly"))
	o.end()
}

// agentLLM reads llm{settings,models} and the separate list llm_models.
func (d *decoder) agentLLM(o *object, l *AgentLLM) {
	llm := o.block("llm")
	l.Settings = d.settings(llm.block("settings"))
	own, list := llm.take("models"), o.take("llm_models")
	l.Models = d.models(own, llm.key("models"))
	if list != nil {
		if own != nil {
			d.fault(list, o.key("llm_models"), RuleConflict, `is another name of "llm.models", which is set too; keep one`)
		}
		l.Models = d.models(list, o.key("llm_models"))
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

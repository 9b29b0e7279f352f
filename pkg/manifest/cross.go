package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// cross checks what no single block or file can tell: names that refer to
// other parts, and parts that need each other.
func (l *loader) cross(o *object) {
	l.checkServers()
	l.checkBudgets(o)
	l.checkProactive(o)
	l.checkGroups(o)
	l.checkCommands(o)
	l.checkSOPs()
	l.checkMemory(o)
	if len(l.d.faults)+len(l.b.faults) > 0 {
		return // what follows is often the other half of a fault
	}
	l.checkKnowledge()
	l.unlisted(fileKind{dirs: []string{"agents"}}, "agents")
	l.unlisted(mcpFiles(), "mcp.servers")
	l.unlisted(a2aFiles(), "a2a.outbound.services")
}

// checkServers holds the servers that agents name against those there are.
func (l *loader) checkServers() {
	ids := l.serverIDs()
	for i := range l.f.Agents {
		seen := map[string]bool{}
		for _, u := range l.f.Agents[i].MCPServers {
			at := u.place
			switch {
			case u.ID == "":
				continue
			case seen[u.ID]:
				l.d.fault(at, u.key, RuleDuplicate, "the server %q is listed twice; keep one", shorten(u.ID))
			case u.Own == nil && !slices.ContainsFunc(l.servers, func(s MCPServer) bool { return s.ID == u.ID }):
				l.d.fault(at, u.key, RuleReference, "mcp.servers has no server %q", shorten(u.ID))
				if agentID().MatchString(u.ID) && l.pathOf(u.ID, mcpFiles()) != "" {
					l.d.faults[len(l.d.faults)-1].Message += "; its file is there, so list it"
				}
				l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(u.ID, ids)
			}
			seen[u.ID] = true
		}
	}
}

// checkBudgets holds budgets against agents and prices.
func (l *loader) checkBudgets(o *object) {
	budgets := o.block("budgets")
	agents := budgets.block("agents")
	ids := l.agentIDs()
	for _, id := range sortedKeys(l.f.Budgets.Agents) {
		if !slices.Contains(ids, id) {
			agents.faultAt(id, "", RuleReference, "no agent has the id %q", shorten(id))
			l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(id, ids)
		}
	}
	if l.f.Budgets.HasAmount() && len(l.f.LLM.Prices) == 0 {
		o.warnKey("budgets", RuleUnpriced, "a budget counts money, but llm.prices has no price, so it never counts; write llm.prices: {provider/model: {input: 2.50, output: 10}}")
	}
}

// checkProactive holds channels and heartbeat against what they name.
func (l *loader) checkProactive(o *object) {
	p := l.f.Proactive
	if p == nil {
		return
	}
	b := o.block("proactive")
	channels := b.block("channels")
	names := sortedKeys(p.Channels)
	for _, name := range names {
		c, at := p.Channels[name], channels.block(name)
		tr, known := l.transformer(c.Transformer)
		switch {
		case c.Transformer == "" || len(l.b.faults) > 0:
		case !known:
			at.faultAt("transformer", "", RuleReference, "no transformer is called %q", shorten(c.Transformer))
			l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(c.Transformer, l.transformerNames())
		case tr.URL == "" && c.URL == "":
			at.faultAt("transformer", "", RuleTransformerURL, "the transformer %q has no endpoint.url, and the channel no url; write url: https://host/path", c.Transformer)
		}
	}
	if d := p.DefaultChannel; d != "" && !slices.Contains(names, d) {
		b.faultAt("default_channel", "", RuleReference, "proactive.channels has no channel %q", shorten(d))
		l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(d, names)
	}
	if p.Heartbeat != nil && p.Heartbeat.Enabled {
		l.checkHeartbeat(b, names)
	}
}

func (l *loader) checkHeartbeat(proactive *object, channels []string) {
	h := l.f.Proactive.Heartbeat
	b := proactive.block("heartbeat")
	if s := l.f.Scheduler; s == nil || !s.Enabled {
		proactive.faultAt("heartbeat", "", RuleNeeds, "the heartbeat needs the scheduler; write scheduler: {enabled: true}")
	}
	targets := append([]string{"last", "preferred", "webhook"}, channels...)
	if !slices.Contains(targets, h.Target) {
		b.faultAt("target", "", RuleReference, "%q is no target (one of %s)", shorten(h.Target), strings.Join(targets, ", "))
		l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(h.Target, targets)
	}
	if h.Target == "webhook" && l.f.Async.WebhookURL == "" {
		b.faultAt("target", "", RuleNeeds, "the target webhook needs async.webhook_url")
	}
	if hours := b.block("active_hours"); (hours.take("start") == nil) != (hours.take("end") == nil) {
		b.faultAt("active_hours", "", RuleNeeds, "active_hours has start and end, or neither")
	}
	ids := append(l.sopIDs(), "watch_job")
	if h.SOP != "" && !slices.Contains(ids, h.SOP) {
		b.faultAt("sop", "", RuleReference, "no procedure is called %q", shorten(h.SOP))
		l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(h.SOP, ids)
	}
}

// checkGroups holds rbac and whoever names a group against the groups.
func (l *loader) checkGroups(o *object) {
	ids := l.groupIDs()
	rbac := o.block("rbac")
	r := l.f.RBAC
	if r.Active == RBACOn && len(ids) == 0 {
		rbac.faultAt("active", "", RuleNeeds, "is true, but there is no group; write groups/<id>.yaml or active: auto")
	}
	if r.Fallback != "" && !slices.Contains(ids, r.Fallback) {
		rbac.faultAt("fallback", "", RuleReference, "no group is called %q", shorten(r.Fallback))
		l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(r.Fallback, ids)
	}
	on := r.Active == RBACOn || r.Active == RBACAuto && len(ids) > 0
	if on && r.Refuse && l.f.Middleware == nil {
		rbac.faultAt("fallback", "", RuleNeeds, "is false without a middleware, so nobody would ever be let in; write middleware or name a group")
	}
	if c := l.f.Coding; c != nil {
		coding := o.block("coding")
		for _, group := range c.Groups {
			if !slices.Contains(ids, group) {
				coding.faultAt("groups", "", RuleReference, "no group is called %q", shorten(group))
				l.d.faults[len(l.d.faults)-1].Suggestion = l.d.guess(group, ids)
			}
		}
	}
}

// checkCommands holds aliases against the commands there are.
func (l *loader) checkCommands(o *object) {
	if l.f.Commands == nil {
		return
	}
	aliases := o.block("commands").block("aliases")
	known := append(builtinCommands(), l.sopIDs()...)
	for _, name := range sortedKeys(l.f.Commands.Aliases) {
		to := strings.TrimPrefix(l.f.Commands.Aliases[name], "/")
		if !slices.Contains(known, to) {
			l.d.warn(aliases.n.get(name), aliases.key(name), RuleCommandAlias, "no command and no procedure is called %q", shorten(to))
			l.d.warnings[len(l.d.warnings)-1].Suggestion = l.d.guess(to, known)
		}
	}
}

// checkKnowledge warns about paths that lead nowhere.
func (l *loader) checkKnowledge() {
	if l.b.root == nil {
		return
	}
	for i := range l.f.Agents {
		a := &l.f.Agents[i]
		k := &a.Knowledge
		var paths []string
		for _, s := range k.Sources {
			paths = append(paths, s.Path)
		}
		for _, p := range slices.Concat(paths, k.Files, k.Directories) {
			if p == "" || strings.ContainsAny(p, "*?[") {
				continue
			}
			if _, err := l.b.root.Stat(p); err != nil {
				l.d.warnings = append(l.d.warnings, Warning{
					File: a.File, Line: a.Line, Col: 1, Key: "knowledge", Text: shorten(p), Rule: RuleKnowledgePath,
					Message: fmt.Sprintf("%s does not exist, so agent %s knows nothing of it", quoted(shorten(p)), a.ID),
				})
			}
		}
	}
}

// checkMemory looks at what memory needs of other blocks.
func (l *loader) checkMemory(o *object) {
	m := &l.f.Memory
	shared := strings.HasPrefix(m.Persistent.ConnectionString, "postgres") || HasPlaceholder(m.Persistent.ConnectionString)
	if m.Working.Mode == WorkingRemote && m.Working.RemoteURL == "" && !shared {
		o.block("memory").block("working").faultAt("mode", "", RuleNeeds, "remote needs memory.working.remote.url, or a PostgreSQL address in memory.persistent.connection_string")
	}
}

func (l *loader) agentIDs() []string {
	return namesOf(l.f.Agents, func(a Agent) string { return a.ID })
}

// serverIDs are those of all tool servers, those of single agents too.
func (l *loader) serverIDs() []string {
	ids := namesOf(l.servers, func(s MCPServer) string { return s.ID })
	for i := range l.f.Agents {
		for _, u := range l.f.Agents[i].MCPServers {
			if u.Own != nil {
				ids = append(ids, u.ID)
			}
		}
	}
	return ids
}

func (l *loader) groupIDs() []string {
	return namesOf(l.f.Groups, func(g Group) string { return g.ID })
}

func (l *loader) sopIDs() []string { return namesOf(l.f.SOPs, func(s SOP) string { return s.ID }) }

func (l *loader) skillNames() []string {
	return append(namesOf(l.f.Skills, func(s Skill) string { return s.Name }), builtinSkills()...)
}

func namesOf[T any](list []T, name func(T) string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = name(list[i])
	}
	return out
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

func quoted(s string) string { return `"` + s + `"` }

// order sorts what was found in directories the way it is listed: by name.
func (f *Formation) order() {
	slices.SortStableFunc(f.SOPs, func(a, b SOP) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortStableFunc(f.Skills, func(a, b Skill) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(path.Base(a.Dir), path.Base(b.Dir)))
	})
}

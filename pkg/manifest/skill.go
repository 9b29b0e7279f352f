package manifest

import (
	"path"
	"slices"
	"strings"
)

var skillName = lazily(`^[a-z0-9][a-z0-9-]*[a-z0-9]$`)

// skills reads skills/ and the skills of each agent.
func (l *loader) skills() {
	l.skillsIn("skills", "")
	for i := range l.f.Agents {
		id := l.f.Agents[i].ID
		l.skillsIn(path.Join("agents", id, "skills"), id)
	}
}

func (l *loader) skillsIn(dir, agent string) {
	for _, e := range l.b.list(dir) {
		if !e.dir {
			continue
		}
		at := path.Join(dir, e.name)
		if _, err := l.b.root.Lstat(path.Join(at, "SKILL.md")); err != nil {
			l.d.warnings = append(l.d.warnings, Warning{File: at, Rule: RuleSkillFile, Message: "the directory has no SKILL.md, so it is no skill"})
			continue
		}
		l.skill(at, agent)
	}
}

func (l *loader) skill(dir, agent string) {
	m, faults := l.b.markdown(path.Join(dir, "SKILL.md"))
	if len(faults) > 0 {
		l.skip(faults)
		return
	}
	s := Skill{Name: path.Base(dir), Agent: agent, Dir: dir, Body: strings.TrimSpace(m.body), Metadata: map[string]any{}}
	n := m.front
	if n == nil {
		n = &node{kind: kindMap, file: m.name, at: place{1, 1}}
	}
	before := len(l.d.faults)
	l.d.skill(l.d.object(n, ""), &s)
	if strings.TrimSpace(s.Description) == "" {
		l.d.warn(n, "description", RuleSkillDescription, "the skill has no description, so it is skipped; write description: what it is for")
		l.d.faults = l.d.faults[:before]
		return
	}
	if s.Name != path.Base(dir) && len(l.d.faults) == before {
		l.d.warn(n.get("name"), "name", RuleSkillName, "is %q, but the directory is called %q; use one name", s.Name, path.Base(dir))
	}
	for _, sub := range []string{"scripts", "references", "assets"} {
		for _, file := range l.b.walk(path.Join(dir, sub)) {
			name := strings.TrimPrefix(file, dir+"/")
			s.Resources = append(s.Resources, name)
			if sub == "scripts" {
				s.Scripts = append(s.Scripts, name)
			}
		}
	}
	l.lateRefs(m)
	l.f.Skills = append(l.f.Skills, s)
}

// skill reads the front matter of a SKILL.md.
func (d *decoder) skill(o *object, s *Skill) {
	if o.schema != nil {
		o.require("description", "description: what it is for")
	}
	name := o.word("name")
	patterned(name.schema, skillName().String())
	set(&s.Name, name)
	if at := o.n; at != nil && !skillName().MatchString(s.Name) {
		if v := at.get("name"); v != nil {
			at = v
		}
		d.fault(at, "name", RuleSkillForm, "%q is no name of a skill; it has a-z, 0-9 and -, at least two", shorten(s.Name))
		if near := nearID(s.Name); skillName().MatchString(near) {
			d.faults[len(d.faults)-1].Suggestion = near
		}
	}
	set(&s.Description, o.text("description"))
	set(&s.License, o.text("license"))
	set(&s.Compatibility, o.text("compatibility"))
	tools := o.slot("allowed-tools")
	if text, ok := tools.text("names of tools with spaces between"); ok {
		s.AllowedTools = strings.Fields(text)
	}
	if tools.list(func(_ int, item *slot) {
		if name, ok := item.text("the name of a tool"); ok {
			s.AllowedTools = append(s.AllowedTools, name)
		}
		item.end()
	}) && s.AllowedTools == nil {
		s.AllowedTools = []string{}
	}
	tools.end()
	set(&s.Metadata, o.freeBlock("metadata"))
	s.Model = d.modelID(o, "model", CapabilityText)
	o.end()
}

// findSkill returns a skill that agents may see, by name.
func (f *Formation) findSkill(name string) *Skill {
	i := slices.IndexFunc(f.Skills, func(s Skill) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Skills[i]
}

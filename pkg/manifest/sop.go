package manifest

import (
	"path"
	"slices"
	"strings"
)

// sops reads the procedures below sops/. Other files there are resources.
func (l *loader) sops() {
	files := l.b.walk("sops")
	for _, name := range files {
		if path.Ext(name) != ".md" {
			continue
		}
		if !l.b.hasFrontMatter(name) {
			continue // a resource, which may be large or no text
		}
		m, faults := l.b.markdown(name)
		switch {
		case m == nil:
			l.skip(faults)
		case len(faults) > 0:
			l.skip(faults)
		case m.front != nil && isSOP(m.front):
			l.sop(m)
		}
	}
	l.sopFiles = files
}

func isSOP(front *node) bool {
	v := front.get("type")
	return v != nil && v.kind == kindText && v.text == "sop"
}

func (l *loader) sop(m *markdown) {
	s := SOP{
		ID: strings.TrimSuffix(path.Base(m.name), ".md"), Mode: SOPGuide, BypassApproval: true, Synthesis: true,
		Body: strings.TrimSpace(m.body), File: m.name,
	}
	if i := slices.IndexFunc(l.f.SOPs, func(o SOP) bool { return o.ID == s.ID }); i >= 0 {
		l.d.warn(m.front, "", RuleSOPTwice, "the procedure %q is already that of %s, so this file is ignored", s.ID, l.f.SOPs[i].File)
		return
	}
	s.Name = s.ID
	l.d.sop(l.d.object(m.front, ""), &s)
	s.Directives = directives(m)
	l.f.SOPs = append(l.f.SOPs, s)
}

// sop reads the front matter of a procedure.
func (d *decoder) sop(o *object, s *SOP) {
	set(new(string), o.enum("type", "a kind of document", "sop"))
	set(&s.Name, o.text("name"))
	set(&s.Description, o.text("description"))
	if o.n != nil && strings.TrimSpace(s.Description) == "" {
		d.warn(o.n, "description", RuleSOPDescription, "the procedure has no description, so no message finds it; write description: when to follow it")
	}
	set(&s.Mode, o.enum("mode", "a mode", SOPTemplate, SOPGuide))
	tags := o.slot("tags")
	if text, ok := tags.text("words with commas between"); ok {
		for tag := range strings.SplitSeq(text, ",") {
			if tag = strings.TrimSpace(tag); tag != "" {
				s.Tags = append(s.Tags, tag)
			}
		}
	}
	tags.list(func(_ int, item *slot) {
		if tag, ok := item.text("a word"); ok {
			s.Tags = append(s.Tags, tag)
		}
		item.end()
	})
	tags.end()
	set(&s.BypassApproval, o.boolean("bypass_approval"))
	set(&s.Synthesis, o.boolean("synthesis"))
	s.Model = d.modelID(o, "model", CapabilityText)
	steps := o.slot("steps")
	steps.list(func(_ int, item *slot) {
		if text, ok := item.text("a step"); ok {
			s.Steps = append(s.Steps, text)
		}
		if b := item.block(); b != nil && b.n != nil {
			s.Steps = append(s.Steps, b.n.plain())
		}
		item.end()
	})
	steps.end()
	o.free("version", "author", "metadata")
	o.end()
}

// maxDirective bounds one directive, in bytes.
const maxDirective = 256

// directives finds the [kind:value] in the text of a procedure.
func directives(m *markdown) []Directive {
	var out []Directive
	for i, line := range strings.Split(m.body, "\n") {
		count := columns{line: line}
		for at := range len(line) {
			if line[at] != '[' {
				continue
			}
			end := strings.IndexByte(line[at:min(at+maxDirective, len(line))], ']')
			if end < 0 {
				continue
			}
			if d, ok := directive(line[at+1 : at+end]); ok {
				d.Line, d.Col = m.bodyLine+i, count.at(at)
				out = append(out, d)
			}
		}
	}
	return out
}

// directive reads what stands between the brackets.
func directive(inner string) (Directive, bool) {
	if inner == "critical" {
		return Directive{Kind: inner}, true
	}
	kind, value, ok := strings.Cut(inner, ":")
	value = strings.TrimSpace(value)
	if !ok || value == "" || !slices.Contains([]string{"agent", "mcp", "skill", "file", "model"}, kind) {
		return Directive{}, false
	}
	return Directive{Kind: kind, Value: value}, true
}

// checkSOPs holds the directives against what the formation has.
func (l *loader) checkSOPs() {
	for i := range l.f.SOPs {
		s := &l.f.SOPs[i]
		for _, v := range s.Directives {
			if len(l.d.warnings) > 10*maxReported {
				return // more than anybody is told
			}
			at := &node{kind: kindText, file: s.File, at: place{v.Line, v.Col}, text: v.Value}
			if v.Kind == "model" {
				l.d.checkModel(at, "[model]", CapabilityText)
				continue
			}
			if wrong, near := l.directive(v); wrong != "" {
				l.d.warn(at, "["+v.Kind+"]", RuleSOPReference, "%s", wrong)
				l.d.warnings[len(l.d.warnings)-1].Suggestion = near
			}
		}
	}
}

// directive tells what a directive refers to in vain, and what is near it.
func (l *loader) directive(v Directive) (wrong, near string) {
	name, rest, _ := strings.Cut(v.Value, "/")
	switch v.Kind {
	case "agent":
		if l.f.Agent(v.Value) == nil {
			return "no agent has the id " + quoted(v.Value), l.d.guess(v.Value, l.agentIDs())
		}
	case "mcp":
		if ids := l.serverIDs(); !slices.Contains(ids, name) {
			return "no tool server has the id " + quoted(name), l.d.guess(name, ids)
		}
	case "skill":
		skill := l.f.findSkill(name)
		switch {
		case skill == nil && slices.Contains(builtinSkills(), name):
		case skill == nil:
			return "no skill is called " + quoted(name), l.d.guess(name, l.skillNames())
		case rest != "" && !slices.Contains(skill.Scripts, path.Join("scripts", rest)) && !slices.Contains(skill.Scripts, rest):
			return "the skill " + quoted(name) + " has no script " + quoted(rest), l.d.guess(path.Join("scripts", rest), skill.Scripts)
		}
	case "file":
		for _, file := range l.sopFiles {
			if file == path.Join("sops", v.Value) || path.Base(file) == v.Value || file == v.Value {
				return "", ""
			}
		}
		return "sops/ holds no file " + quoted(v.Value), l.d.guess(v.Value, l.sopFiles)
	}
	return "", ""
}

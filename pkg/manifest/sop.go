package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// sops reads the procedures below sops/. Other files there are resources.
func (l *loader) sops() {
	files := l.b.walk("sops")
	for _, name := range files {
		if path.Ext(name) != ".md" {
			continue
		}
		m, faults := l.b.markdown(name)
		switch {
		case m == nil: // a resource may be large or no text
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

var directive = regexp.MustCompile(`\[(?:(agent|mcp|skill|file|model):\s*([^\]\n]+?)\s*|(critical))\]`)

// directives finds the [kind:value] in the text of a procedure.
func directives(m *markdown) []Directive {
	var out []Directive
	for i, line := range strings.Split(m.body, "\n") {
		for _, at := range directive.FindAllStringSubmatchIndex(line, -1) {
			d := Directive{Kind: "critical", Line: m.bodyLine + i, Col: 1 + utf8.RuneCountInString(line[:at[0]])}
			if at[2] >= 0 {
				d.Kind, d.Value = line[at[2]:at[3]], line[at[4]:at[5]]
			}
			out = append(out, d)
		}
	}
	return out
}

// checkSOPs holds the directives against what the formation has.
func (l *loader) checkSOPs() {
	for i := range l.f.SOPs {
		s := &l.f.SOPs[i]
		for _, v := range s.Directives {
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
			return "no agent has the id " + quoted(v.Value), guess(v.Value, l.agentIDs())
		}
	case "mcp":
		if ids := l.serverIDs(); !slices.Contains(ids, name) {
			return "no tool server has the id " + quoted(name), guess(name, ids)
		}
	case "skill":
		skill := l.f.findSkill(name)
		switch {
		case skill == nil && slices.Contains(builtinSkills(), name):
		case skill == nil:
			return "no skill is called " + quoted(name), guess(name, l.skillNames())
		case rest != "" && !slices.Contains(skill.Scripts, path.Join("scripts", rest)) && !slices.Contains(skill.Scripts, rest):
			return "the skill " + quoted(name) + " has no script " + quoted(rest), guess(path.Join("scripts", rest), skill.Scripts)
		}
	case "file":
		for _, file := range l.sopFiles {
			if file == path.Join("sops", v.Value) || path.Base(file) == v.Value || file == v.Value {
				return "", ""
			}
		}
		return "sops/ holds no file " + quoted(v.Value), guess(v.Value, l.sopFiles)
	}
	return "", ""
}

package manifest

import "slices"

// laterFiles warns about kinds of files that are found and checked, but that
// nothing acts upon yet: once for each, at its first file.
func (l *loader) laterFiles() {
	f, waiting := l.f, later()["files"]
	warn := func(kind string, files []string) {
		if len(files) == 0 || !slices.Contains(waiting, kind) {
			return
		}
		l.d.warnings = append(l.d.warnings, Warning{
			File: slices.Min(files), Line: 1, Col: 1, Rule: RuleNoEffect, Message: kind + " have no effect in this release",
		})
	}
	warn("skills", namesOf(f.Skills, func(s Skill) string { return s.Dir + "/SKILL.md" }))
	warn("sops", namesOf(f.SOPs, func(s SOP) string { return s.File }))
	warn("triggers", namesOf(f.Triggers, func(t Trigger) string { return t.File }))
	warn("transformers", namesOf(f.Transformers, func(t Transformer) string { return t.File }))
	warn("groups", namesOf(f.Groups, func(g Group) string { return g.File }))
}

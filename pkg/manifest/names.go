package manifest

import (
	"path"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// CheckName refuses what can't be the name of a new file of a kind that Schemas
// lists: the id of a formation or of one of its parts. The error is Invalid and
// holds the rule and, where there is one, a name that follows it.
func CheckName(kind, name string) error {
	if kind == FileFormation {
		if err := CheckID(name); err != nil {
			return misnamed(name, err.Error(), nearID(name))
		}
		return nil
	}
	shape, rule := agentID, RuleAgentID
	switch kind {
	case FileMCP, FileA2A:
		rule = RuleServerID
	case FileSkill:
		shape, rule = skillName, RuleSkillForm
	case FileTrigger:
		shape, rule = triggerName, RuleTriggerName
	case FileGroup:
		rule = RuleGroupID
	}
	if !shape().MatchString(name) {
		near := nearID(name)
		if !shape().MatchString(near) {
			near = ""
		}
		return misnamed(name, meaningOf(rule, kind), near)
	}
	if ext := path.Ext(name); slices.Contains([]string{".afs", ".yaml", ".yml", ".json", ".md"}, ext) {
		return misnamed(name, "a name has no ending of a file", strings.TrimSuffix(name, ext))
	}
	return nil
}

func misnamed(name, rule, near string) error {
	text := quoted(shorten(name)) + ": " + rule
	if near != "" {
		text += "; did you mean " + quoted(near) + "?"
	}
	return fault.New(fault.Invalid, "", text)
}

// meaningOf returns a rule's text. Procedures and transformers have none of
// their own: their names are those of files.
func meaningOf(id RuleID, kind string) string {
	if kind == FileSOP || kind == FileTransformer {
		return "the name of a " + kind + " has at most 64 letters, digits and . _ -"
	}
	for _, r := range Rules() {
		if r.ID == id {
			return r.Meaning
		}
	}
	return string(id)
}

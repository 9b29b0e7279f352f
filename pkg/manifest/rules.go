package manifest

import "slices"

// RuleID names one rule that configuration files are checked against. It is
// stable and appears in validation_errors.
type RuleID string

// The rules about files.
const (
	RuleFileMissing  RuleID = "file.missing"
	RuleFileKind     RuleID = "file.kind"
	RuleFileSize     RuleID = "file.size"
	RuleFileCount    RuleID = "file.count"
	RuleFileEncoding RuleID = "file.encoding"
	RuleIncludeForm  RuleID = "include.form"
	RuleIncludePath  RuleID = "include.path"
	RuleIncludeCycle RuleID = "include.cycle"
)

// The rules about YAML.
const (
	RuleYAMLSyntax    RuleID = "yaml.syntax"
	RuleYAMLTab       RuleID = "yaml.tab"
	RuleYAMLDepth     RuleID = "yaml.depth"
	RuleYAMLSize      RuleID = "yaml.size"
	RuleYAMLAlias     RuleID = "yaml.alias"
	RuleYAMLTag       RuleID = "yaml.tag"
	RuleYAMLKey       RuleID = "yaml.key"
	RuleYAMLDuplicate RuleID = "yaml.duplicate"
	RuleYAMLDocuments RuleID = "yaml.documents"
)

// The rules about values.
const (
	RuleRequired        RuleID = "value.required"
	RuleType            RuleID = "value.type"
	RuleEnum            RuleID = "value.enum"
	RuleRange           RuleID = "value.range"
	RuleDuration        RuleID = "value.duration"
	RuleURL             RuleID = "value.url"
	RuleConflict        RuleID = "value.conflict"
	RuleRemoved         RuleID = "key.removed"
	RuleMisplaced       RuleID = "key.misplaced"
	RuleUnknownStrict   RuleID = "key.strict"
	RulePath            RuleID = "value.path"
	RuleGlob            RuleID = "value.glob"
	RuleEnvName         RuleID = "value.env_name"
	RuleTimezone        RuleID = "value.timezone"
	RuleClock           RuleID = "value.clock"
	RuleCron            RuleID = "value.cron"
	RuleCurrency        RuleID = "value.currency"
	RuleStore           RuleID = "value.store"
	RuleSum             RuleID = "value.sum"
	RulePlaceholder     RuleID = "placeholder.form"
	RulePlaceholderType RuleID = "placeholder.type"
)

// The rules about the formation.
const (
	RuleSchema          RuleID = "formation.schema"
	RuleFormationID     RuleID = "formation.id"
	RuleVersion         RuleID = "formation.version"
	RuleModelID         RuleID = "model.id"
	RuleModelLocal      RuleID = "model.local"
	RuleModelProvider   RuleID = "model.provider"
	RuleModelCapability RuleID = "model.capability"
	RuleModelAlias      RuleID = "model.alias"
	RuleAgentID         RuleID = "agent.id"
	RuleAgentDuplicate  RuleID = "agent.duplicate"
	RuleAgentMismatch   RuleID = "agent.mismatch"
	RuleAgentNone       RuleID = "agent.none"
)

// The rules about what refers to what.
const (
	RuleReference      RuleID = "name.unknown"
	RuleDuplicate      RuleID = "name.duplicate"
	RuleMismatch       RuleID = "name.mismatch"
	RuleNeeds          RuleID = "block.needs"
	RuleServerID       RuleID = "server.id"
	RuleGroupID        RuleID = "group.id"
	RuleGroupCycle     RuleID = "group.cycle"
	RuleGrant          RuleID = "group.grant"
	RuleSkillForm      RuleID = "skill.form"
	RuleTransformerURL RuleID = "transformer.url"
	RuleVariable       RuleID = "transformer.variable"
)

// The rules whose breach is a Warning. Those about triggers make a call of the
// trigger fail.
const (
	RuleUnlisted         RuleID = "file.unlisted"
	RuleShadowed         RuleID = "file.shadowed"
	RuleSkillFile        RuleID = "skill.file"
	RuleSkillDescription RuleID = "skill.description"
	RuleSkillName        RuleID = "skill.name"
	RuleSOPTwice         RuleID = "sop.twice"
	RuleSOPDescription   RuleID = "sop.description"
	RuleSOPReference     RuleID = "sop.reference"
	RuleTriggerName      RuleID = "trigger.name"
	RuleTriggerPath      RuleID = "trigger.path"
	RuleTriggerVariable  RuleID = "trigger.variable"
	RuleKnowledgePath    RuleID = "knowledge.path"
	RuleCommandAlias     RuleID = "command.alias"
	RuleUnpriced         RuleID = "budget.unpriced"
)

// The older rules whose breach is a Warning.
const (
	RuleUnknownKey    RuleID = "key.unknown"
	RuleNoEffect      RuleID = "key.no_effect"
	RuleAgentName     RuleID = "agent.name"
	RuleNoModel       RuleID = "model.none"
	RuleSecretLiteral RuleID = "secret.literal"
	RuleSecretPrompt  RuleID = "secret.prompt"
	RuleSoulEmpty     RuleID = "soul.empty"
	RuleDistillery    RuleID = "distillery.log"
)

// Rule is one rule with its meaning for people.
type Rule struct {
	ID      RuleID
	Meaning string
	Warns   bool // a breach is a Warning, not a Fault
}

// Rules returns every rule, so that a test can hold a case against each.
func Rules() []Rule {
	return slices.Concat(fileRules(), valueRules(), formationRules(), warningRules())
}

// fileRules are the rules about files and YAML.
func fileRules() []Rule {
	return []Rule{
		{ID: RuleFileMissing, Meaning: "the manifest and every file it names exist"},
		{ID: RuleFileKind, Meaning: "files are regular files inside the bundle"},
		{ID: RuleFileSize, Meaning: "a file has at most 1 MiB"},
		{ID: RuleFileCount, Meaning: "a formation reads at most 2000 files"},
		{ID: RuleFileEncoding, Meaning: "files are UTF-8 text without control characters"},
		{ID: RuleIncludeForm, Meaning: "$include stands alone and holds a path"},
		{ID: RuleIncludePath, Meaning: "an included path stays inside the bundle"},
		{ID: RuleIncludeCycle, Meaning: "files do not include each other in a circle"},
		{ID: RuleYAMLSyntax, Meaning: "files are well-formed YAML"},
		{ID: RuleYAMLTab, Meaning: "indentation uses spaces"},
		{ID: RuleYAMLDepth, Meaning: "values nest at most 64 deep"},
		{ID: RuleYAMLSize, Meaning: "a file, its aliases expanded, stays within the parser's limits"},
		{ID: RuleYAMLAlias, Meaning: "an alias refers to an anchor before it"},
		{ID: RuleYAMLTag, Meaning: "no tags besides !!str"},
		{ID: RuleYAMLKey, Meaning: "keys are plain text"},
		{ID: RuleYAMLDuplicate, Meaning: "a key stands once in its block"},
		{ID: RuleYAMLDocuments, Meaning: "a file holds one document"},
	}
}

// valueRules are the rules about values.
func valueRules() []Rule {
	return []Rule{
		{ID: RuleRequired, Meaning: "required keys have a value"},
		{ID: RuleType, Meaning: "a value has the type of its key"},
		{ID: RuleEnum, Meaning: "a value is one of the words of its key"},
		{ID: RuleRange, Meaning: "a number is within the range of its key"},
		{ID: RuleDuration, Meaning: "a duration is like 500ms, 90s, 15m, 2h or a number of seconds"},
		{ID: RuleURL, Meaning: "an address is an absolute http or https URL"},
		{ID: RuleConflict, Meaning: "one thing is set under one of its names"},
		{ID: RuleRemoved, Meaning: "removed keys are not used"},
		{ID: RuleMisplaced, Meaning: "a key stands where it has a meaning"},
		{ID: RuleUnknownStrict, Meaning: "keys of retry_async, replanning, decay, compaction, pruning, index and lint are known"},
		{ID: RulePath, Meaning: "a path stays inside the formation"},
		{ID: RuleGlob, Meaning: "a glob is a name with * and ?"},
		{ID: RuleEnvName, Meaning: "a variable's name has letters, digits and _"},
		{ID: RuleTimezone, Meaning: "a time zone is named like Europe/Berlin"},
		{ID: RuleClock, Meaning: "a time of day is like 09:00"},
		{ID: RuleCron, Meaning: "a schedule is a cron expression or @hourly, @daily, @weekly, @startup"},
		{ID: RuleCurrency, Meaning: "a currency is a code of three capitals"},
		{ID: RuleStore, Meaning: "a database is PostgreSQL or SQLite"},
		{ID: RuleSum, Meaning: "weights make 1 together"},
		{ID: RulePlaceholder, Meaning: "a placeholder is ${{ secrets.NAME }}, ${{ env.NAME }} or ${{ user.credentials.NAME }}"},
		{ID: RulePlaceholderType, Meaning: "placeholders stand in text values only"},
	}
}

// formationRules are the rules about models, agents and what refers to what.
func formationRules() []Rule {
	return []Rule{
		{ID: RuleSchema, Meaning: `schema is the text "1.0.0"`},
		{ID: RuleFormationID, Meaning: "a formation id has 3-50 of a-z, 0-9 and -, and is not reserved"},
		{ID: RuleVersion, Meaning: "a version has at most 64 letters, digits and . + - _"},
		{ID: RuleModelID, Meaning: `a model is "provider/model" or an alias`},
		{ID: RuleModelLocal, Meaning: "a local model is named local/owner/name and only embeds"},
		{ID: RuleModelProvider, Meaning: "a provider is known or has an endpoint"},
		{ID: RuleModelCapability, Meaning: "a models item has exactly one capability, each capability stands once"},
		{ID: RuleModelAlias, Meaning: "an alias is no capability and names a model"},
		{ID: RuleAgentID, Meaning: "an agent id has at most 64 letters, digits and . _ -"},
		{ID: RuleAgentDuplicate, Meaning: "agent ids are unique"},
		{ID: RuleAgentMismatch, Meaning: "an agent file has the id it is listed under"},
		{ID: RuleAgentNone, Meaning: "at least one agent is active"},
		{ID: RuleReference, Meaning: "a name refers to something that is there"},
		{ID: RuleDuplicate, Meaning: "something is listed once"},
		{ID: RuleMismatch, Meaning: "a file has the name that it is listed or found under"},
		{ID: RuleNeeds, Meaning: "a block has the other blocks that it needs"},
		{ID: RuleServerID, Meaning: "the id of a tool server or service has at most 64 letters, digits and . _ -"},
		{ID: RuleGroupID, Meaning: "the id of a group has at most 64 letters, digits and . _ -"},
		{ID: RuleGroupCycle, Meaning: "groups do not inherit from each other in a circle"},
		{ID: RuleGrant, Meaning: "memory.write names formation or group:<id>"},
		{ID: RuleSkillForm, Meaning: "the name of a skill has a-z, 0-9 and -"},
		{ID: RuleTransformerURL, Meaning: "what a transformer delivers has an address"},
		{ID: RuleVariable, Meaning: "a transformer uses the variables there are"},
	}
}

// warningRules are the rules about what is only told.
func warningRules() []Rule {
	return []Rule{
		{ID: RuleUnlisted, Meaning: "files of agents, tool servers and services are listed", Warns: true},
		{ID: RuleShadowed, Meaning: "a file is not hidden by one of another ending", Warns: true},
		{ID: RuleSkillFile, Meaning: "the directory of a skill has a SKILL.md", Warns: true},
		{ID: RuleSkillDescription, Meaning: "a skill has a description", Warns: true},
		{ID: RuleSkillName, Meaning: "a skill is called like its directory", Warns: true},
		{ID: RuleSOPTwice, Meaning: "a procedure's file name stands once below sops", Warns: true},
		{ID: RuleSOPDescription, Meaning: "a procedure has a description", Warns: true},
		{ID: RuleSOPReference, Meaning: "the directives of a procedure refer to something that is there", Warns: true},
		{ID: RuleTriggerName, Meaning: "a trigger's file name has letters, digits, _ and -", Warns: true},
		{ID: RuleTriggerPath, Meaning: "parse holds paths into the payload", Warns: true},
		{ID: RuleTriggerVariable, Meaning: "a trigger's variables are ${{ data.<path> }}", Warns: true},
		{ID: RuleKnowledgePath, Meaning: "a path of knowledge is there", Warns: true},
		{ID: RuleCommandAlias, Meaning: "an alias names a command or a procedure", Warns: true},
		{ID: RuleUnpriced, Meaning: "a budget of money has prices", Warns: true},
		{ID: RuleUnknownKey, Meaning: "keys are known", Warns: true},
		{ID: RuleNoEffect, Meaning: "keys have an effect in this release; these have none yet: " + laterText(), Warns: true},
		{ID: RuleAgentName, Meaning: "an agent has a name", Warns: true},
		{ID: RuleNoModel, Meaning: "every agent has a text model", Warns: true},
		{ID: RuleSecretLiteral, Meaning: "keys are given as placeholders", Warns: true},
		{ID: RuleSecretPrompt, Meaning: "secrets stay out of texts that a model reads", Warns: true},
		{ID: RuleDistillery, Meaning: "a distillery has long-term memory to write to", Warns: true},
		{ID: RuleSoulEmpty, Meaning: "a soul file has text", Warns: true},
	}
}

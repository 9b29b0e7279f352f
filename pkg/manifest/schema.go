package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentformation/service/pkg/fault"
)

// The kinds of files that have a JSON Schema. Skills, procedures and triggers
// have one for their front matter.
const (
	FileFormation   = "formation"
	FileAgent       = "agent"
	FileMCP         = "mcp"
	FileA2A         = "a2a"
	FileSkill       = "skill"
	FileSOP         = "sop"
	FileTrigger     = "trigger"
	FileTransformer = "transformer"
	FileGroup       = "group"
	FileExamples    = "routing" // routing/examples.yaml
)

// Schemas returns the kinds that Schema knows.
func Schemas() []string {
	return []string{
		FileFormation, FileAgent, FileMCP, FileA2A, FileSkill, FileSOP, FileTrigger, FileTransformer, FileGroup, FileExamples,
	}
}

// Schema returns the JSON Schema (draft 2020-12) of a kind of file, indented.
// It is written by the same calls that read such a file. It refuses what Load
// refuses for its shape, and unknown keys inside blocks; what refers to other
// files or blocks only Load can check. An unknown kind is fault.NotFound.
func Schema(kind string) ([]byte, error) {
	if !slices.Contains(Schemas(), kind) {
		return nil, fault.Errorf(fault.NotFound, "", "there is no schema of %q (one of %s)", kind, strings.Join(Schemas(), ", "))
	}
	s := schemaOf(kind)
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID = "urn:formation:" + SchemaVersion + ":" + kind
	s.Title = kind + " file"
	if len(s.Types) == 0 {
		s.Type = "object"
	}
	includes(s, map[*jsonschema.Schema]bool{})
	s.Defs = share(s)
	walk(s, "", func(s *jsonschema.Schema, _ string) *jsonschema.Schema {
		if len(s.Types) == 1 {
			s.Type, s.Types = s.Types[0], nil
		}
		return s
	})
	s.Defs["include"] = &jsonschema.Schema{
		Type: "object", Required: []string{"$include"}, Properties: map[string]*jsonschema.Schema{"$include": includePath()},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema of %s files: %w", kind, err)
	}
	return append(data, '\n'), nil
}

// schemaOf lets the readers of a kind note what they take.
func schemaOf(kind string) *jsonschema.Schema {
	f := defaults()
	d := &decoder{llm: &f.LLM}
	o := &object{d: d, schema: &jsonschema.Schema{}}
	switch kind {
	case FileFormation:
		d.formationSchema(o, &f)
	case FileAgent:
		d.agentKeys(o, &Agent{Buffer: f.Memory.Buffer, Active: true}, agentPlace{formation: &f})
	case FileMCP:
		d.mcpServer(o, &f.MCP, false)
	case FileA2A:
		d.a2aService(o, &f.A2A.Outbound, "stem")
	case FileSkill:
		d.skill(o, &Skill{})
	case FileSOP:
		o.require("type", "type: sop")
		d.sop(o, &SOP{Mode: SOPGuide, BypassApproval: true, Synthesis: true})
	case FileTrigger:
		d.trigger(o, &Trigger{})
	case FileTransformer:
		d.transformer(o, &Transformer{Method: "POST", Suffix: "..."})
	case FileGroup:
		d.group(o, &Group{}, new(string))
	case FileExamples:
		d.examples(&slot{d: d, schema: o.schema}, nil)
		o.schema.Types = []string{"array"}
	}
	return o.schema
}

// formationSchema adds to the manifest's blocks what is read with its files.
func (d *decoder) formationSchema(o *object, f *Formation) {
	d.formation(o, f)
	o.require("agents", "")
	agents := o.slot("agents")
	agents.list(func(_ int, item *slot) {
		item.text("the id of an agent")
		d.agentKeys(item.block(), &Agent{Buffer: f.Memory.Buffer, Active: true}, agentPlace{inline: true, formation: f})
	})
	l := &loader{d: d, f: f, b: newBundle(nil)}
	l.mcpServers(o)
	l.a2aServices(o)
	o.finish()
}

func includePath() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Description: "A file whose content stands here, relative to this file."}
}

// includes lets {$include: path} stand for every block and list below s.
func includes(s *jsonschema.Schema, done map[*jsonschema.Schema]bool) {
	if s == nil || done[s] {
		return
	}
	done[s] = true
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		s.Properties[key] = included(s.Properties[key], done)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not == nil {
		s.AdditionalProperties = included(s.AdditionalProperties, done)
	}
	if s.Items != nil {
		s.Items = included(s.Items, done)
	}
	for _, part := range slices.Concat(s.OneOf, s.AnyOf) {
		if part.Properties != nil {
			includes(part, done)
		}
	}
}

// included returns s, or s or an include when s is a block or a list.
func included(s *jsonschema.Schema, done map[*jsonschema.Schema]bool) *jsonschema.Schema {
	includes(s, done)
	if !slices.Contains(s.Types, "object") && !slices.Contains(s.Types, "array") {
		return s
	}
	return &jsonschema.Schema{
		Description: s.Description, Default: s.Default,
		AnyOf: []*jsonschema.Schema{s, {Ref: "#/$defs/include"}},
	}
}

// share moves what is written more than once below root to definitions, named
// by their keys, and returns these.
func share(root *jsonschema.Schema) map[string]*jsonschema.Schema {
	in := interned{ids: map[*jsonschema.Schema]int{}, known: map[string]int{}}
	in.add(root)
	defs, names := map[string]*jsonschema.Schema{}, map[int]string{}
	walk(root, "", func(s *jsonschema.Schema, key string) *jsonschema.Schema {
		id, ok := in.ids[s]
		if !ok || s == root || in.uses[id] < 2 || in.sizes[id] < 300 {
			return s
		}
		if names[id] == "" {
			name := key
			for n := 2; defs[name] != nil || name == "include"; n++ {
				name = fmt.Sprintf("%s_%d", key, n)
			}
			names[id], defs[name] = name, s
		}
		return &jsonschema.Schema{Ref: "#/$defs/" + names[id]}
	})
	return defs
}

// interned gives schemas with the same text the same number.
type interned struct {
	ids   map[*jsonschema.Schema]int
	known map[string]int // by the text with inner schemas as numbers
	uses  []int          // how often a number stands in another one
	sizes []int          // bytes of the whole text
}

func (in *interned) add(s *jsonschema.Schema) int {
	flat, size := *s, 0
	var inner []int
	number := func(child *jsonschema.Schema) *jsonschema.Schema {
		id := in.add(child)
		inner = append(inner, id)
		size += in.sizes[id]
		return &jsonschema.Schema{Ref: fmt.Sprint(id)}
	}
	if s.Properties != nil {
		flat.Properties = make(map[string]*jsonschema.Schema, len(s.Properties))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		flat.Properties[name] = number(s.Properties[name])
	}
	if s.AdditionalProperties != nil {
		flat.AdditionalProperties = number(s.AdditionalProperties)
	}
	if s.Items != nil {
		flat.Items = number(s.Items)
	}
	flat.OneOf, flat.AnyOf = slices.Clone(s.OneOf), slices.Clone(s.AnyOf)
	for _, list := range [][]*jsonschema.Schema{flat.OneOf, flat.AnyOf} {
		for i := range list {
			list[i] = number(list[i])
		}
	}
	text, err := json.Marshal(&flat)
	if err != nil {
		text = fmt.Append(nil, len(in.uses)) // shared with nothing; writing it tells why
	}
	id, ok := in.known[string(text)]
	if !ok {
		id = len(in.uses)
		in.known[string(text)] = id
		in.uses, in.sizes = append(in.uses, 0), append(in.sizes, size+len(text))
		for _, child := range inner {
			in.uses[child]++
		}
	}
	in.ids[s] = id
	return id
}

// walk replaces each schema below s, inner ones first, by what visit returns
// for it; key is the nearest key above it.
func walk(s *jsonschema.Schema, key string, visit func(s *jsonschema.Schema, key string) *jsonschema.Schema) *jsonschema.Schema {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		s.Properties[name] = walk(s.Properties[name], name, visit)
	}
	if s.AdditionalProperties != nil {
		s.AdditionalProperties = walk(s.AdditionalProperties, key+"_entry", visit)
	}
	if s.Items != nil {
		s.Items = walk(s.Items, key+"_item", visit)
	}
	for _, list := range [][]*jsonschema.Schema{s.OneOf, s.AnyOf} {
		for i := range list {
			list[i] = walk(list[i], key, visit)
		}
	}
	return visit(s, key)
}

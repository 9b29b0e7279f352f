package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

func compileSchemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	out := map[string]*jsonschema.Schema{}
	for _, kind := range manifest.Schemas() {
		data, err := manifest.Schema(kind)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(kind, doc); err != nil {
			t.Fatal(err)
		}
		if out[kind], err = c.Compile(kind); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	return out
}

// kindOf returns the kind of schema that a file of a bundle has, or "".
func kindOf(name string) string {
	dir, base := path.Split(name)
	switch {
	case dir == "" && strings.HasPrefix(base, "formation."):
		return manifest.FileFormation
	case path.Ext(base) == ".md":
		switch {
		case base == "SKILL.md":
			return manifest.FileSkill
		case strings.HasPrefix(dir, "sops/"):
			return manifest.FileSOP
		case dir == "triggers/":
			return manifest.FileTrigger
		}
		return ""
	}
	return map[string]string{
		"agents/": manifest.FileAgent, "mcp/": manifest.FileMCP, "mcps/": manifest.FileMCP, "a2a/": manifest.FileA2A,
		"transformers/": manifest.FileTransformer, "groups/": manifest.FileGroup, "routing/": manifest.FileExamples,
	}[dir]
}

// value reads a file the way any YAML tool would; false when it can't be read
// or is no file of its kind.
func value(kind string, data []byte) (any, bool) {
	if slices.Contains([]string{manifest.FileSkill, manifest.FileSOP, manifest.FileTrigger}, kind) {
		rest, ok := strings.CutPrefix(string(data), "---\n")
		front, _, closed := strings.Cut(rest, "\n---")
		if !ok || !closed {
			return nil, false
		}
		data = []byte(front)
	}
	var v any
	if err := yaml.Unmarshal(data, &v); err != nil || v == nil {
		return nil, false
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	m, isMap := plain.(map[string]any)
	if kind == manifest.FileSOP && (!isMap || m["type"] != "sop") {
		return nil, false
	}
	return plain, err == nil
}

// shaped tells whether a schema can show the breach of a rule.
func shaped(f manifest.Fault) bool {
	return slices.Contains([]manifest.RuleID{
		manifest.RuleType, manifest.RuleEnum, manifest.RuleRequired, manifest.RuleUnknownStrict, manifest.RuleRemoved,
		manifest.RuleSchema, manifest.RuleFormationID, manifest.RuleVersion, manifest.RuleDuration, manifest.RuleMisplaced,
		manifest.RuleClock, manifest.RuleCurrency, manifest.RuleSkillDescription, manifest.RuleModelCapability,
		manifest.RuleUnknownKey, manifest.RuleTriggerPath, manifest.RuleRange, manifest.RuleURL, manifest.RulePlaceholderType,
		manifest.RuleGrant, manifest.RuleSkillForm, manifest.RuleAgentID,
	}, f.Rule)
}

// Cases that a schema would have to compare two values for, or to know more
// than shapes.
func beyondShapes(name string) bool {
	return slices.Contains([]string{
		"broken/agent/knowledge-auth.txtar",        // one key or two others
		"broken/agent/knowledge-tree-of-url.txtar", // one value forbids another
		"broken/llm/model-twice.txtar",             // two items of one kind
		"broken/skill/directory-name.txtar",        // the name of the directory
		"broken/blocks/rce-timeout.txtar",          // a length written as text
		"broken/agent/knowledge-overlap.txtar",     // from here on one number bounds another
		"broken/agent/timeout-order.txtar",
		"broken/llm/documents-overlap.txtar",
		"broken/memory/ingestion-thresholds.txtar",
		"broken/overlord/workflow-max-below-default.txtar",
		"broken/overlord/workflow-retry-delays.txtar",
		"broken/overlord/workflow-timeout-above-max.txtar",
		"broken/transformer/suffix.txtar",
	}, name)
}

// TestSchema_AgreesWithLoad holds every file of the corpus against both: what
// Load finds nothing wrong with, the schema accepts; what Load refuses for its
// shape, the schema refuses.
func TestSchema_AgreesWithLoad(t *testing.T) {
	t.Parallel()
	schemas := compileSchemas(t)
	checked := map[string]int{}
	for _, kind := range []string{"valid", "broken"} {
		for _, file := range goldenFiles(t, kind) {
			name := filepath.ToSlash(strings.TrimPrefix(file, corpus+string(filepath.Separator)))
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir, _ := unpack(t, ar)
			faults, ignored := byFile(t, dir)
			for _, f := range ar.Files {
				v, ok := value(kindOf(f.Name), f.Data)
				if kindOf(f.Name) == "" || !ok || ignored[f.Name] {
					continue
				}
				checked[kindOf(f.Name)]++
				err := schemas[kindOf(f.Name)].Validate(v)
				wrong := slices.IndexFunc(faults[f.Name], shaped)
				switch {
				case err != nil && len(faults[f.Name]) == 0:
					t.Errorf("%s: %s: Load accepts what the schema refuses: %v", name, f.Name, err)
				case err == nil && wrong >= 0 && !beyondShapes(name):
					t.Errorf("%s: the schema accepts: %v [%s]", name, faults[f.Name][wrong], faults[f.Name][wrong].Rule)
				}
			}
		}
	}
	for _, kind := range manifest.Schemas() {
		if checked[kind] < 4 {
			t.Errorf("only %d files of kind %s", checked[kind], kind)
		}
	}
}

// byFile returns what Load finds wrong in each file, unknown keys included,
// and the files that it does not read.
func byFile(t *testing.T, dir string) (faults map[string][]manifest.Fault, ignored map[string]bool) {
	t.Helper()
	faults, ignored = map[string][]manifest.Fault{}, map[string]bool{}
	for _, name := range []string{"formation.afs", "formation.yaml", "formation.yml"} {
		at, err := manifest.Find(dir)
		ignored[name] = err == nil && filepath.Base(at) != name
	}
	_, warnings, err := manifest.Load(dir)
	if list, ok := errors.AsType[*manifest.Faults](err); ok {
		for _, f := range *list {
			faults[f.File] = append(faults[f.File], f)
		}
	}
	for _, w := range warnings {
		f := manifest.Fault(w)
		switch atTop := !strings.Contains(f.Key, ".") && strings.HasPrefix(f.File, "formation."); {
		case w.Rule == manifest.RuleUnlisted, w.Rule == manifest.RuleShadowed, w.Rule == manifest.RuleSOPTwice, w.Rule == manifest.RuleTriggerName:
			ignored[f.File] = true
		case shaped(f) && !atTop, strings.HasPrefix(f.File, "triggers/"):
			faults[f.File] = append(faults[f.File], f)
		}
	}
	return faults, ignored
}

// Two writings are one text, and an editor learns bounds, defaults and words.
func TestSchema_TellsWhatTheReaderKnows(t *testing.T) {
	t.Parallel()
	for _, kind := range manifest.Schemas() {
		one, err := manifest.Schema(kind)
		two, again := manifest.Schema(kind)
		if err != nil || again != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: two writings differ, errors %v, %v", kind, err, again)
		}
	}
	data, err := manifest.Schema(manifest.FileFormation)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Required   []string
		Properties struct {
			Server struct {
				AnyOf []struct{ Properties struct{ Port map[string]any } }
			}
			Async struct {
				AnyOf []struct {
					Properties struct {
						Mode      map[string]any
						Threshold map[string]any `json:"threshold_seconds"`
					}
				}
			}
		}
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"schema", "id", "description", "agents"}, s.Required); diff != "" {
		t.Errorf("required keys (-want +got):\n%s", diff)
	}
	port, async := s.Properties.Server.AnyOf[0].Properties.Port, s.Properties.Async.AnyOf[0].Properties
	if port["default"] != 8271.0 || port["minimum"] != 1.0 || port["maximum"] != 65535.0 {
		t.Errorf("server.port is %v", port)
	}
	if diff := cmp.Diff([]any{"auto", "sync", "async", nil}, async.Mode["enum"]); diff != "" {
		t.Errorf("async.mode (-want +got):\n%s", diff)
	}
	if async.Threshold["default"] != 30.0 {
		t.Errorf("async.threshold_seconds is %v", async.Threshold)
	}
}

func TestSchema_KnowsItsKinds(t *testing.T) {
	t.Parallel()
	if _, err := manifest.Schema("agents"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an unknown kind: %v", err)
	}
}

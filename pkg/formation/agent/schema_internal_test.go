package agent

import (
	"encoding/json"
	"testing"
)

var schemaTexts = map[string]struct {
	schema  string
	checked bool
}{
	"a tree":                {`{"properties":{"children":{"items":{"$ref":"#"}},"name":{"type":"string"}}}`, true},
	"a definition":          {`{"properties":{"a":{"$ref":"#/$defs/x~1y"}},"$defs":{"x/y":{"type":"string"}}}`, true},
	"used twice":            {`{"allOf":[{"$ref":"#/$defs/x"},{"$ref":"#/$defs/x"}],"$defs":{"x":{"type":"object"}}}`, true},
	"a property named $ref": {`{"properties":{"$ref":{"type":"string"},"$id":{"type":"string"}}}`, true},
	"an older draft":        {`{"$schema":"http://json-schema.org/draft-04/schema#","definitions":{"a":{}},"properties":{"a":{"$ref":"#/definitions/a"}}}`, true},
	"itself":                {`{"$ref":"#"}`, false},
	"itself, capitals":      {`{"$REF":"#"}`, false},
	"through all":           {`{"allOf":[{"$ref":"#"}]}`, false},
	"through any, capitals": {`{"AnyOf":[{"Not":{"$ref":"#"}}]}`, false},
	"each other":            {`{"properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"$ref":"#/$defs/c"},"c":{"if":{"$ref":"#/$defs/b"}}}}`, false},
	"escaped":               {`{"properties":{"a":{"$ref":"#/%24defs/b"}},"$defs":{"b":{"oneOf":[{"$ref":"#/$defs/b"}]}}}`, false},
	"dependent":             {`{"dependentSchemas":{"a":{"$ref":"#"}}}`, false},
	"an older dependent":    {`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":{"$ref":"#"}}}`, false},
	"by name":               {`{"$anchor":"me","allOf":[{"$ref":"#me"}]}`, false},
	"by its address":        {`{"$id":"https://example.com/a","allOf":[{"$ref":"https://example.com/a"}]}`, false},
	"in a part of its own":  {`{"properties":{"a":{"$id":"https://example.com/a","allOf":[{"$ref":"#"}]}}}`, false},
	"dynamic":               {`{"$dynamicAnchor":"me","allOf":[{"$dynamicRef":"#me"}]}`, false},
	"nowhere":               {`{"$ref":"#/$defs/none"}`, false},
	"none":                  {`{"type":7}`, false},
	"no JSON":               {`{`, false},
}

func TestNewShape_LeavesSchemasThatNeverEndToTheTool(t *testing.T) {
	t.Parallel()
	for name, tc := range schemaTexts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShape(tc.schema)
			if (s != nil) != tc.checked {
				t.Fatalf("checked %v", s != nil)
			}
			if s != nil {
				s.faults(map[string]any{"a": map[string]any{"a": "b"}, "children": []any{map[string]any{"name": 1}}})
			}
		})
	}
}

// FuzzSchema: whatever a tool server calls a schema, checking comes to an end,
// and what is wrong is told in few words.
func FuzzSchema(f *testing.F) {
	for _, tc := range schemaTexts {
		f.Add(tc.schema, `{"a":{"a":1},"children":[{"name":1}]}`)
	}
	f.Fuzz(func(t *testing.T, schema, args string) {
		var value map[string]any
		if json.Unmarshal([]byte(args), &value) != nil {
			return
		}
		var s schemas
		if wrong := s.check(json.RawMessage(schema), value); len(wrong) > (maxFaults+1)*(maxFaultText+len("…\n")) {
			t.Errorf("%d bytes: %.100s", len(wrong), wrong)
		}
	})
}

package manifest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// read is what a reader found: no value when the key is absent or wrong, so
// that the default stays. While a schema is made it carries that of the key.
type read[T any] struct {
	v      *T
	schema *jsonschema.Schema
	unit   time.Duration // of a bare number, for durations
}

// set stores what was found. While a schema is made, what dst holds is the
// default.
func set[T any](dst *T, r read[T]) {
	if r.v != nil {
		*dst = *r.v
	}
	if r.schema == nil {
		return
	}
	var plain any = *dst
	switch v := plain.(type) {
	case time.Duration:
		plain = float64(v) / float64(r.unit)
	case string:
		if v == "" {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	}
	if data, err := json.Marshal(plain); err == nil {
		r.schema.Default = data
	}
}

// note returns the schema of key and makes it when there is none, with types
// and null, which stands for an absent key. Without a schema to write it
// returns nil.
func (o *object) note(key string, types ...string) *jsonschema.Schema {
	if o.schema == nil {
		return nil
	}
	s := o.schema.Properties[key]
	if s == nil {
		s = &jsonschema.Schema{}
		if o.schema.Properties == nil {
			o.schema.Properties = map[string]*jsonschema.Schema{}
		}
		o.schema.Properties[key] = s
		o.schema.PropertyOrder = append(o.schema.PropertyOrder, key)
	}
	if len(types) > 0 {
		s.Types = append(slices.Clone(types), "null")
	}
	return s
}

// sameAs notes that key may also be written as other; close copies its schema.
func (o *object) sameAs(key, other string) {
	if o.schema == nil {
		return
	}
	if o.schema.Extra == nil {
		o.schema.Extra = map[string]any{}
	}
	o.schema.Extra[other] = key
}

// close finishes the schema of a block whose keys are all known.
func (o *object) close() {
	if o.schema == nil {
		return
	}
	o.finish()
	o.schema.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
}

// finish resolves what the readers only remarked: other names of keys, and
// required keys, which can't be empty.
func (o *object) finish() {
	s := o.schema
	for _, other := range slices.Sorted(maps.Keys(s.Extra)) {
		name, _ := s.Extra[other].(string)
		if from := s.Properties[name]; from != nil {
			copied := *from
			copied.Description = strings.TrimSpace("Another name of " + name + ". " + from.Description)
			*o.note(other) = copied
		}
	}
	s.Extra = nil
	for _, key := range s.Required {
		if p := s.Properties[key]; p != nil {
			filled(p)
		}
	}
}

// filled changes the schema of a value so that it refuses an empty one.
func filled(p *jsonschema.Schema) {
	p.Types = slices.DeleteFunc(p.Types, func(t string) bool { return t == "null" })
	one := 1
	if slices.Contains(p.Types, "string") && p.Pattern == "" && p.Enum == nil {
		p.Pattern = `\S`
	}
	if slices.Contains(p.Types, "array") {
		p.MinItems = &one
	}
	if slices.Contains(p.Types, "object") {
		p.MinProperties = &one
	}
	p.Enum = slices.DeleteFunc(p.Enum, func(v any) bool { return v == nil })
}

// either notes that one of keys is there.
func (o *object) either(keys ...string) {
	if o.schema == nil {
		return
	}
	for _, key := range keys {
		o.schema.AnyOf = append(o.schema.AnyOf, &jsonschema.Schema{Required: []string{key}})
	}
}

// exactly notes that one of keys is there, and no other.
func (o *object) exactly(keys ...string) {
	if o.schema == nil {
		return
	}
	for _, key := range keys {
		o.schema.OneOf = append(o.schema.OneOf, &jsonschema.Schema{Required: []string{key}})
	}
}

// when notes what a word under key asks for and what it forbids.
func (o *object) when(key, word string, required, forbidden []string) {
	if o.schema == nil || len(required)+len(forbidden) == 0 {
		return
	}
	var is any = word
	then := &jsonschema.Schema{Required: required}
	for _, name := range forbidden {
		if then.Properties == nil {
			then.Properties = map[string]*jsonschema.Schema{}
		}
		then.Properties[name] = &jsonschema.Schema{Type: "null"}
	}
	o.schema.AllOf = append(o.schema.AllOf, &jsonschema.Schema{
		If:   &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{key: {Const: &is}}, Required: []string{key}},
		Then: then,
	})
}

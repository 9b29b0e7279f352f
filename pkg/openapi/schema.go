package openapi

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Described is a type that says itself how its JSON looks.
type Described interface{ JSONSchema() map[string]any }

// schemas makes JSON Schemas of Go types. A named struct gets a place of its own
// in the document and is referred to.
type schemas struct {
	named map[string]any
	// input describes what is read instead of what is written, see Input.
	input bool
	open  map[reflect.Type]bool // of input: the structs around
}

// Input is the schema of what a caller sends for value: nothing is required but
// the fields with a tag `bind:"required"` or `required:"true"`, an absent one is
// never null, and structs stand in their place, so that it needs nothing else.
func Input(value any) map[string]any {
	return schemas{input: true, open: make(map[reflect.Type]bool)}.of(value)
}

// Types whose JSON is not what their kind suggests.
var (
	timeType    = reflect.TypeFor[time.Time]()
	rawType     = reflect.TypeFor[json.RawMessage]()
	textType    = reflect.TypeFor[encoding.TextMarshaler]()
	marshalType = reflect.TypeFor[json.Marshaler]()
	ownType     = reflect.TypeFor[Described]()
)

func (s schemas) of(value any) object { return s.schema(reflect.TypeOf(value)) }

func (s schemas) schema(t reflect.Type) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t == rawType:
		return object{}
	case t.Kind() == reflect.Pointer && s.input:
		return s.schema(t.Elem())
	case t.Kind() == reflect.Pointer:
		return nullable(s.schema(t.Elem()))
	case t.Implements(ownType):
		return reflect.Zero(t).Interface().(Described).JSONSchema()
	case t.Implements(textType):
		return object{"type": "string"}
	case t.Implements(marshalType):
		return object{}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": s.schema(t.Elem())}
	case reflect.Array:
		return object{"type": "array", "items": s.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.schema(t.Elem())}
	case reflect.Struct:
		return s.structure(t)
	case reflect.Interface:
		return object{}
	default: // the integers; encoding/json refuses the rest
		return object{"type": "integer"}
	}
}

// nullable allows null beside what a schema allows.
func nullable(of object) object {
	if kind, ok := of["type"].(string); ok {
		of["type"] = []any{kind, "null"}
		return of
	}
	if len(of) == 0 {
		return of
	}
	return object{"anyOf": []any{of, object{"type": "null"}}}
}

// structure refers to a named struct, unless it is one of a generic type, whose
// name is no name in the document.
func (s schemas) structure(t reflect.Type) object {
	if s.input {
		if s.open[t] {
			return object{} // a type within itself has no end
		}
		s.open[t] = true
		defer delete(s.open, t)
		return s.properties(t)
	}
	name := t.Name()
	if name == "" || strings.Contains(name, "[") {
		return s.properties(t)
	}
	name = strings.ToUpper(name[:1]) + name[1:]
	if _, known := s.named[name]; !known {
		s.named[name] = nil // ends a recursion
		s.named[name] = s.properties(t)
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (s schemas) properties(t reflect.Type) object {
	p := properties{props: object{}, required: []string{}}
	s.fields(t, &p)
	out := object{"type": "object", "properties": p.props}
	if len(p.required) > 0 {
		out["required"] = p.required
	}
	return out
}

type properties struct {
	props    object
	required []string
}

// fields adds those of t; the ones of an embedded struct stand beside its own,
// which come first and win.
func (s schemas) fields(t reflect.Type, p *properties) {
	var embedded []reflect.Type
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "":
			embedded = append(embedded, f.Type)
			continue
		case name == "":
			name = f.Name
		}
		if _, taken := p.props[name]; taken {
			continue
		}
		s.field(f, name, options, p)
	}
	for _, e := range embedded {
		s.fields(e, p)
	}
}

// field adds one. The tag "enum" lists what a string may be, "about" says more.
func (s schemas) field(f reflect.StructField, name, options string, p *properties) {
	t, optional := f.Type, strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
	if optional && t.Kind() == reflect.Pointer {
		t = t.Elem() // it is left out instead of null
	}
	schema := s.schema(t)
	if words := f.Tag.Get("enum"); words != "" {
		schema["enum"] = strings.Split(words, ",")
	}
	if about := f.Tag.Get("about"); about != "" {
		schema["description"] = about
	}
	p.props[name] = schema
	if s.input {
		optional = f.Tag.Get("bind") != "required" && f.Tag.Get("required") != "true"
	}
	if !optional {
		p.required = append(p.required, name)
	}
}

package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// slot is a value that may be written in one of several shapes. Ask for each
// shape, then end: it reports a value that nobody took.
type slot struct {
	d      *decoder
	n      *node // nil when absent
	path   string
	schema *jsonschema.Schema
	shapes []string // asked for
	met    bool
}

// slot opens the value of key.
func (o *object) slot(key string) *slot {
	return &slot{d: o.d, n: o.take(key), path: o.key(key), schema: o.note(key)}
}

// ask notes a shape and tells whether the value has it.
func (s *slot) ask(kind kind, jsonType, what string) bool {
	s.shapes = append(s.shapes, what)
	if s.schema != nil && !slices.Contains(s.schema.Types, jsonType) {
		s.schema.Types = slices.DeleteFunc(s.schema.Types, func(t string) bool { return t == "null" })
		s.schema.Types = append(s.schema.Types, jsonType, "null")
	}
	if s.n == nil || s.met || s.n.kind != kind {
		return false
	}
	s.met = true
	return true
}

// text takes a text; what names it in the message, with its article.
func (s *slot) text(what string) (string, bool) {
	if s.ask(kindText, "string", what) {
		return s.n.text, true
	}
	return "", false
}

func (s *slot) boolean() (value, ok bool) {
	if s.ask(kindBool, "boolean", "true or false") {
		value, ok = s.n.value.(bool)
		return value, ok
	}
	return false, false
}

// off takes the word false, and no other truth.
func (s *slot) off() bool {
	if s.schema != nil {
		var on any = true
		s.schema.Not = &jsonschema.Schema{Const: &on}
	}
	if s.ask(kindBool, "boolean", "false") {
		if v, _ := s.n.value.(bool); !v {
			return true
		}
		s.met = false
	}
	return false
}

// number takes a number.
func (s *slot) number() (float64, bool) {
	if s.ask(kindInt, "number", "a number") || s.n != nil && !s.met && s.n.kind == kindFloat {
		s.met = true
		return s.n.float()
	}
	return 0, false
}

// block takes a block of keys; without one it returns nil.
func (s *slot) block() *object {
	if s.ask(kindMap, "object", "a block of keys") {
		return s.d.object(s.n, s.path)
	}
	if s.schema != nil {
		s.met = false
		return &object{d: s.d, path: s.path, schema: s.schema}
	}
	return nil
}

// list takes a list and hands its items to one. While a schema is made, one is
// asked once.
func (s *slot) list(one func(i int, item *slot)) bool {
	if s.ask(kindList, "array", "a list") {
		for i, item := range s.n.items {
			if item.kind != kindNull || !item.broken {
				one(i, &slot{d: s.d, n: item, path: fmt.Sprintf("%s[%d]", s.path, i)})
			}
		}
		return true
	}
	if s.schema != nil {
		s.schema.Items = &jsonschema.Schema{}
		one(0, &slot{d: s.d, path: s.path + "[]", schema: s.schema.Items})
		s.schema.Items.Types = slices.DeleteFunc(s.schema.Items.Types, func(t string) bool { return t == "null" })
	}
	return false
}

// end reports a value that has none of the shapes asked for.
func (s *slot) end() {
	if s.n == nil || s.met || s.n.broken {
		return
	}
	want := strings.Join(s.shapes, " or ")
	if n := len(s.shapes); n > 2 {
		want = strings.Join(s.shapes[:n-1], ", ") + " or " + s.shapes[n-1]
	}
	if s.n.kind == kindText && HasPlaceholder(s.n.text) {
		s.d.fault(s.n, s.path, RulePlaceholderType, "takes %s; placeholders work in text values only", want)
		return
	}
	got := s.n.kind.String()
	if s.n.kind == kindBool {
		got = s.n.text
	}
	s.d.fault(s.n, s.path, RuleType, "takes %s, not %s", want, got)
	if s.n.kind == kindText && slices.ContainsFunc(s.shapes, func(shape string) bool { return strings.Contains(shape, "false") }) {
		s.d.faults[len(s.d.faults)-1].Suggestion = unquoted(s.n, kindBool)
	}
}

// mustText takes a text and reports anything else.
func (s *slot) mustText() bool {
	if s.ask(kindText, "string", "text") {
		return true
	}
	if s.n != nil {
		s.d.typeFault(s.n, s.path, kindText)
		s.met = true
	}
	return false
}

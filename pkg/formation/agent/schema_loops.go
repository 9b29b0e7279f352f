package agent

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// ends tells that checking a value against a schema comes to an end. The library
// follows references that lead back without going into the value until the
// process dies, and schemas come from tool servers. References to anything but a
// place in the same document are not followed here and make the answer no.
func ends(schema *jsonschema.Schema) bool {
	// As the library understood it: it takes names of keywords in any case.
	text, err := json.Marshal(schema)
	if err != nil {
		return false
	}
	w := walk{state: make(map[string]visit)}
	if json.Unmarshal(text, &w.doc) != nil {
		return false
	}
	return w.known(w.doc, true) && w.everywhere("", w.doc)
}

type visit int8

const (
	open visit = iota + 1
	done
)

type walk struct {
	doc   any
	state map[string]visit // of the schemas of the document, by their JSON pointer
}

// known tells that all references of a document are pointers into it, and that
// no part of it has an address of its own.
func (w *walk) known(v any, root bool) bool {
	switch v := v.(type) {
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !w.known(item, false) })
	case map[string]any:
		for key, item := range v {
			text, isText := item.(string)
			switch {
			case isText && key == "$ref" && text != "#" && !strings.HasPrefix(text, "#/"),
				isText && key == "$dynamicRef", isText && key == "$id" && !root,
				!w.known(item, false):
				return false
			}
		}
	}
	return true
}

// everywhere looks at each object of the document: any may be a schema.
func (w *walk) everywhere(at string, v any) bool {
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			if !w.everywhere(at+"/"+strconv.Itoa(i), item) {
				return false
			}
		}
	case map[string]any:
		if !w.same(at, v) {
			return false
		}
		for key, item := range v {
			if !w.everywhere(at+"/"+escape(key), item) {
				return false
			}
		}
	}
	return true
}

// same follows what a schema says of the same value, not of parts of it; false
// when that leads back to where it is being followed from.
func (w *walk) same(at string, v any) bool {
	schema, ok := v.(map[string]any)
	if !ok || w.state[at] == done {
		return true
	}
	if w.state[at] == open {
		return false
	}
	w.state[at] = open
	for key, item := range schema {
		path := at + "/" + escape(key)
		switch key {
		case "not", "if", "then", "else":
			ok = w.same(path, item)
		case "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies":
			ok = w.children(path, item)
		case "$ref":
			if ref, isText := item.(string); isText {
				ok = w.refer(ref)
			}
		}
		if !ok {
			return false
		}
	}
	w.state[at] = done
	return true
}

func (w *walk) children(at string, v any) bool {
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			if !w.same(at+"/"+strconv.Itoa(i), item) {
				return false
			}
		}
	case map[string]any:
		for key, item := range v {
			if !w.same(at+"/"+escape(key), item) {
				return false
			}
		}
	}
	return true
}

// refer goes on where a reference leads. One that leads nowhere is left to the
// library, which does not take it.
func (w *walk) refer(ref string) bool {
	pointer, err := url.PathUnescape(strings.TrimPrefix(ref, "#"))
	if err != nil {
		return false
	}
	v, at := w.doc, ""
	for _, part := range strings.Split(pointer, "/")[1:] {
		part = unescape(part)
		at += "/" + escape(part)
		switch node := v.(type) {
		case map[string]any:
			v = node[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(node) {
				return true
			}
			v = node[i]
		default:
			return true
		}
	}
	return w.same(at, v)
}

func escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

func unescape(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
}

// Package openapi writes an OpenAPI 3.1 document from a table of routes whose
// bodies are described by Go values.
//
// It promises that a schema says what encoding/json writes for the type: names,
// nesting, what may be null or absent. The doors keep one table for both, their
// router and this package, so that the document lists what is served.
package openapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"unicode"
)

// Info heads the document.
type Info struct {
	Title, Version, Description string
}

// Security is a scheme by which calls are authorised, as OpenAPI writes it.
type Security struct {
	Name   string
	Scheme map[string]any
}

// API is what a document describes.
type API struct {
	Info     Info
	Security []Security
	Routes   []Route
}

// Route is one method on one path. Path parameters are written ":name", and a
// last "*" stands for the rest of the path.
type Route struct {
	Method, Path string
	Operation
}

// Operation says what a route does.
type Operation struct {
	Summary string
	Tag     string
	// Security are the names of schemes, any of which will do; none is public.
	Security []string
	Params   []Param // query and header
	Body     *Body
	Replies  []Reply
}

// Param is a parameter in the query or a header.
type Param struct {
	Name, In, About string // In is "query" or "header"
	Required        bool
	Value           any // of the parameter's type; nil is a string
}

// Body is what a request carries. Value of nil stands for bytes.
type Body struct {
	Types    []string
	Value    any
	Optional bool
	// Schema, when there is one, describes it instead of Value, as Input does.
	Schema map[string]any
}

// Reply is one answer. Value of nil stands for a body that is not JSON; an empty
// Type for no body at all. Several replies of one status are alternatives.
type Reply struct {
	Status int
	Type   string
	Value  any
	About  string
}

type object = map[string]any

// Document returns api as OpenAPI 3.1 in JSON.
func Document(api API) ([]byte, error) {
	s := schemas{named: make(map[string]any)}
	paths := make(map[string]object)
	for _, r := range api.Routes {
		path, params := pathOf(r.Path)
		item := paths[path]
		if item == nil {
			item = object{}
			if len(params) > 0 {
				item["parameters"] = params
			}
			paths[path] = item
		}
		item[strings.ToLower(r.Method)] = s.operation(r)
	}
	schemes := object{}
	for _, sec := range api.Security {
		schemes[sec.Name] = sec.Scheme
	}
	return json.MarshalIndent(object{
		"openapi":    "3.1.0",
		"info":       object{"title": api.Info.Title, "version": api.Info.Version, "description": api.Info.Description},
		"paths":      paths,
		"components": object{"schemas": s.named, "securitySchemes": schemes},
	}, "", " ")
}

// Template is how the document writes path: "/x/:id/*" is "/x/{id}/{path}".
func Template(path string) string {
	t, _ := pathOf(path)
	return t
}

// PathParams are the names of the parameters in path, in their order.
func PathParams(path string) []string {
	_, params := pathOf(path)
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.(object)["name"].(string)
	}
	return names
}

func pathOf(path string) (template string, params []any) {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		name, isParam := strings.CutPrefix(p, ":")
		if p == "*" {
			name, isParam = "path", true
		}
		if isParam {
			parts[i] = "{" + name + "}"
			params = append(params, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	return strings.Join(parts, "/"), params
}

func (s schemas) operation(r Route) object {
	op := object{"summary": r.Summary, "operationId": operationID(r), "responses": s.responses(r.Replies)}
	if r.Tag != "" {
		op["tags"] = []string{r.Tag}
	}
	security := []any{}
	for _, name := range r.Security {
		security = append(security, object{name: []string{}})
	}
	op["security"] = security
	if len(r.Params) > 0 {
		op["parameters"] = s.params(r.Params)
	}
	if r.Body != nil {
		content := object{}
		for _, t := range r.Body.Types {
			if content[t] = s.media(r.Body.Value); r.Body.Schema != nil {
				content[t] = object{"schema": r.Body.Schema}
			}
		}
		op["requestBody"] = object{"required": !r.Body.Optional, "content": content}
	}
	return op
}

func (s schemas) params(params []Param) []any {
	out := make([]any, 0, len(params))
	for _, p := range params {
		schema := any(object{"type": "string"})
		if p.Value != nil {
			schema = s.of(p.Value)
		}
		out = append(out, object{"name": p.Name, "in": p.In, "description": p.About, "required": p.Required, "schema": schema})
	}
	return out
}

// responses joins the replies of one status: their texts, and their schemas as
// alternatives where the media type is the same.
func (s schemas) responses(replies []Reply) object {
	out := object{}
	for _, r := range replies {
		key := strconv.Itoa(r.Status)
		entry, _ := out[key].(object)
		if entry == nil {
			entry = object{"description": r.About}
			if r.About == "" {
				entry["description"] = http.StatusText(r.Status)
			}
			out[key] = entry
		} else if r.About != "" {
			entry["description"] = entry["description"].(string) + "; " + r.About
		}
		if r.Type == "" {
			continue
		}
		content, _ := entry["content"].(object)
		if content == nil {
			content = object{}
			entry["content"] = content
		}
		content[r.Type] = joined(content[r.Type], s.media(r.Value))
	}
	return out
}

func joined(have any, media object) any {
	before, ok := have.(object)
	if !ok {
		return media
	}
	a, b := before["schema"].(object), media["schema"].(object)
	if sameSchema(a, b) {
		return before
	}
	if list, ok := a["anyOf"].([]any); ok {
		return object{"schema": object{"anyOf": append(list, b)}}
	}
	return object{"schema": object{"anyOf": []any{a, b}}}
}

// sameSchema compares by the text, which json writes with sorted keys.
func sameSchema(a, b object) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func (s schemas) media(value any) object {
	if value == nil {
		return object{"schema": object{"type": "string"}}
	}
	return object{"schema": s.of(value)}
}

// operationID names an operation by its method and path: postRpcFormations.
func operationID(r Route) string {
	var id strings.Builder
	id.WriteString(strings.ToLower(r.Method))
	for word := range strings.FieldsFuncSeq(r.Path, func(c rune) bool {
		return c != '*' && (c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c))
	}) {
		if word == "*" {
			word = "rest"
		}
		id.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return id.String()
}

package httpapi_test

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// apiDoc is the document of /docs, against which every answer is held.
type apiDoc map[string]any

func (d *door) document(t *testing.T) apiDoc {
	t.Helper()
	d.docOnce.Do(func() {
		res, err := d.client.Get(d.url + "/docs/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&d.doc); err != nil {
			t.Fatal(err)
		}
	})
	return d.doc
}

func at(v any, path ...string) any {
	if doc, ok := v.(apiDoc); ok {
		v = map[string]any(doc)
	}
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

// find returns the operation that answers a request, nil when there is none.
// Fixed segments win over parameters, as they do in the router.
func (doc apiDoc) find(method, path string) any {
	path, _, _ = strings.Cut(path, "?")
	best, fixed := any(nil), -1
	paths, _ := at(doc, "paths").(map[string]any)
	for template, item := range paths {
		if n, ok := matches(template, path); ok && n > fixed {
			if op := at(item, strings.ToLower(method)); op != nil {
				best, fixed = op, n
			}
		}
	}
	return best
}

func matches(template, path string) (fixed int, ok bool) {
	a, b := strings.Split(template, "/"), strings.Split(path, "/")
	for i, part := range a {
		switch {
		case part == "{path}" && i < len(b):
			return fixed, true
		case i >= len(b):
			return 0, false
		case strings.HasPrefix(part, "{"):
		case part != b[i]:
			return 0, false
		default:
			fixed++
		}
	}
	return fixed, len(a) == len(b)
}

// checkDocumented fails the test when an answer is not as the document says.
func (d *door) checkDocumented(t *testing.T, c call, res *http.Response, body string) {
	t.Helper()
	doc := d.document(t)
	op := doc.find(c.method, c.path)
	if op == nil || strings.HasPrefix(c.path, "/api") || strings.HasPrefix(c.path, "/draft") || strings.HasPrefix(c.path, "/mcp") {
		return // what no route answers, or a formation does
	}
	reply := at(op, "responses", fmt.Sprint(res.StatusCode))
	if reply == nil {
		t.Errorf("%s %s: status %d is not documented: %s", c.method, c.path, res.StatusCode, body)
		return
	}
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	media := at(reply, "content", kind)
	if err != nil || media == nil {
		t.Errorf("%s %s: %d with %q is not documented", c.method, c.path, res.StatusCode, res.Header.Get("Content-Type"))
		return
	}
	if kind != "application/json" {
		return
	}
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Errorf("%s %s: %v", c.method, c.path, err)
		return
	}
	for _, fault := range doc.check(at(media, "schema"), v, "answer") {
		t.Errorf("%s %s: %d: %s\nin %s", c.method, c.path, res.StatusCode, fault, body)
	}
	if name, ok := at(v, "error").(string); ok {
		about, _ := at(reply, "description").(string)
		if !slices.Contains(strings.Split(about, "; "), name) {
			t.Errorf("%s %s: %d %s is not documented (%s)", c.method, c.path, res.StatusCode, name, about)
		}
	}
}

// check holds v against a schema. A field that the schema does not have is a
// fault, though JSON Schema would let it pass.
func (doc apiDoc) check(schema, v any, where string) (faults []string) {
	if ref, ok := at(schema, "$ref").(string); ok {
		schema = at(doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	if any, ok := at(schema, "anyOf").([]any); ok {
		for _, one := range any {
			found := doc.check(one, v, where)
			if len(found) == 0 {
				return nil
			}
			faults = append(faults, found...)
		}
		return faults
	}
	if kind := at(schema, "type"); kind != nil && !isType(kind, v) {
		return []string{fmt.Sprintf("%s is %T, documented is %v", where, v, kind)}
	}
	if words, ok := at(schema, "enum").([]any); ok && !slices.Contains(words, v) {
		faults = append(faults, fmt.Sprintf("%s is %v, documented is %v", where, v, words))
	}
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			faults = append(faults, doc.check(at(schema, "items"), item, fmt.Sprintf("%s[%d]", where, i))...)
		}
	case map[string]any:
		faults = append(faults, doc.checkObject(schema, v, where)...)
	}
	return faults
}

func (doc apiDoc) checkObject(schema any, v map[string]any, where string) (faults []string) {
	props, closed := at(schema, "properties").(map[string]any)
	for name, value := range v {
		switch {
		case props[name] != nil:
			faults = append(faults, doc.check(props[name], value, where+"."+name)...)
		case closed:
			faults = append(faults, where+"."+name+" is not documented")
		}
	}
	required, _ := at(schema, "required").([]any)
	for _, name := range required {
		if _, there := v[name.(string)]; !there {
			faults = append(faults, where+"."+name.(string)+" is missing")
		}
	}
	return faults
}

func isType(kind, v any) bool {
	if list, ok := kind.([]any); ok {
		return slices.ContainsFunc(list, func(k any) bool { return isType(k, v) })
	}
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case string:
		return kind == "string"
	case bool:
		return kind == "boolean"
	case float64:
		return kind == "number" || kind == "integer" && v == float64(int64(v))
	case []any:
		return kind == "array"
	default:
		return kind == "object"
	}
}

package openapi_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/openapi"
)

type base struct {
	ID   string `json:"id" about:"who"`
	Kind string `json:"kind"`
}

type node struct {
	base
	Kind     string            `json:"kind" enum:"a,b"` // wins over the embedded one
	Count    int64             `json:"count,omitempty"`
	Rate     float64           `json:"rate"`
	At       time.Time         `json:"at"`
	Ended    *time.Time        `json:"ended"`
	Next     *node             `json:"next,omitempty"`
	Other    *base             `json:"other"`
	Tags     []string          `json:"tags"`
	Raw      []byte            `json:"raw,omitempty"`
	Labels   map[string]bool   `json:"labels"`
	Any      any               `json:"any"`
	Verbatim json.RawMessage   `json:"verbatim"`
	Pair     [2]int            `json:"pair"`
	Deep     struct{ X uint8 } `json:"deep"`
	Hidden   string            `json:"-"`
	private  string
}

type envelope[T any] struct {
	Success bool `json:"success"`
	Data    T    `json:"data"`
}

func document(t *testing.T, api openapi.API) map[string]any {
	t.Helper()
	text, err := openapi.Document(api)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func parse(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func at(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func TestDocument_SchemasSayWhatJSONWrites(t *testing.T) {
	t.Parallel()
	_ = node{private: ""}
	doc := document(t, openapi.API{Routes: []openapi.Route{{Method: "GET", Path: "/n", Operation: openapi.Operation{
		Replies: []openapi.Reply{{Status: 200, Type: "application/json", Value: envelope[node]{}}},
	}}}})
	want := parse(t, `{
		"Base": {"type": "object", "required": ["id", "kind"], "properties": {
			"id": {"type": "string", "description": "who"}, "kind": {"type": "string"}}},
		"Node": {"type": "object",
			"required": ["kind", "rate", "at", "ended", "other", "tags", "labels", "any", "verbatim", "pair", "deep", "id"],
			"properties": {
				"id": {"type": "string", "description": "who"},
				"kind": {"type": "string", "enum": ["a", "b"]},
				"count": {"type": "integer"},
				"rate": {"type": "number"},
				"at": {"type": "string", "format": "date-time"},
				"ended": {"type": ["string", "null"], "format": "date-time"},
				"next": {"$ref": "#/components/schemas/Node"},
				"other": {"anyOf": [{"$ref": "#/components/schemas/Base"}, {"type": "null"}]},
				"tags": {"type": "array", "items": {"type": "string"}},
				"raw": {"type": "string", "contentEncoding": "base64"},
				"labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
				"any": {}, "verbatim": {},
				"pair": {"type": "array", "items": {"type": "integer"}},
				"deep": {"type": "object", "required": ["X"], "properties": {"X": {"type": "integer"}}}
			}}
	}`)
	if diff := cmp.Diff(want, at(doc, "components", "schemas")); diff != "" {
		t.Errorf("schemas (-want +got):\n%s", diff)
	}
	want = parse(t, `{"schema": {"type": "object", "required": ["success", "data"], "properties": {
		"success": {"type": "boolean"}, "data": {"$ref": "#/components/schemas/Node"}}}}`)
	if diff := cmp.Diff(want, at(doc, "paths", "/n", "get", "responses", "200", "content", "application/json")); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
}

func TestDocument_ListsRoutesWithParametersAndReplies(t *testing.T) {
	t.Parallel()
	doc := document(t, openapi.API{
		Info:     openapi.Info{Title: "T", Version: "1", Description: "D"},
		Security: []openapi.Security{{Name: "key", Scheme: map[string]any{"type": "http", "scheme": "bearer"}}},
		Routes: []openapi.Route{
			{Method: "GET", Path: "/x/:id/*", Operation: openapi.Operation{Summary: "S", Replies: []openapi.Reply{{Status: 204}}}},
			{Method: "POST", Path: "/x/:id/*", Operation: openapi.Operation{
				Tag: "t", Security: []string{"key"},
				Params: []openapi.Param{{Name: "n", In: "query", About: "how many", Value: 0}, {Name: "X-A", In: "header", Required: true}},
				Body:   &openapi.Body{Types: []string{"application/gzip"}},
				Replies: []openapi.Reply{
					{Status: 400, Type: "application/json", Value: base{}, About: "A"},
					{Status: 400, Type: "application/json", Value: base{}, About: "B"},
					{Status: 400, Type: "application/json", Value: node{}},
					{Status: 200, Type: "text/event-stream"},
				},
			}},
		},
	})
	want := parse(t, `{"parameters": [
			{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}},
			{"name": "path", "in": "path", "required": true, "schema": {"type": "string"}}],
		"get": {"summary": "S", "operationId": "getXIdRest", "security": [], "responses": {"204": {"description": "No Content"}}},
		"post": {"summary": "", "operationId": "postXIdRest", "tags": ["t"], "security": [{"key": []}],
			"parameters": [
				{"name": "n", "in": "query", "description": "how many", "required": false, "schema": {"type": "integer"}},
				{"name": "X-A", "in": "header", "description": "", "required": true, "schema": {"type": "string"}}],
			"requestBody": {"required": true, "content": {"application/gzip": {"schema": {"type": "string"}}}},
			"responses": {
				"400": {"description": "A; B", "content": {"application/json": {"schema": {"anyOf": [
					{"$ref": "#/components/schemas/Base"}, {"$ref": "#/components/schemas/Node"}]}}}},
				"200": {"description": "OK", "content": {"text/event-stream": {"schema": {"type": "string"}}}}}}}`)
	if diff := cmp.Diff(want, at(doc, "paths", "/x/{id}/{path}")); diff != "" {
		t.Errorf("path (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(parse(t, `{"title": "T", "version": "1", "description": "D"}`), doc["info"]); diff != "" || doc["openapi"] != "3.1.0" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	if got := openapi.Template("/a/:b/*"); got != "/a/{b}/{path}" {
		t.Errorf("Template = %s", got)
	}
	if diff := cmp.Diff([]string{"b", "path"}, openapi.PathParams("/a/:b/*")); diff != "" {
		t.Errorf("PathParams (-want +got):\n%s", diff)
	}
}

type order struct {
	ID    string   `json:"id" bind:"required" about:"which"`
	Mode  *string  `json:"mode" enum:"a,b"`
	Parts []part   `json:"parts"`
	Note  *part    `json:"note,omitempty"`
	When  ownStamp `json:"when"`
	open  bool
}

type part struct {
	Name string `json:"name" required:"true"`
	Sub  []part `json:"sub"`
}

type ownStamp struct{ time.Time }

func (ownStamp) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "format": "date-time"}
}

func TestInput_SaysWhatIsReadAndStandsAlone(t *testing.T) {
	t.Parallel()
	_ = order{open: true}
	text, err := json.Marshal(openapi.Input(order{}))
	if err != nil {
		t.Fatal(err)
	}
	const part = `{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "sub": {"type": "array", "items": {}}}}`
	want := parse(t, `{"type": "object", "required": ["id"], "properties": {
		"id": {"type": "string", "description": "which"}, "mode": {"type": "string", "enum": ["a", "b"]},
		"parts": {"type": "array", "items": `+part+`}, "note": `+part+`, "when": {"type": "string", "format": "date-time"}}}`)
	if diff := cmp.Diff(want, parse(t, string(text))); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}

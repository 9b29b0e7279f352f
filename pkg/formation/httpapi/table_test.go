package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// document reads /v1/openapi.json.
func document(t *testing.T, d *door) map[string]map[string]operation {
	t.Helper()
	res := d.send(t, "GET", "/v1/openapi.json", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || res.StatusCode != http.StatusOK || doc.OpenAPI != "3.1.0" {
		t.Fatalf("status %d, %q, %v", res.StatusCode, doc.OpenAPI, err)
	}
	paths := make(map[string]map[string]operation)
	for path, methods := range doc.Paths {
		paths[path] = make(map[string]operation)
		for method, raw := range methods {
			if method == "parameters" {
				continue
			}
			var op operation
			if err := json.Unmarshal(raw, &op); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			paths[path][method] = op
		}
	}
	return paths
}

type operation struct {
	Summary     string
	OperationID string
	Security    []map[string][]string
	Parameters  []struct {
		Name, In string
		Required bool
	}
	RequestBody *struct {
		Content map[string]struct {
			Schema struct {
				Type       string
				Required   []string
				Properties map[string]map[string]any
			}
		}
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema map[string]any }
	}
}

func TestOpenAPI_SaysWhatIsServed(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	ids := make(map[string]bool)
	for path, methods := range document(t, d) {
		for method, op := range methods {
			name := strings.ToUpper(method) + " " + path
			if op.Summary == "" || ids[op.OperationID] || len(op.Responses) == 0 {
				t.Errorf("%s: %+v", name, op)
			}
			ids[op.OperationID] = true
			if strings.Contains(path, "/events") || path == "/v1/logs" {
				continue // they go on
			}
			// Without a key: what the document calls public answers, all else wants one.
			res := d.send(t, strings.ToUpper(method), strings.NewReplacer("{", "", "}", "").Replace(path), "")
			want := http.StatusUnauthorized
			if len(op.Security) == 0 {
				want = http.StatusOK
			}
			if res.StatusCode != want {
				t.Errorf("%s: status %d, the document says %v", name, res.StatusCode, op.Security)
			}
		}
	}
	if len(ids) < 35 {
		t.Errorf("%d routes", len(ids))
	}
}

func TestOpenAPI_DescribesChat(t *testing.T) {
	t.Parallel()
	chat := document(t, openDoor(t, doorOptions{prefix: "ACME"}))["/v1/chat"]["post"]
	body := chat.RequestBody.Content["application/json"].Schema
	if len(body.Required) != 1 || body.Required[0] != "message" || body.Properties["mode"]["enum"] == nil || body.Properties["files"]["type"] != "array" {
		t.Errorf("body %+v", body)
	}
	if _, ok := chat.Responses["200"].Content["text/event-stream"]; !ok || chat.Responses["202"].Content["application/json"].Schema == nil {
		t.Errorf("replies %+v", chat.Responses)
	}
	var header []string
	for _, p := range chat.Parameters {
		header = append(header, p.Name)
	}
	if strings.Join(header, " ") != "Last-Event-ID X-ACME-User-ID" {
		t.Errorf("headers %v", header)
	}
	sessions := document(t, openDoor(t, doorOptions{}))["/v1/sessions"]["get"]
	for _, p := range sessions.Parameters {
		if p.Required != (p.Name == "X-SVC-User-ID") {
			t.Errorf("parameter %+v", p)
		}
	}
}

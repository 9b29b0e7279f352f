package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/manifest"
)

// keyed sends headers with every request.
type keyed struct {
	header []string
	base   *http.Transport
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for i := 0; i < len(k.header); i += 2 {
		r.Header.Set(k.header[i], k.header[i+1])
	}
	return k.base.RoundTrip(r)
}

// connect opens a session of the official client.
func (d *door) connect(t *testing.T, opt *mcpsdk.ClientOptions, header ...string) *mcpsdk.ClientSession {
	t.Helper()
	base := &http.Transport{}
	client := mcpsdk.NewClient(&mcpsdk.Implementation{Name: "test", Version: "1"}, opt)
	session, err := client.Connect(t.Context(), &mcpsdk.StreamableClientTransport{
		Endpoint: d.url + "/mcp", HTTPClient: &http.Client{Transport: keyed{header, base}}, MaxRetries: -1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		base.CloseIdleConnections()
	})
	return session
}

// called is the result of a call: the API's reply.
type called struct {
	text    string
	failed  bool
	Success bool
	Type    string
	Code    string
	Message string
	Error   *struct{ Data map[string]any }
	Data    map[string]any
}

func call(t *testing.T, s *mcpsdk.ClientSession, name string, args map[string]any) called {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return calledOf(t, res)
}

func calledOf(t *testing.T, res *mcpsdk.CallToolResult) called {
	t.Helper()
	text := res.Content[0].(*mcpsdk.TextContent).Text
	out := called{text: text, failed: res.IsError}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	structured, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(structured, &a) != nil || json.Unmarshal([]byte(text), &b) != nil || !cmp.Equal(a, b) {
		t.Errorf("structured content is not the text: %s\n%s", structured, text)
	}
	return out
}

// reference is every name that the specification gives a tool (reference
// runtime.md 13).
const reference = `chat, audiochat, list_requests, get_request_status, cancel_request, list_sessions, get_session, get_session_messages,
restore_session, list_events, get_session_events, get_request_events, list_triggers, get_trigger, execute_trigger, list_sops, get_sop,
list_skills, get_skill, list_agent_skills, send_notification, list_artifacts, get_artifact_metadata, download_artifact_content,
get_artifact_versions, list_credential_services, list_credentials, create_credential, get_credential, delete_credential, search_memories,
create_memory, delete_memory, get_buffer_memory, clear_buffer, update_session, delete_session, preview_route, get_request_trace,
list_approvals, decide_approval`

// noTools are routes for clients that the specification gives no tool.
var noTools = []string{"GET /v1/logs"}

// TestMCP_EveryRouteForClientsIsATool finds a route that was added without its
// tool, and a tool that the specification does not know.
func TestMCP_EveryRouteForClientsIsATool(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	var want []string
	for path, methods := range document(t, d) {
		for method, op := range methods {
			if len(op.Security) > 1 && !slices.Contains(noTools, strings.ToUpper(method)+" "+path) {
				want = append(want, strings.ToUpper(method)+" "+path)
			}
		}
	}
	tools := listTools(t, d.connect(t, nil))
	if len(tools) != len(want) {
		t.Errorf("%d tools for the routes %v", len(tools), want)
	}
	names := strings.FieldsFunc(reference, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
	for _, tool := range tools {
		if !slices.Contains(names, tool.Name) {
			t.Errorf("the specification has no tool %s", tool.Name)
		}
		if tool.Description == "" || tool.Annotations == nil {
			t.Errorf("%s: %+v", tool.Name, tool)
		}
	}
}

func listTools(t *testing.T, s *mcpsdk.ClientSession) []*mcpsdk.Tool {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return list.Tools
}

func TestMCP_SchemasComeFromTheTypesOfTheRoutes(t *testing.T) {
	t.Parallel()
	got := make(map[string]string)
	for _, tool := range listTools(t, openDoor(t, doorOptions{prefix: "ACME"}).connect(t, nil)) {
		schema := tool.InputSchema.(map[string]any)
		var args []string
		required, _ := schema["required"].([]any)
		for name := range schema["properties"].(map[string]any) {
			if slices.Contains(required, any(name)) {
				name += "*"
			}
			args = append(args, name)
		}
		slices.Sort(args)
		got[tool.Name] = strings.Join(args, " ")
		if schema["additionalProperties"] != false || schema["type"] != "object" {
			t.Errorf("%s: %v", tool.Name, schema)
		}
	}
	want := map[string]string{
		"chat":          "X-ACME-User-ID agent_id files group_id message* mode on_disconnect request_id session_id source_channel stream threshold_seconds ui_response use_async user_id webhook_url",
		"audiochat":     "X-ACME-User-ID agent_id agent_name files* request_id session_id stream user_id",
		"preview_route": "X-ACME-User-ID message* session_id user_id", "list_requests": "X-ACME-User-ID",
		"get_request_status": "X-ACME-User-ID id*", "get_request_trace": "X-ACME-User-ID id*", "cancel_request": "X-ACME-User-ID id*",
		"list_sessions": "X-ACME-User-ID active_only limit", "get_session": "X-ACME-User-ID id*",
		"get_session_messages": "X-ACME-User-ID before id* limit", "list_credential_services": "", "list_credentials": "X-ACME-User-ID",
		"create_credential": "X-ACME-User-ID credential* name service*", "get_credential": "X-ACME-User-ID id*", "delete_credential": "X-ACME-User-ID id*",
		"list_events": "X-ACME-User-ID max_events wait_seconds", "get_session_events": "X-ACME-User-ID max_events session* wait_seconds",
		"get_request_events": "Last-Event-ID X-ACME-User-ID max_events request* session* wait_seconds",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestMCP_EveryToolAnswersAsItsRoute(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	s := d.connect(t, nil, "X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann")
	if name := s.InitializeResult().ServerInfo.Name; name != "svc-hello-team" {
		t.Errorf("server %q", name)
	}
	steps := []struct {
		tool, want string // type of the reply
		args       map[string]any
		check      func(called) bool
	}{
		{"chat", "chat.completed", map[string]any{"message": "hello", "session_id": "s1", "request_id": "r1", "stream": true}, func(c called) bool {
			return strings.Contains(fmt.Sprint(c.Data["response"]), "hello") && c.Data["user_id"] == "ann" && c.Data["request_id"] == "r1"
		}},
		{"chat", "chat.completed", map[string]any{"message": "hi", "X-SVC-User-ID": "bob", "agent_id": "coder"}, func(c called) bool {
			return c.Data["user_id"] == "bob" && c.Data["agent"] == "coder"
		}},
		{"chat", "request.processing", map[string]any{"message": "later", "mode": "async"}, func(c called) bool { return c.Data["poll_url"] != "" }},
		{"audiochat", "chat.completed", map[string]any{"files": []any{map[string]any{"content": "UklGRhAAAABXQVZFZm10IA==", "content_type": "audio/wav"}}}, func(c called) bool {
			return strings.Contains(fmt.Sprint(c.Data["response"]), "You said")
		}},
		{"preview_route", "route.previewed", map[string]any{"message": "write a story"}, func(c called) bool { return len(c.Data["agents"].([]any)) == 2 }},
		{"list_requests", "request.list.retrieved", nil, func(c called) bool { return c.Data["count"].(float64) >= 3 }},
		{"list_requests", "request.list.retrieved", map[string]any{"x-svc-user-id": "bob"}, func(c called) bool { return c.Data["count"] == 1.0 }},
		{"get_request_status", "request.status.retrieved", map[string]any{"id": "r1"}, func(c called) bool { return c.Data["status"] == "completed" }},
		{"get_request_trace", "request.trace.retrieved", map[string]any{"id": "r1"}, func(c called) bool { return len(c.Data["spans"].([]any)) > 0 }},
		{"cancel_request", "error.validation", map[string]any{"id": "r1"}, func(c called) bool { return c.Code == "OPERATION_FAILED" && c.failed }},
		{"list_sessions", "session.list", map[string]any{"limit": 1}, func(c called) bool { return c.Data["count"] == 1.0 && c.Data["has_more"] == true }},
		{"get_session", "session.retrieved", map[string]any{"id": "s1"}, func(c called) bool { return c.Data["message_count"] == 2.0 }},
		{"get_session_messages", "session.messages.list", map[string]any{"id": "s1", "limit": "1"}, func(c called) bool { return c.Data["has_more"] == true }},
		{"list_credential_services", "list.retrieved", map[string]any{}, func(c called) bool { return c.Data["count"] == 1.0 }},
		{"create_credential", "credentials.created", map[string]any{"service": "Tracker", "credential": map[string]any{"token": "abcdefghijklmnopqrst"}}, func(c called) bool {
			return c.Data["credential_preview"] == "abcdefg*****rst"
		}},
		{"list_credentials", "credentials.listed", nil, func(c called) bool { return c.Data["count"] == 1.0 }},
	}
	for _, step := range steps {
		got := call(t, s, step.tool, step.args)
		if got.Type != step.want || got.failed == got.Success || !step.check(got) {
			t.Errorf("%s %v: %s", step.tool, step.args, got.text)
		}
	}
	id := call(t, s, "list_credentials", nil).Data["credentials"].([]any)[0].(map[string]any)["credential_id"]
	if got := call(t, s, "get_credential", map[string]any{"id": id}); got.Type != "credentials.retrieved" {
		t.Error(got.text)
	}
	if got := call(t, s, "delete_credential", map[string]any{"id": id}); got.Data["deleted"] != true {
		t.Error(got.text)
	}
}

func TestMCP_StreamsAreReadForAWhile(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	s := d.connect(t, nil, "X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann")
	res := d.send(t, "POST", "/v1/chat", `{"message":"hello","stream":true,"session_id":"s1","request_id":"r1"}`, "X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann")
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	type list struct {
		Events []struct {
			ID   string
			Data struct{ Type, Content string }
		}
		Count    int
		Complete bool
	}
	read := func(tool string, args map[string]any) (out list) {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil || res.IsError {
			t.Fatal(err, res)
		}
		if err := json.Unmarshal([]byte(res.Content[0].(*mcpsdk.TextContent).Text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	whole := read("get_request_events", map[string]any{"session": "s1", "request": "r1"})
	if n := whole.Count; n < 5 || !whole.Complete || whole.Events[0].Data.Type != "stream_open" || whole.Events[n-1].Data.Type != "stream_completed" {
		t.Errorf("%+v", whole)
	}
	rest := read("get_request_events", map[string]any{"session": "s1", "request": "r1", "Last-Event-ID": whole.Events[2].ID, "max_events": 2})
	if rest.Count != 2 || rest.Complete || rest.Events[1].ID != whole.Events[3].ID {
		t.Errorf("%+v", rest)
	}
	if none := read("list_events", map[string]any{"wait_seconds": 0.01}); none.Count != 0 || none.Complete {
		t.Errorf("%+v", none)
	}
	heard := make(chan list)
	go func() {
		heard <- read("get_session_events", map[string]any{"session": "s2", "wait_seconds": 60, "max_events": 1})
	}()
	for {
		// Again, with another request, when it was not listening yet.
		res := d.send(t, "POST", "/v1/chat", `{"message":"hello","session_id":"s2"}`, asUser("ann")...)
		if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res.StatusCode, err)
		}
		select {
		case got := <-heard:
			if got.Count != 1 || !strings.HasPrefix(got.Events[0].Data.Type, "chat.") {
				t.Errorf("%+v", got)
			}
			return
		case <-t.Context().Done():
			t.Fatal("nothing was heard")
		default:
		}
	}
}

func TestMCP_WrongArgumentsGetAClearError(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	s := d.connect(t, nil, "X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann")
	for name, c := range map[string]struct {
		tool  string
		args  map[string]any
		code  string
		field string
	}{
		"no message":       {"chat", nil, "VALIDATION_ERROR", "message"},
		"wrong type":       {"chat", map[string]any{"message": 7}, "VALIDATION_ERROR", "message"},
		"unknown argument": {"chat", map[string]any{"message": "hi", "mesage": "hi"}, "INVALID_PARAMS", "mesage"},
		"missing in path":  {"get_session", nil, "INVALID_PARAMS", "id"},
		"object in path":   {"get_session", map[string]any{"id": map[string]any{}}, "INVALID_PARAMS", "id"},
		"line break":       {"chat", map[string]any{"message": "hi", "X-SVC-User-ID": "a\nb"}, "INVALID_PARAMS", "X-SVC-User-ID"},
		"long wait":        {"list_events", map[string]any{"wait_seconds": 61}, "INVALID_PARAMS", "wait_seconds"},
		"no events":        {"list_events", map[string]any{"max_events": 0}, "INVALID_PARAMS", "max_events"},
		"no number":        {"list_events", map[string]any{"wait_seconds": "NaN"}, "INVALID_PARAMS", "wait_seconds"},
		"bad request id":   {"chat", map[string]any{"message": "hi", "request_id": "a b"}, "INVALID_PARAMS", "request_id"},
		"request id":       {"chat", map[string]any{"message": "hi", "request_id": 7}, "INVALID_PARAMS", "request_id"},
		"limit":            {"list_sessions", map[string]any{"limit": "many"}, "INVALID_REQUEST", ""},
		"unknown agent":    {"chat", map[string]any{"message": "hi", "agent_id": "nobody"}, "AGENT_NOT_FOUND", ""},
		"unknown request":  {"get_request_status", map[string]any{"id": "../../v1/config"}, "REQUEST_NOT_FOUND", ""},
		"dots":             {"get_request_status", map[string]any{"id": ".."}, "REQUEST_NOT_FOUND", ""},
		"failed turn":      {"chat", map[string]any{"message": "budget"}, "BUDGET_EXCEEDED", ""},
	} {
		got := call(t, s, c.tool, c.args)
		field := ""
		if got.Error == nil {
			t.Errorf("%s: %s", name, got.text)
			continue
		}
		if list, ok := got.Error.Data["validation_errors"].([]any); ok {
			field, _ = list[0].(map[string]any)["field"].(string)
		}
		if !got.failed || got.Code != c.code || field != c.field {
			t.Errorf("%s: field %q in %s", name, field, got.text)
		}
	}
	if _, err := s.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: "get_config"}); err == nil || !strings.Contains(err.Error(), `unknown tool "get_config"`) {
		t.Errorf("unknown tool: %v", err)
	}
}

// post sends a body to /mcp as clients do.
func (d *door) post(t *testing.T, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	res := d.send(t, "POST", "/mcp", body, append([]string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}, header...)...)
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	toolsList  = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	toolsCall  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"chat","arguments":{"message":"hi"}}}`
)

func TestMCP_AuthTable(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	message := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	}
	bodies := map[string]struct {
		body string
		open bool
	}{
		"initialize": {initialize, true}, "tools/list": {toolsList, true}, "ping": {message("ping", "{}"), true},
		"initialized": {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, true},
		"tools/call":  {toolsCall, false}, "unknown tool": {strings.Replace(toolsCall, "chat", "nothing", 1), false},
		"resources/list": {message("resources/list", "{}"), false}, "resources/read": {message("resources/read", `{"uri":"formation://agents/writer"}`), false},
		"templates": {message("resources/templates/list", "{}"), false}, "no such method": {message("something/else", "{}"), false},
		"in a batch": {"[" + toolsList + "," + toolsCall + "]", false}, "a batch": {"[" + toolsList + "]", true},
		"twice":      {`{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","method":"tools/call","params":{"name":"chat","arguments":{"message":"hi"}}}`, false},
		"other case": {`{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","method":"ping","params":{"name":"chat","arguments":{"message":"hi"}}}`, true},
	}
	keys := map[string]struct {
		header []string
		valid  bool
	}{
		"none": {nil, false}, "wrong": {[]string{"X-SVC-Client-Key", "fmc_tesT"}, false}, "client": {[]string{"X-SVC-Client-Key", clientKey}, true},
		"admin": {[]string{"X-SVC-Admin-Key", adminKey}, true}, "swapped": {[]string{"X-SVC-Client-Key", adminKey}, false},
		"bearer": {[]string{"Authorization", "Bearer " + clientKey}, false},
	}
	for kind, b := range bodies {
		for name, key := range keys {
			before := d.script.calls.Load()
			status, text, header := d.post(t, b.body, key.header...)
			refused := status == http.StatusUnauthorized
			if refused == (b.open || key.valid) || refused == (header.Get("WWW-Authenticate") == "") {
				t.Errorf("%s with key %s: %d %s, challenge %q", kind, name, status, text, header.Get("WWW-Authenticate"))
			}
			if refused && !strings.Contains(text, `"code":"UNAUTHORIZED"`) {
				t.Errorf("%s with key %s: %s", kind, name, text)
			}
			if !key.valid && d.script.calls.Load() != before {
				t.Errorf("%s with key %s ran a turn", kind, name)
			}
		}
	}
	if status, text, _ := d.post(t, toolsCall, "X-SVC-Admin-Key", adminKey); status != http.StatusOK || !strings.Contains(text, "chat.completed") {
		t.Errorf("an administrator: %d %s", status, text)
	}
}

// TestMCP_WhoHasNoKeySendsLittle is about a large body of something that is open
// to all.
func TestMCP_WhoHasNoKeySendsLittle(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	transport := &http.Transport{} // a connection that stays is read to the end of the body
	defer transport.CloseIdleConnections()
	for key, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, clientKey: http.StatusOK} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", d.url+"/mcp", strings.NewReader(strings.Repeat(" ", 70<<10)+toolsList))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "X-Svc-Client-Key": {key}}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("key %q: %d", key, res.StatusCode)
		}
	}
}

func TestMCP_BodiesAndMethodsThatAreWrong(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"no body": {"", 400, "-32700"}, "no JSON": {"{", 400, "-32700"}, "no object": {"7", 400, "-32700"}, "empty batch": {"[]", 400, "-32700"},
		"long batch": {"[" + strings.TrimSuffix(strings.Repeat(toolsList+",", 101), ",") + "]", 400, "-32700"},
		"no method":  {`{"jsonrpc":"2.0","method":7}`, 400, "-32700"}, "version": {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, "-32700"},
		"unknown method":         {`{"jsonrpc":"2.0","id":1,"method":"nothing"}`, 400, "nothing"},
		"a batch of old clients": {"[" + toolsList + "," + strings.Replace(toolsList, "1", "2", 2) + "]", 200, `"id":2`},
		"wrong params":           {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`, 200, "-32602"},
		"subscription":           {`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"formation://agents/writer"}}`, 200, "error"},
	} {
		status, text, _ := d.post(t, c.body, "X-SVC-Client-Key", clientKey)
		if status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	for _, method := range []string{"GET", "DELETE", "PUT", "PATCH"} {
		res := d.send(t, method, "/mcp", "", "Accept", "text/event-stream")
		if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, res.StatusCode, res.Header.Get("Allow"))
		}
	}
	res := d.send(t, "OPTIONS", "/mcp", "", "Origin", "https://chat.example")
	if res.StatusCode != http.StatusOK || res.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("preflight: %d %v", res.StatusCode, res.Header)
	}
	if status, text, _ := d.post(t, initialize, "Accept", "application/json"); status != http.StatusBadRequest {
		t.Errorf("a client that takes no events: %d %s", status, text)
	}
}

func TestMCP_ABrowserUnderAForeignNameIsRefused(t *testing.T) {
	t.Parallel()
	f := formationForTest()
	f.Server.Host = "chat.example.com"
	d := openDoor(t, doorOptions{formation: f})
	for host, want := range map[string]int{
		"evil.example.com": 403, "127.0.0.1.evil.com": 403, "": 200, "localhost": 200, "localhost:80": 200, "[::1]:80": 200, "127.0.0.1": 200,
		"chat.example.com": 200, "Chat.Example.com:443": 200, "10.0.0.1": 403,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", d.url+"/mcp", strings.NewReader(initialize))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("host %q: %d, want %d", host, res.StatusCode, want)
		}
	}
}

func TestMCP_LargeBodiesHaveTheLimitOfTheRoutes(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{noFiles: true})
	large := func(size int) string {
		return strings.Replace(toolsCall, `"hi"`, `"hi","files":[{"filename":"a.txt","content":"`+strings.Repeat("QUFB", size/4)+`"}]`, 1)
	}
	status, text, _ := d.post(t, large(5<<20), "X-SVC-Client-Key", clientKey)
	if status != http.StatusOK || !strings.Contains(text, "files are not taken here") {
		t.Errorf("within the limit: %d %.300s", status, text)
	}
	for _, length := range []int64{80<<20 + 1, -1} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", d.url+"/mcp", io.LimitReader(blanks{}, 80<<20+1))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("X-SVC-Client-Key", clientKey)
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			continue // the connection was cut before the answer could be read
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(body), "PAYLOAD_TOO_LARGE") {
			t.Errorf("length %d: %d %s", length, res.StatusCode, body)
		}
	}
}

type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestMCP_ProgressTellsWhatATurnDoes(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	heard := make(chan *mcpsdk.ProgressNotificationParams, 100)
	last := 0.0
	next := func() string {
		for {
			p := <-heard
			if p.ProgressToken != "p1" || p.Progress != last+1 {
				t.Errorf("after progress %v: %+v", last, p)
			}
			last = p.Progress
			if p.Message != "The turn goes on" { // the sign of life of a slow machine
				return p.Message
			}
		}
	}
	s := d.connect(t, &mcpsdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcpsdk.ProgressNotificationClientRequest) { heard <- r.Params }},
		"X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann")
	params := &mcpsdk.CallToolParams{Name: "chat", Arguments: map[string]any{"message": "wait here"}}
	params.SetProgressToken("p1")
	done := make(chan called)
	go func() {
		res, err := s.CallTool(t.Context(), params)
		if err != nil {
			t.Error(err)
			close(done)
			return
		}
		done <- calledOf(t, res)
	}()
	<-d.script.started
	first := next() // while the turn runs
	d.say(t, "ann", "s9", "hello")
	close(d.script.release)
	if got := <-done; got.Type != "chat.completed" {
		t.Error(got.text)
	}
	// The client hears them in order, but may hand out the result before; how the
	// turn ended may be told after the answer.
	if diff := cmp.Diff([]string{"The turn has begun", "Agent writer is working"}, []string{first, next()}); diff != "" {
		t.Errorf("progress of this turn alone (-want +got):\n%s", diff)
	}
}

// waiting begins a turn that waits, by a call that ends with ctx.
func waiting(ctx context.Context, t *testing.T, d *door, s *mcpsdk.ClientSession, args map[string]any) (ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	args["message"] = "wait"
	go func() {
		_, err := s.CallTool(ctx, &mcpsdk.CallToolParams{Name: "chat", Arguments: args})
		ended <- err
	}()
	<-d.script.started
	return ended
}

// becomes waits until a request has a status.
func becomes(t *testing.T, s *mcpsdk.ClientSession, id, status string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		got := call(t, s, "get_request_status", map[string]any{"id": id})
		if got.Data["status"] == status {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %v, want %s", id, got.Data["status"], status)
		}
	}
}

func TestMCP_ACallThatIsTakenBackEndsTheWaitAndWhenAskedTheTurn(t *testing.T) {
	t.Parallel()
	f := formationForTest()
	f.Async.OnDisconnect = manifest.DisconnectCancel
	for name, c := range map[string]struct {
		formation *manifest.Formation
		args      map[string]any
		want      string
	}{
		"by default":             {nil, map[string]any{"request_id": "r1"}, "completed"},
		"asked by the call":      {nil, map[string]any{"request_id": "r1", "on_disconnect": "cancel"}, "cancelled"},
		"of the formation":       {f, map[string]any{"request_id": "r1"}, "cancelled"},
		"of a user in the body":  {nil, map[string]any{"request_id": "r1", "user_id": "ann", "on_disconnect": "cancel"}, "cancelled"},
		"unlike the formation's": {f, map[string]any{"request_id": "r1", "on_disconnect": "continue"}, "completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openDoor(t, doorOptions{formation: c.formation})
			s := d.connect(t, nil, "X-SVC-Client-Key", clientKey)
			if c.args["user_id"] != nil {
				s = d.connect(t, nil, "X-SVC-Admin-Key", adminKey) // becomes asks as nobody
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := waiting(ctx, t, d, s, c.args)
			becomes(t, s, "r1", "processing")
			cancel()
			if err := <-ended; err == nil {
				t.Error("the call went on")
			}
			if c.want == "completed" {
				close(d.script.release)
			}
			becomes(t, s, "r1", c.want)
		})
	}
}

func TestMCP_AKeyMakesACallOneTurnHoweverOftenItIsMade(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	ann := []string{"X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann"}
	s := d.connect(t, nil, append(slices.Clone(ann), "X-SVC-Idempotency-Key", "k1")...)
	first := call(t, s, "chat", map[string]any{"message": "hi"})
	again := call(t, s, "chat", map[string]any{"message": "hi"})
	if first.text != again.text || !strings.Contains(first.text, `"idempotency_key":"k1"`) || d.script.calls.Load() != 1 {
		t.Errorf("%d turns:\n%s\n%s", d.script.calls.Load(), first.text, again.text)
	}
	if other := call(t, s, "chat", map[string]any{"message": "ho"}); !other.failed || other.Code != "CONFLICT" {
		t.Errorf("another message under the same key: %s", other.text)
	}
	if free := call(t, d.connect(t, nil, ann...), "chat", map[string]any{"message": "hi"}); free.Data["request_id"] == first.Data["request_id"] {
		t.Errorf("without the key: %s", free.text)
	}
	if call(t, s, "get_request_status", map[string]any{"id": first.Data["request_id"]}).Data["status"] != "completed" {
		t.Error("other tools mind the key")
	}
}

func TestMCP_TheEndOfAConnectionIsTheEndOfAWait(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"continue": "completed", "cancel": "cancelled"} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			d := openDoor(t, doorOptions{})
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", d.url+"/mcp",
				strings.NewReader(strings.Replace(toolsCall, `"hi"`, `"wait","request_id":"r1","on_disconnect":"`+word+`"`, 1)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "X-Svc-Client-Key": {clientKey}}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-d.script.started
			leave()
			<-gone
			if want == "completed" {
				close(d.script.release)
			}
			becomes(t, d.connect(t, nil, "X-SVC-Client-Key", clientKey), "r1", want)
		})
	}
}

// TestMCP_ANotificationTakesACallBack is about clients of the versions with a
// handshake, whose connection stays while they take a call back.
func TestMCP_ANotificationTakesACallBack(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	_, _, header := d.post(t, initialize)
	session := header.Get("Mcp-Session-Id")
	if session == "" {
		t.Fatal("no session id")
	}
	answered := make(chan string, 1)
	go func() {
		_, text, _ := d.post(t, strings.Replace(toolsCall, `"hi"`, `"wait","request_id":"r1","on_disconnect":"cancel"`, 1),
			"X-SVC-Client-Key", clientKey, "Mcp-Session-Id", session, "MCP-Protocol-Version", "2025-11-25")
		answered <- text
	}()
	<-d.script.started
	s := d.connect(t, nil, "X-SVC-Client-Key", clientKey)
	for _, other := range [][]string{{"other", "1"}, {session, "2"}, {session, `"1"`}, {session, "{}"}, {"", "1"}, {session, "1"}} {
		becomes(t, s, "r1", "processing")
		status, text, _ := d.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+other[1]+`}}`, "Mcp-Session-Id", other[0])
		if status != http.StatusAccepted {
			t.Errorf("%v: %d %s", other, status, text)
		}
	}
	<-answered
	becomes(t, s, "r1", "cancelled")
}

func TestMCP_ResourcesTellWhatClientsMayKnow(t *testing.T) {
	t.Parallel()
	f := formationForTest()
	f.SOPs = []manifest.SOP{{ID: "refund", Name: "Refunds", Description: "How money goes back", Mode: "guide", Body: "# Refund\n1. Look <up>"}}
	f.Skills = []manifest.Skill{
		{Name: "charts", Description: "Draws charts", Body: "instructions", Resources: []string{"scripts/draw.py"}}, {Name: "hidden", Agent: "coder"},
	}
	d := openDoor(t, doorOptions{formation: f, redact: func(s string) string { return strings.ReplaceAll(s, "prose", "***") }})
	s := d.connect(t, nil, "X-SVC-Client-Key", clientKey)
	list, err := s.ListResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, r := range list.Resources {
		read, err := s.ReadResource(t.Context(), &mcpsdk.ReadResourceParams{URI: r.URI})
		if err != nil {
			t.Fatal(err)
		}
		got[r.URI] = read.Contents[0].Text
	}
	want := map[string]string{
		"formation://agents/writer": `{"id":"writer","name":"Writer","description":"Writes texts","role":"specialist","specialization":{"domain":"***","keywords":["text","story"]}}`,
		"formation://agents/coder":  `{"id":"coder","name":"coder","description":"Writes code","specialization":{}}`,
		"formation://sops/refund":   `{"id":"refund","name":"Refunds","description":"How money goes back","type":"guide","content":"# Refund\n1. Look <up>"}`,
		"formation://skills/charts": `{"name":"charts","description":"Draws charts","resources":["scripts/draw.py"]}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	for _, uri := range []string{"formation://agents/nobody", "formation://skills/hidden", "formation://x/y", "file:///etc/passwd"} {
		if _, err := s.ReadResource(t.Context(), &mcpsdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s was read", uri)
		}
	}
	templates, err := s.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 3 {
		t.Errorf("%v %v", templates, err)
	}
	ids, err := s.Complete(t.Context(), &mcpsdk.CompleteParams{
		Ref: &mcpsdk.CompleteReference{Type: "ref/resource", URI: "formation://agents/{id}"}, Argument: mcpsdk.CompleteParamsArgument{Name: "id", Value: "wr"},
	})
	if err != nil || !cmp.Equal(ids.Completion.Values, []string{"writer"}) {
		t.Errorf("%+v %v", ids, err)
	}
}

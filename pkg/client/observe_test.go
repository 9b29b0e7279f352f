package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// TestFormation_LooksInside has one row per route that shows a formation's work.
func TestFormation_LooksInside(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	parent := "1"
	for name, tc := range map[string]struct {
		call  func(context.Context, *client.Formation) (any, error)
		asks  string
		reply string
		want  any
	}{
		"route": {
			func(ctx context.Context, f *client.Formation) (any, error) {
				return f.Route(ctx, client.RouteRequest{Message: "m", SessionID: "s"})
			},
			`POST /v1/route {"message":"m","session_id":"s"}`,
			`{"agents":[{"id":"a","score":0.5,"reasons":["r"]}],"method":"model","off_topic":true}`,
			&client.RoutePreview{Agents: []client.Candidate{{ID: "a", Score: 0.5, Reasons: []string{"r"}}}, Method: "model", OffTopic: true},
		},
		"requests": {
			func(ctx context.Context, f *client.Formation) (any, error) { return f.Requests(ctx) },
			"GET /v1/requests",
			`{"requests":[{"request_id":"r","user_id":"u","status":"failed","progress":null,"created_at":"2026-01-02T03:04:05Z","completed_at":"2026-01-02T03:04:05Z","error":"e"}],"count":1}`,
			[]client.RequestSummary{{RequestID: "r", UserID: "u", Status: "failed", CreatedAt: at, CompletedAt: &at, Failure: "e"}},
		},
		"trace": {
			func(ctx context.Context, f *client.Formation) (any, error) { return f.Trace(ctx, "r/1") },
			"GET /v1/requests/r%2F1/trace",
			`{"request_id":"r/1","spans":[{"span_id":"2","parent_id":"1","kind":"tool","name":"n","status":"ok","started_at":"2026-01-02T03:04:05Z","duration_ms":1.5,"attributes":{"a":1}}],"totals":{"duration_ms":2,"model_calls":1,"tool_calls":1,"tokens":{"input":3,"output":2,"cached":1},"cost":{"amount":0.1,"currency":"USD"}}}`,
			&client.Trace{
				RequestID: "r/1",
				Spans: []client.Span{{
					SpanID: "2", ParentID: &parent, Kind: "tool", Name: "n", Status: "ok", StartedAt: at, DurationMS: 1.5,
					Attributes: map[string]json.RawMessage{"a": json.RawMessage("1")},
				}},
				Totals: client.TraceTotals{
					DurationMS: 2, ModelCalls: 1, ToolCalls: 1, Tokens: client.Tokens{Input: 3, Output: 2, Cached: 1},
					Cost: &client.Cost{Amount: 0.1, Currency: "USD"},
				},
			},
		},
		"tool servers": {
			func(ctx context.Context, f *client.Formation) (any, error) { return f.ToolServers(ctx) },
			"GET /v1/mcp/servers",
			`{"servers":[{"id":"s","name":"S","type":"http","status":"error","enabled":true,"tools":2,"description":"d","agent_id":"a","error":"e"}],"count":1}`,
			[]client.ToolServer{{ID: "s", Name: "S", Type: "http", Status: "error", Error: "e", Enabled: true, Tools: 2, Description: "d", AgentID: "a"}},
		},
		"tools": {
			func(ctx context.Context, f *client.Formation) (any, error) { return f.Tools(ctx) },
			"GET /v1/mcp/tools",
			`{"tools":[{"name":"t","description":"d","server":"s","input_schema":{}}],"count":1}`,
			[]client.Tool{{Name: "t", Description: "d", Server: "s", InputSchema: json.RawMessage("{}")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := ""
			f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.Method + " " + r.URL.EscapedPath()
				if r.Method == http.MethodPost {
					sent, err := json.Marshal(body(t, r))
					if err != nil {
						t.Error(err)
					}
					asked += " " + string(sent)
				}
				answer(w, 200, `{"data":`+tc.reply+`}`)
			})
			got, err := tc.call(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if asked != tc.asks {
				t.Errorf("asked %s, want %s", asked, tc.asks)
			}
			f = newFormation(t, func(w http.ResponseWriter, _ *http.Request) {
				answer(w, 401, `{"error":{"code":"UNAUTHORIZED","message":"no"}}`)
			})
			_, err = tc.call(t.Context(), f)
			wantError(t, err, 401, "UNAUTHORIZED")
		})
	}
}

func TestChatStream_ReturnsTheWidgetsOfAQuestion(t *testing.T) {
	t.Parallel()
	var sent map[string]any
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		sent = body(t, r)
		events(w, `data: {"token":{"type":"completed","content":"Which?","requires_user_response":true}}`,
			"event: ui\ndata: {\"ui\":[{\"type\":\"options\",\"id\":\"ui_1\",\"prompt\":\"Which?\",\"options\":[{\"value\":\"a\",\"label\":\"A\"}]}]}",
			"event: done")
	})
	index := 0
	last, err := f.ChatStream(t.Context(), client.ChatRequest{
		UIResponse: &client.UIResponse{ID: "ui_0", Index: &index}, Files: []client.File{{Filename: "f", Content: []byte("x")}},
	}, func(client.Token) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Widget{{Type: client.WidgetOptions, ID: "ui_1", Prompt: "Which?", Options: []client.Option{{Value: "a", Label: "A"}}}}
	if diff := cmp.Diff(want, last.UI); diff != "" || !last.RequiresUserResponse {
		t.Errorf("%+v %s", last, diff)
	}
	wantSent := map[string]any{
		"message": "", "stream": true, "ui_response": map[string]any{"id": "ui_0", "index": 0.0},
		"files": []any{map[string]any{"filename": "f", "content": "eA=="}},
	}
	if diff := cmp.Diff(wantSent, sent); diff != "" {
		t.Error(diff)
	}
}

func TestFollowEvents_HandsOnEventsAndFaults(t *testing.T) {
	t.Parallel()
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != "/v1/logs?event_type=chat.%2A&user_id=ada" {
			t.Errorf("asked %s", got)
		}
		events(w, ": keepalive",
			"event: log\ndata: {\"timestamp\":1000,\"level\":\"INFO\",\"event_type\":\"chat.x\",\"message\":\"m\",\"data\":null}",
			"event: error\ndata: {\"error\":true,\"message\":\"lost\"}")
	})
	var got []client.LiveEvent
	err := f.FollowEvents(t.Context(), client.EventFilter{Type: "chat.*"}, func(e client.LiveEvent) error {
		got = append(got, e)
		return nil
	})
	wantError(t, err, 0, client.NameBrokenStream)
	want := []client.LiveEvent{
		{Timestamp: 1000, Level: "INFO", Type: "chat.x", Message: "m", Data: json.RawMessage("null")},
		{Message: "lost", Fault: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[0].Time().Unix() != 1 {
		t.Errorf("time %v", got[0].Time())
	}
}

func TestFollowEvents_EndsForEachReason(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	f := newFormation(t, func(w http.ResponseWriter, _ *http.Request) { events(w, `data: {"type":"chat.x"}`) })
	if err := f.FollowEvents(t.Context(), client.EventFilter{}, func(client.LiveEvent) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
	f = newFormation(t, func(w http.ResponseWriter, _ *http.Request) { events(w, "data: oops") })
	err := f.FollowEvents(t.Context(), client.EventFilter{}, func(client.LiveEvent) error { return nil })
	wantError(t, err, 200, client.NameBadReply)
}

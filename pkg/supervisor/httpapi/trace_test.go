package httpapi_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

// recorded has a door whose spans are kept.
func recorded(t *testing.T, adapt func(*httpapi.Config)) (*door, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	return setupWith(t, nil, func(c *httpapi.Config) {
		c.Tracer = provider
		if adapt != nil {
			adapt(c)
		}
	}), spans
}

// spanOf is the one span that was ended since the last call.
func spanOf(t *testing.T, spans *tracetest.SpanRecorder) sdktrace.ReadOnlySpan {
	t.Helper()
	deploytest.Eventually(t, "the span has ended", func() bool { return len(spans.Ended()) > 0 })
	all := spans.Ended()
	spans.Reset()
	if len(all) != 1 {
		t.Fatalf("%d spans for one call", len(all))
	}
	return all[0]
}

func attributes(s sdktrace.ReadOnlySpan) map[string]any {
	out := make(map[string]any)
	for _, kv := range s.Attributes() {
		out[string(kv.Key)] = kv.Value.AsInterface()
	}
	return out
}

func TestTrace_OneSpanForEachManagementCall(t *testing.T) {
	t.Parallel()
	d, spans := recorded(t, nil)
	d.mustDeploy(t, "hello", nil)
	if s := spanOf(t, spans); s.Name() != "POST /rpc/formations" || attributes(s)["http.response.status_code"] != int64(201) {
		t.Errorf("deploy: %s %v", s.Name(), attributes(s))
	}
	d.data(t, 200, call{method: "POST", path: "/rpc/formations/hello/stop"})
	spanOf(t, spans)
	d.behaves(t, "hello", "crash")
	for _, tc := range []struct {
		call   call
		name   string
		route  string
		status int
		fault  string
		code   codes.Code
		more   map[string]any
	}{
		{
			call: call{method: "GET", path: "/rpc/formations?status=running"}, name: "GET /rpc/formations",
			route: "/rpc/formations", status: 200,
		},
		{
			call: call{method: "GET", path: "/rpc/formations/nobody"}, name: "GET /rpc/formations/{id}",
			route: "/rpc/formations/{id}", status: 404, fault: "FormationNotFound", more: map[string]any{"svc.formation.id": "nobody"},
		},
		{
			call: call{method: "POST", path: "/rpc/formations/hello/start"}, name: "POST /rpc/formations/{id}/start",
			route: "/rpc/formations/{id}/start", status: 500, fault: "HealthCheckFailed", code: codes.Error, more: map[string]any{"svc.formation.id": "hello"},
		},
		{
			// Its failure is told in the stream, whose own status is good.
			call: call{method: "POST", path: "/rpc/formations/hello/start/stream"}, name: "POST /rpc/formations/{id}/start/stream",
			route: "/rpc/formations/{id}/start/stream", status: 200, fault: "HealthCheckFailed", code: codes.Error,
			more: map[string]any{"svc.formation.id": "hello"},
		},
		{call: call{method: "GET", path: "/rpc/nothing"}, name: "GET", status: 404, fault: "NotFound"},
		{call: call{method: "BREW", path: "/rpc/formations"}, name: "_OTHER", status: 404, fault: "NotFound"},
		{
			call: call{method: "GET", path: "/rpc/formations", sign: unsigned}, name: "GET /rpc/formations",
			route: "/rpc/formations", status: 401, fault: "Unauthorized", more: map[string]any{"svc.key.id": nil},
		},
		{
			call: call{method: "POST", path: "/rpc/formations/hello/draft/files", body: []byte(`{"action": "list"}`)},
			name: "POST /rpc/formations/{id}/draft/files", route: "/rpc/formations/{id}/draft/files", status: 404, fault: "DraftNotFound",
			more: map[string]any{"svc.formation.id": "hello"},
		},
	} {
		d.exchange(d.request(t, t.Context(), tc.call))
		s := spanOf(t, spans)
		method, path := tc.call.method, strings.Split(tc.call.path, "?")[0]
		if tc.name == "_OTHER" {
			method = tc.name
		}
		got := attributes(s)
		want := map[string]any{
			"http.request.method": method, "url.path": path, "client.address": "127.0.0.1", "svc.key.id": keyID,
			"http.response.status_code": int64(tc.status), "svc.request.id": got["svc.request.id"],
		}
		for name, value := range tc.more {
			want[name] = value
			if value == nil {
				delete(want, name)
			}
		}
		if tc.route != "" {
			want["http.route"] = tc.route
		}
		if tc.fault != "" {
			want["error.type"] = tc.fault
		}
		if diff := cmp.Diff(want, got); diff != "" || s.Name() != tc.name || s.Status().Code != tc.code || s.SpanKind() != trace.SpanKindServer {
			t.Errorf("%s %s: span %q %v %v (-want +got):\n%s", tc.call.method, tc.call.path, s.Name(), s.Status(), s.SpanKind(), diff)
		}
	}
}

func TestTrace_CarriesTheRequestIDOfTheAuditAndTheCallersTrace(t *testing.T) {
	t.Parallel()
	d, spans := recorded(t, nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	d.data(t, 200, call{method: "GET", path: "/rpc/server/status"}.with(map[string]string{"Traceparent": parent}))
	s := spanOf(t, spans)
	if got := s.SpanContext().TraceID().String() + " " + s.Parent().SpanID().String(); got != "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331" {
		t.Errorf("trace and parent = %s", got)
	}
	e := d.entries(t, "?action=server.status")
	if id := attributes(s)["svc.request.id"]; len(e) != 1 || e[0]["request_id"] != id || !strings.HasPrefix(e[0]["request_id"].(string), "req_") {
		t.Errorf("request id %v of the span, audit %v", id, e)
	}
	if spanOf(t, spans).Parent().IsValid() {
		t.Error("a call without a trace has a parent")
	}
}

func TestTrace_PathsThatAreNotOfTheManagementHaveNone(t *testing.T) {
	t.Parallel()
	d, spans := recorded(t, nil)
	d.mustDeploy(t, "hello", nil)
	spanOf(t, spans)
	for _, path := range []string{"/ping", "/health", "/metrics", "/docs", "/api/hello/", "/nothing"} {
		d.do(t, call{method: "GET", path: path, sign: unsigned})
	}
	if all := spans.Ended(); len(all) != 0 {
		t.Errorf("%d spans, the first is %s", len(all), all[0].Name())
	}
}

func TestGuard_APanicIsRecordedAndTraced(t *testing.T) {
	t.Parallel()
	var left atomic.Int64 // until the clock fails; 0 is never
	d, spans := recorded(t, func(c *httpapi.Config) {
		c.Now = func() time.Time {
			if left.Load() > 0 && left.Add(-1) == 0 {
				panic("the clock is broken")
			}
			return time.Now()
		}
	})
	left.Store(2) // the guard's own reading, then the uptime that the handler tells
	got := d.exchange(d.request(t, t.Context(), call{method: "GET", path: "/rpc/server/status"}))
	if got.String() != "500 InternalError" || strings.Contains(got.body, "clock") {
		t.Errorf("%s %s", got, got.body)
	}
	s := spanOf(t, spans)
	if got := attributes(s); s.Status().Code != codes.Error || got["error.type"] != "InternalError" || got["http.response.status_code"] != int64(500) {
		t.Errorf("span: %v %v", s.Status(), got)
	}
	d.stop()
	if diff := cmp.Diff([]string{keyID + " server.status  500 failure"}, d.auditRows(t)); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

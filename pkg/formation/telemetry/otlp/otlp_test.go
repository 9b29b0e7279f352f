package otlp

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// turnOf traces a turn with one call of each kind. What was said is "CONTENT".
func turnOf(ctx context.Context, h *telemetry.Hub) *telemetry.Trace {
	ctx, trace := h.Trace(ctx, telemetry.TraceInfo{RequestID: "req_1", UserID: "USER", SessionID: "sess_1", Parent: parent})
	turnCtx, turn := telemetry.Start(ctx, telemetry.KindTurn, "turn")
	_, routing := telemetry.Start(turnCtx, telemetry.KindRouting, "route")
	routing.Set("method", "model")
	routing.Set("agents", []map[string]any{{"id": "writer", "reasons": []string{"CONTENT"}}})
	routing.End(nil)
	work, delegation := telemetry.Start(turnCtx, telemetry.KindDelegation, "writer")
	_, model := telemetry.Start(work, telemetry.KindModel, "google/gemini")
	model.Set(telemetry.AttrProvider, "google")
	model.Set(telemetry.AttrModel, "gemini")
	model.Set(telemetry.AttrResponseModel, "gemini-001")
	model.Set(telemetry.AttrAgent, "writer")
	model.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 10, Output: 4})
	model.Set(telemetry.AttrCost, telemetry.Cost{Amount: 1, Currency: "USD"})
	model.Set(telemetry.AttrFinish, "tool_calls")
	model.End(nil)
	_, tool := telemetry.Start(work, telemetry.KindTool, "files__read")
	tool.Set(telemetry.AttrTool, "read")
	tool.Set(telemetry.AttrServer, "files")
	tool.Set(telemetry.AttrArguments, json.RawMessage(`{"path":"CONTENT"}`))
	tool.Set(telemetry.AttrResult, "CONTENT")
	tool.Set(telemetry.AttrIsError, true)
	tool.End(nil)
	_, vectors := telemetry.Start(work, telemetry.KindModel, "local/acme/small")
	vectors.Set(telemetry.AttrProvider, "local")
	vectors.Set(telemetry.AttrModel, "acme/small")
	vectors.Set(telemetry.AttrOperation, telemetry.OperationEmbeddings)
	vectors.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 3})
	vectors.End(errors.New("away"))
	delegation.End(nil)
	turn.Set(telemetry.AttrAgent, "writer")
	turn.Set(telemetry.AttrStatus, "completed")
	turn.End(nil)
	trace.Close()
	return trace
}

func TestSend_SpeaksTheGenAIConventions(t *testing.T) {
	t.Parallel()
	memory := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(memory))
	trace := turnOf(t.Context(), telemetry.New(telemetry.Config{}))
	send(provider.Tracer("t"), trace)

	names := map[string]string{"b7ad6b7169203331": "(caller)"}
	spans := memory.GetSpans()
	for _, s := range spans {
		names[s.SpanContext.SpanID().String()] = s.Name
	}
	var got []string
	for _, s := range spans {
		var attrs []string
		for _, a := range s.Attributes {
			attrs = append(attrs, string(a.Key)+"="+a.Value.String())
		}
		slices.Sort(attrs)
		got = append(got, fmt.Sprintf("%s < %s %s %s: %s", s.Name, names[s.Parent.SpanID().String()], s.SpanKind, s.Status.Code, strings.Join(attrs, " ")))
		if s.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s does not continue the caller's trace", s.Name)
		}
	}
	const whose = " gen_ai.conversation.id=sess_1"
	want := []string{
		"invoke_agent writer < (caller) internal Unset: formation.request.id=req_1 formation.turn.status=completed gen_ai.agent.id=writer gen_ai.agent.name=writer" + whose +
			" gen_ai.operation.name=invoke_agent gen_ai.usage.input_tokens=13 gen_ai.usage.output_tokens=4",
		"routing < invoke_agent writer internal Unset: formation.request.id=req_1 formation.routing.method=model" + whose,
		"invoke_agent writer < invoke_agent writer internal Unset: formation.request.id=req_1 gen_ai.agent.id=writer gen_ai.agent.name=writer" + whose + " gen_ai.operation.name=invoke_agent",
		"chat gemini < invoke_agent writer client Unset: formation.request.id=req_1 gen_ai.agent.id=writer gen_ai.agent.name=writer" + whose +
			" gen_ai.operation.name=chat gen_ai.provider.name=gcp.gemini gen_ai.request.model=gemini gen_ai.response.finish_reasons=[\"tool_calls\"]" +
			" gen_ai.response.model=gemini-001 gen_ai.usage.input_tokens=10 gen_ai.usage.output_tokens=4",
		"execute_tool read < invoke_agent writer internal Unset: error.type=tool_error formation.request.id=req_1 formation.tool.server=files" + whose +
			" gen_ai.operation.name=execute_tool gen_ai.tool.name=read",
		"embeddings acme/small < invoke_agent writer client Error: error.type=_OTHER formation.request.id=req_1" + whose +
			" gen_ai.operation.name=embeddings gen_ai.provider.name=local gen_ai.request.model=acme/small gen_ai.usage.input_tokens=3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	records := trace.Spans()
	for i, s := range spans {
		if !s.StartTime.Equal(records[i].Started) || s.EndTime.Sub(s.StartTime) != records[i].Duration {
			t.Errorf("%s has other times than its span", s.Name)
		}
	}
}

// collector is an OTLP/HTTP receiver. It keeps the bodies as they come: the
// texts and ids of a span stand in them as they are.
type collector struct {
	mu     sync.Mutex
	bodies strings.Builder
	wrong  []string
	status int
	got    chan struct{}
}

func startCollector(t *testing.T) (c *collector, url string) {
	t.Helper()
	c = &collector{status: http.StatusOK, got: make(chan struct{}, 100)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		c.mu.Lock()
		defer c.mu.Unlock()
		if kind := r.Header.Get("Content-Type"); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || kind != "application/x-protobuf" {
			c.wrong = append(c.wrong, r.Method+" "+r.URL.Path+" "+kind)
		}
		c.bodies.Write(body)
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.WriteHeader(c.status)
		c.got <- struct{}{}
	}))
	t.Cleanup(srv.Close)
	return c, srv.URL
}

// has tells whether the texts are in what came so far.
func (c *collector) has(texts ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(c.bodies.String(), text) })
}

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// open sets the process' environment, too, which the exporter reads itself.
func open(t *testing.T, log io.Writer, vars map[string]string) *Exporter {
	t.Helper()
	for name, v := range vars {
		t.Setenv(name, v)
	}
	e, err := Open(t.Context(), Config{Env: environment(vars), FormationID: "hello", LaunchID: "lch_1", Log: zerolog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExport_ReachesTheCollectorWithoutWhatWasSaid(t *testing.T) {
	c, url := startCollector(t)
	var log bytes.Buffer
	e := open(t, &log, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "10"})
	hub := telemetry.New(telemetry.Config{Ended: e.Export})
	turnOf(t.Context(), hub)
	for !c.has("invoke_agent writer", "execute_tool read", "embeddings acme/small") {
		<-c.got
	}
	e.Close(t.Context()) // has nothing left to send, which it would do for two seconds only
	body := c.bodies.String()
	id, err := hex.DecodeString(parent[3:35])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"invoke_agent writer", "chat gemini", "execute_tool read", "embeddings acme/small", "gen_ai.usage.input_tokens", "gcp.gemini",
		"service.name", "hello", "lch_1", string(id),
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the collector did not get %q", want)
		}
	}
	for _, bad := range []string{"CONTENT", "USER", "arguments"} {
		if strings.Contains(body, bad) {
			t.Errorf("the collector got %q", bad)
		}
	}
	if len(c.wrong) > 0 || log.Len() > 0 {
		t.Errorf("%q, log %s", c.wrong, &log)
	}
}

func TestExport_ACollectorThatFailsIsToldInTheLogOnly(t *testing.T) {
	c, url := startCollector(t)
	c.status = http.StatusBadRequest
	var log bytes.Buffer
	e := open(t, &log, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url + "/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "3600000"})
	for range 3 {
		turnOf(t.Context(), telemetry.New(telemetry.Config{Ended: e.Export}))
	}
	e.Close(t.Context())
	if n := strings.Count(log.String(), "traces are not sent"); n != 1 {
		t.Errorf("told %d times: %s", n, &log)
	}
}

func TestOpen_WithoutACollectorThereIsNoExporter(t *testing.T) {
	t.Parallel()
	e, err := Open(t.Context(), Config{})
	if e != nil || err != nil {
		t.Errorf("%v, %v", e, err)
	}
	e.Export(nil)
	e.Close(t.Context())
	if e, err := Open(t.Context(), Config{Env: environment(map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"})}); e != nil || err == nil {
		t.Errorf("another kind of exporter: %v, %v", e, err)
	}
}

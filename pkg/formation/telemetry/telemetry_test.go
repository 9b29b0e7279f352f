package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/redact"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shown is a trace as its reader gets it.
type shown struct {
	Spans []struct {
		SpanID     string         `json:"span_id"`
		ParentID   *string        `json:"parent_id"`
		Kind       string         `json:"kind"`
		Name       string         `json:"name"`
		Status     string         `json:"status"`
		StartedAt  time.Time      `json:"started_at"`
		DurationMS float64        `json:"duration_ms"`
		Attributes map[string]any `json:"attributes"`
	} `json:"spans"`
	Totals struct {
		DurationMS float64          `json:"duration_ms"`
		ModelCalls int              `json:"model_calls"`
		ToolCalls  int              `json:"tool_calls"`
		Tokens     telemetry.Tokens `json:"tokens"`
		Cost       *telemetry.Cost  `json:"cost"`
		Dropped    int              `json:"spans_dropped"`
	} `json:"totals"`
}

func show(t *testing.T, tr *telemetry.Trace) shown {
	t.Helper()
	var s shown
	if err := json.Unmarshal(tr.JSON(), &s); err != nil {
		t.Fatalf("%v in %s", err, tr.JSON())
	}
	return s
}

// clock is a time that goes on by a step at each look.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Millisecond)
	return c.now
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func TestTrace_SpansNestAndSumUp(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{Now: newClock().Now})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{RequestID: "req_1", UserID: "ann", SessionID: "s"})
	ctx, turn := telemetry.Start(ctx, telemetry.KindTurn, "turn")
	_, routing := telemetry.Start(ctx, telemetry.KindRouting, "route")
	routing.Set("agents", []map[string]any{{"id": "writer", "score": 0.5, "reasons": []string{"keywords"}}})
	routing.End(nil)
	for i := range 2 {
		_, model := telemetry.Start(ctx, telemetry.KindModel, "demo/echo")
		model.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 10, Output: 5, Cached: i})
		model.Set(telemetry.AttrCost, telemetry.Cost{Amount: 0.25, Currency: "EUR"})
		model.End(nil)
	}
	_, again := telemetry.Start(ctx, telemetry.KindModel, "demo/echo")
	again.Set(telemetry.AttrCached, true)
	again.End(nil)
	inner, tool := telemetry.Start(ctx, telemetry.KindTool, "files__read")
	_, deep := telemetry.Start(inner, telemetry.KindModel, "demo/echo")
	deep.End(errors.New("the model is away"))
	tool.End(nil)
	tool.End(errors.New("only the first end counts"))
	tool.Set("late", true)
	turn.End(nil)

	got := show(t, trace)
	var lines []string
	for _, s := range got.Spans {
		parent := "-"
		if s.ParentID != nil {
			parent = *s.ParentID
		}
		lines = append(lines, fmt.Sprintf("%s<%s %s %s %s", s.SpanID, parent, s.Kind, s.Name, s.Status))
	}
	want := []string{
		"1<- turn turn ok", "2<1 routing route ok", "3<1 model demo/echo ok", "4<1 model demo/echo ok",
		"5<1 model demo/echo ok", "6<1 tool files__read ok", "7<6 model demo/echo error",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	if got.Totals.ModelCalls != 3 || got.Totals.ToolCalls != 1 || got.Totals.Tokens != (telemetry.Tokens{Input: 20, Output: 10, Cached: 1}) {
		t.Errorf("totals = %+v", got.Totals)
	}
	if got.Totals.Cost != nil {
		t.Errorf("cost = %+v although a call has none", got.Totals.Cost)
	}
	if got.Totals.DurationMS != got.Spans[0].DurationMS || got.Totals.DurationMS < 10 {
		t.Errorf("%v ms in all, %v ms the turn", got.Totals.DurationMS, got.Spans[0].DurationMS)
	}
	if got.Spans[6].Attributes["error"] != "the model is away" || got.Spans[5].Attributes["late"] != nil {
		t.Errorf("attributes: %v, %v", got.Spans[6].Attributes, got.Spans[5].Attributes)
	}
	for i := 1; i < len(got.Spans); i++ {
		if got.Spans[i].StartedAt.Before(got.Spans[i-1].StartedAt) {
			t.Errorf("span %d began before the one in front of it", i)
		}
	}
}

func TestTrace_PricedCallsHaveACost(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	for range 3 {
		_, s := telemetry.Start(ctx, telemetry.KindModel, "m")
		s.Set(telemetry.AttrCost, &telemetry.Cost{Amount: 0.5, Currency: "USD"})
		s.End(nil)
	}
	if got := trace.Totals().Cost; got == nil || *got != (telemetry.Cost{Amount: 1.5, Currency: "USD"}) {
		t.Errorf("cost = %+v", got)
	}
}

func TestTrace_ShowsWhatStillRuns(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{Now: newClock().Now})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	ctx, turn := telemetry.Start(ctx, telemetry.KindTurn, "turn")
	_, s := telemetry.Start(ctx, telemetry.KindTool, "slow")
	_, m := telemetry.Start(ctx, telemetry.KindModel, "m")
	m.End(nil)
	first, second := show(t, trace), show(t, trace)
	if a, b := first.Spans[1].DurationMS, second.Spans[1].DurationMS; a <= 0 || b <= a {
		t.Errorf("an open span lasts %v ms, then %v ms", a, b)
	}
	if s := first.Spans[1]; s.Status != "ok" || s.Attributes["running"] != true || first.Spans[0].Attributes["running"] != true || first.Spans[2].Attributes["running"] != nil {
		t.Errorf("what runs is not told from what has ended: %+v", first.Spans)
	}
	if first.Totals.ToolCalls != 1 || first.Totals.ModelCalls != 1 {
		t.Errorf("totals = %+v", first.Totals)
	}
	s.End(nil)
	if got := show(t, trace); got.Spans[1].Attributes["running"] != nil || got.Totals.ToolCalls != 1 {
		t.Errorf("after its end: %+v, %+v", got.Spans[1], got.Totals)
	}
	_, _ = telemetry.Start(ctx, telemetry.KindTool, "left open")
	turn.End(nil)
	if got := show(t, trace); got.Spans[3].Attributes["running"] != nil || got.Totals.ToolCalls != 1 {
		t.Errorf("the turn is over: %+v, %+v", got.Spans[3], got.Totals)
	}
}

func TestTrace_ARefusedCallIsNoCall(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	_, s := telemetry.Start(ctx, telemetry.KindTool, "made_up")
	s.Set(telemetry.AttrRefused, true)
	s.End(nil)
	if got := show(t, trace); len(got.Spans) != 1 || got.Totals.ToolCalls != 0 {
		t.Errorf("%+v", got)
	}
	if text := metricsOf(t, h); strings.Contains(text, "made_up") {
		t.Errorf("a name that a model made up is in the metrics:\n%s", text)
	}
}

func TestLog_RecordsOfATurnNameIt(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := zerolog.New(&out)
	h := telemetry.New(telemetry.Config{})
	ctx, _ := h.Trace(t.Context(), telemetry.TraceInfo{RequestID: "req_1", UserID: "ann"})
	telemetry.Log(ctx, log).Warn().Msg("in a turn")
	telemetry.Log(t.Context(), log).Warn().Msg("outside")
	want := `{"level":"warn","request":"req_1","user":"ann","message":"in a turn"}` + "\n" + `{"level":"warn","message":"outside"}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestTrace_ReplayedStepsCountButTakeNoTime(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{Now: newClock().Now})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	s := telemetry.Replayed(ctx, telemetry.KindModel, "m")
	s.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 7})
	s.End(nil)
	got := show(t, trace)
	if got.Spans[0].DurationMS != 0 || got.Spans[0].Attributes["replayed"] != true || got.Totals.ModelCalls != 1 || got.Totals.Tokens.Input != 7 {
		t.Errorf("%+v", got)
	}
	if text := metricsOf(t, h); strings.Contains(text, "formation_model_calls_total") {
		t.Errorf("a step of an earlier life was counted in this one:\n%s", text)
	}
}

func TestTrace_KeepsABoundedNumberOfSpansAndSumsAll(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{MaxSpans: 3})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	for range 10 {
		inner, s := telemetry.Start(ctx, telemetry.KindTool, "t")
		_, below := telemetry.Start(inner, telemetry.KindModel, "m")
		below.End(nil)
		s.End(nil)
	}
	got := show(t, trace)
	if len(got.Spans) != 3 || got.Totals.ToolCalls != 10 || got.Totals.ModelCalls != 10 || got.Totals.Dropped != 17 {
		t.Errorf("%d spans, totals %+v", len(got.Spans), got.Totals)
	}
}

func TestTrace_TextsAreBounded(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	long := strings.Repeat("é", 1<<20)
	document, err := json.Marshal(map[string]string{"text": long})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		_, s := telemetry.Start(ctx, telemetry.KindTool, long)
		s.Set(telemetry.AttrArguments, json.RawMessage(document))
		s.Set(telemetry.AttrResult, long)
		for i := range 100 {
			s.Set(fmt.Sprint("k", i), i)
		}
		s.End(errors.New(long))
	}
	if n := len(trace.JSON()); n > 3<<20 {
		t.Errorf("a trace of endless texts has %d bytes", n)
	}
	got := show(t, trace)
	if n := len(got.Spans[0].Attributes); n > 30 {
		t.Errorf("%d attributes", n)
	}
	if s, _ := got.Spans[0].Attributes["result"].(string); !strings.HasSuffix(s, "é…") || len(s) < 4000 || len(s) > 4200 {
		t.Errorf("a long result has %d bytes", len(s))
	}
}

func TestTrace_HoldsNoSecrets(t *testing.T) {
	t.Parallel()
	const canary = "xq7-canary-value-0193847"
	r := redact.New()
	r.Add(canary)
	h := telemetry.New(telemetry.Config{Redact: r})
	sub := h.Subscribe(0, nil)
	defer sub.Close()
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r"})
	_, s := telemetry.Start(ctx, telemetry.KindTool, "call "+canary)
	args, err := json.Marshal(map[string]any{"key": canary, "mail": "ann@example.com", "n": 3, "deep": []string{"a\n" + canary}})
	if err != nil {
		t.Fatal(err)
	}
	s.Set(telemetry.AttrArguments, json.RawMessage(args))
	s.Set(telemetry.AttrResult, "it is "+canary)
	s.Set("list", []string{canary, "ann@example.com"})
	for _, at := range []int{4080, 4090, 4095, 8180, 8190, 8200} { // where a cut goes through it
		s.Set(fmt.Sprint("cut", at), strings.Repeat("x ", at/2)+canary+strings.Repeat(" y", 9000))
		s.Set(fmt.Sprint("json", at), map[string]string{"v": strings.Repeat("x ", at/2) + canary + strings.Repeat(" y", 9000)})
	}
	s.End(fmt.Errorf("refused %s", canary))
	telemetry.Emit(ctx, telemetry.Event{Name: "a.b", Message: "m " + canary, Data: map[string]any{"v": []any{canary}}})

	e := <-sub.Events()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	out := string(trace.JSON()) + string(data)
	for _, bad := range []string{canary, canary[:12], "ann@example.com"} {
		if i := strings.Index(out, bad); i >= 0 {
			t.Errorf("%q is told: …%s…", bad, out[max(0, i-60):min(len(out), i+60)])
		}
	}
	got := show(t, trace)
	if args, _ := got.Spans[0].Attributes["arguments"].(map[string]any); args["n"] != 3.0 {
		t.Errorf("arguments = %v", got.Spans[0].Attributes["arguments"])
	}
}

func TestStart_WithoutATraceDoesNothing(t *testing.T) {
	t.Parallel()
	ctx, s := telemetry.Start(t.Context(), telemetry.KindModel, "m")
	if s != nil || ctx != t.Context() {
		t.Errorf("a span %v", s)
	}
	s.Set("k", 1)
	s.Rename("n")
	s.End(nil)
	telemetry.Replayed(ctx, telemetry.KindModel, "m").End(nil)
	telemetry.Emit(ctx, telemetry.Event{Name: "a"})
	var none *telemetry.Hub
	ctx, trace := none.Trace(t.Context(), telemetry.TraceInfo{})
	if trace != nil || trace.JSON() != nil || trace.Spans() != nil || ctx != t.Context() || none.Listening() {
		t.Error("a nil hub traces")
	}
	trace.Close()
	none.Emit(telemetry.Event{})
}

func TestStart_WithoutATraceCostsNothing(t *testing.T) { // not parallel: it counts allocations
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		_, s := telemetry.Start(ctx, telemetry.KindModel, "m")
		s.Set("k", "v")
		s.End(nil)
		telemetry.Emit(ctx, telemetry.Event{Name: "a", Message: "m"})
	}); n != 0 {
		t.Errorf("%v allocations for nobody", n)
	}
}

func TestTrace_ManyAtOnce(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, trace := h.Trace(t.Context(), telemetry.TraceInfo{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				_, s := telemetry.Start(ctx, telemetry.KindTool, "t")
				s.Set("k", "v")
				trace.JSON()
				s.End(nil)
			}
		})
	}
	wg.Wait()
	if n := trace.Totals().ToolCalls; n != 400 {
		t.Errorf("%d calls", n)
	}
}

func TestTrace_EndsOnceForTheExporter(t *testing.T) {
	t.Parallel()
	var ended []*telemetry.Trace
	h := telemetry.New(telemetry.Config{Ended: func(tr *telemetry.Trace) { ended = append(ended, tr) }})
	_, trace := h.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r", Parent: "00-…"})
	trace.Close()
	trace.Close()
	if len(ended) != 1 || ended[0].Info().Parent != "00-…" {
		t.Errorf("%v", ended)
	}
}

func TestEmit_FillsInWhoseTurnItIs(t *testing.T) {
	t.Parallel()
	n := 0
	h := telemetry.New(telemetry.Config{NewID: func(p string) string { n++; return fmt.Sprint(p, n) }, Now: newClock().Now})
	ctx, _ := h.Trace(t.Context(), telemetry.TraceInfo{RequestID: "r", UserID: "u", SessionID: "s"})
	telemetry.Emit(ctx, telemetry.Event{Name: "nobody.hears"})
	if telemetry.Listening(ctx) {
		t.Error("somebody listens")
	}
	all := h.Subscribe(0, nil)
	chats := h.Subscribe(0, func(e *telemetry.Event) bool { return strings.HasPrefix(e.Name, "chat.") })
	telemetry.Emit(ctx, telemetry.Event{Name: "chat.started", AgentID: "a", Message: "m"})
	telemetry.Emit(ctx, telemetry.Event{Name: "tool.called", SessionID: "other", Level: telemetry.Debug})
	e := <-chats.Events()
	if e.Name != "chat.started" || e.RequestID != "r" || e.UserID != "u" || e.SessionID != "s" || e.AgentID != "a" || e.ID != "evt_1" || e.Time.IsZero() || e.Level.String() != "INFO" {
		t.Errorf("%+v", e)
	}
	if len(chats.Events()) != 0 || len(all.Events()) != 2 {
		t.Errorf("%d and %d events wait", len(chats.Events()), len(all.Events()))
	}
	chats.Close()
	all.Close()
	all.Close()
	if h.Listening() {
		t.Error("everybody has left")
	}
}

func TestEmit_ASlowObserverLosesEventsAndIsTold(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	slow, quick := h.Subscribe(4, nil), h.Subscribe(100, nil)
	defer slow.Close()
	defer quick.Close()
	for range 50 {
		h.Emit(telemetry.Event{Name: "a"})
	}
	if len(slow.Events()) != 4 || slow.Lost() != 46 || slow.Lost() != 0 {
		t.Errorf("%d events wait", len(slow.Events()))
	}
	if len(quick.Events()) != 50 || quick.Lost() != 0 {
		t.Errorf("%d events wait for the quick one", len(quick.Events()))
	}
	if text := metricsOf(t, h); !strings.Contains(text, "formation_observer_events_lost_total 46\n") {
		t.Errorf("metrics:\n%s", text)
	}
}

func TestEmit_WhileObserversComeAndGo(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				s := h.Subscribe(1, nil)
				<-s.Events()
				s.Close()
			}
		})
	}
	var emitters sync.WaitGroup
	emitters.Go(func() {
		for ctx.Err() == nil {
			h.Emit(telemetry.Event{Name: "a", Data: map[string]any{"k": 1}})
		}
	})
	wg.Wait()
	stop()
	emitters.Wait()
	if h.Listening() {
		t.Error("everybody has left")
	}
}

func TestEmit_DataIsBounded(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	s := h.Subscribe(0, nil)
	defer s.Close()
	h.Emit(telemetry.Event{Name: "a", Message: strings.Repeat("m", 1<<20), Data: map[string]any{"v": strings.Repeat("d", 1<<20)}})
	h.Emit(telemetry.Event{Name: "b", Data: map[string]any{"v": func() {}}})
	if e := <-s.Events(); len(e.Message) > 3<<10 || e.Data["not_shown"] != "1048584 bytes" {
		t.Errorf("message of %d bytes, data %.80v", len(e.Message), e.Data)
	}
	if e := <-s.Events(); !strings.Contains(fmt.Sprint(e.Data["not_shown"]), "unsupported type") {
		t.Errorf("data %v", e.Data)
	}
}

func TestLevels_HaveNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"} {
		if l, ok := telemetry.ParseLevel(name); !ok || l.String() != name {
			t.Errorf("%s: %v, %v", name, l, ok)
		}
	}
	if _, ok := telemetry.ParseLevel("info"); ok {
		t.Error("small letters are a level")
	}
	if got := telemetry.Level(9).String(); got != "LEVEL(9)" {
		t.Error(got)
	}
}

func metricsOf(t *testing.T, h *telemetry.Hub) string {
	t.Helper()
	var b bytes.Buffer
	if err := h.Metrics().Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// turnOf is what a turn with three tool calls tells.
func turnOf(ctx context.Context, h *telemetry.Hub) *telemetry.Trace {
	ctx, trace := h.Trace(ctx, telemetry.TraceInfo{RequestID: "req_x", UserID: "u", SessionID: "s"})
	ctx, turn := telemetry.Start(ctx, telemetry.KindTurn, "turn")
	telemetry.Emit(ctx, telemetry.Event{Name: "chat.started", Message: "A turn has begun"})
	_, routing := telemetry.Start(ctx, telemetry.KindRouting, "route")
	routing.Set("method", "single")
	routing.End(nil)
	for range 4 {
		_, model := telemetry.Start(ctx, telemetry.KindModel, "openai/gpt-5-mini")
		model.Set(telemetry.AttrProvider, "openai")
		model.Set(telemetry.AttrModel, "gpt-5-mini")
		model.Set(telemetry.AttrAgent, "writer")
		model.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 1000, Output: 200})
		model.Set(telemetry.AttrFinish, "stop")
		model.End(nil)
	}
	for range 3 {
		_, tool := telemetry.Start(ctx, telemetry.KindTool, "everything__echo")
		tool.Set(telemetry.AttrServer, "everything")
		tool.Set(telemetry.AttrTool, "echo")
		tool.Set(telemetry.AttrAgent, "writer")
		tool.Set(telemetry.AttrArguments, json.RawMessage(`{"message":"hello there"}`))
		tool.Set(telemetry.AttrResult, "Echo: hello there")
		tool.End(nil)
	}
	turn.End(nil)
	telemetry.Emit(ctx, telemetry.Event{Name: "chat.completed", Message: "A turn has ended"})
	trace.Close()
	return trace
}

func BenchmarkTurn(b *testing.B) {
	r := redact.New()
	for i := range 10 {
		r.Add(fmt.Sprintf("secret-value-number-%d", i))
	}
	h := telemetry.New(telemetry.Config{Redact: r})
	b.Run("spans", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			turnOf(b.Context(), h)
		}
	})
	b.Run("spans and JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			turnOf(b.Context(), h).JSON()
		}
	})
	b.Run("observed", func(b *testing.B) {
		s := h.Subscribe(16, nil)
		defer s.Close()
		b.ReportAllocs()
		for b.Loop() {
			turnOf(b.Context(), h).JSON()
		}
	})
}

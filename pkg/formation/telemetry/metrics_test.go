package telemetry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/telemetry"
)

func TestMetrics_SpeakTheTextFormat(t *testing.T) {
	t.Parallel()
	c := newClock()
	h := telemetry.New(telemetry.Config{Now: c.Now})
	if got := metricsOf(t, h); !strings.HasPrefix(got, "# HELP formation_observer_events_lost_total Events that found no room at a slow observer.\n"+
		"# TYPE formation_observer_events_lost_total counter\nformation_observer_events_lost_total 0\n"+
		"# HELP go_goroutines Goroutines that exist now.\n# TYPE go_goroutines gauge\ngo_goroutines ") || strings.Count(got, "\n") != 6 {
		t.Errorf("before anything happened:\n%s", got)
	}
	ctx, _ := h.Trace(t.Context(), telemetry.TraceInfo{})
	ctx, turn := telemetry.Start(ctx, telemetry.KindTurn, "turn")
	_, model := telemetry.Start(ctx, telemetry.KindModel, "p/m")
	model.Set(telemetry.AttrProvider, "p")
	model.Set(telemetry.AttrModel, "a \"quoted\"\\\nmodel\xff")
	model.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 3, Output: 2})
	model.Set(telemetry.AttrCost, telemetry.Cost{Amount: 0.5, Currency: "USD"})
	model.End(nil)
	for i := range 3 {
		_, tool := telemetry.Start(ctx, telemetry.KindTool, "files__read")
		tool.Set(telemetry.AttrServer, "files")
		tool.Set(telemetry.AttrTool, "read")
		tool.Set(telemetry.AttrIsError, i == 1)
		if i == 2 {
			c.now = c.now.Add(time.Hour)
			tool.End(errors.New("gone"))
		}
		tool.End(nil)
	}
	turn.Set(telemetry.AttrStatus, "completed")
	turn.End(nil)
	var got []string
	for line := range strings.Lines(metricsOf(t, h)) {
		if !strings.HasPrefix(line, "#") && (!strings.Contains(line, "_bucket") || strings.Contains(line, `le="+Inf"`) || strings.Contains(line, `le="60"`)) {
			line, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "goroutines ") // their number is not ours
			got = append(got, line)
		}
	}
	const m = `provider="p",model="a \"quoted\"\\\nmodel` + "\ufffd" + `"`
	want := []string{
		`formation_turns_total{status="completed"} 1`,
		`formation_turn_duration_seconds_bucket{le="60"} 0`,
		`formation_turn_duration_seconds_bucket{le="+Inf"} 1`,
		`formation_turn_duration_seconds_sum 3600.01`,
		`formation_turn_duration_seconds_count 1`,
		`formation_model_calls_total{` + m + `,outcome="ok"} 1`,
		`formation_model_call_duration_seconds_bucket{` + m + `,le="60"} 1`,
		`formation_model_call_duration_seconds_bucket{` + m + `,le="+Inf"} 1`,
		`formation_model_call_duration_seconds_sum{` + m + `} 0.001`,
		`formation_model_call_duration_seconds_count{` + m + `} 1`,
		`formation_tokens_total{` + m + `,direction="input"} 3`,
		`formation_tokens_total{` + m + `,direction="output"} 2`,
		`formation_cost_total{` + m + `,currency="USD"} 0.5`,
		`formation_tool_calls_total{server="files",tool="read",outcome="error"} 2`,
		`formation_tool_calls_total{server="files",tool="read",outcome="ok"} 1`,
		`formation_tool_call_duration_seconds_bucket{server="files",le="60"} 2`,
		`formation_tool_call_duration_seconds_bucket{server="files",le="+Inf"} 3`,
		`formation_tool_call_duration_seconds_sum{server="files"} 3600.003`,
		`formation_tool_call_duration_seconds_count{server="files"} 3`,
		`formation_observer_events_lost_total 0`,
		`go_`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMetrics_NamesWithoutEndDoNotGrowThem(t *testing.T) {
	t.Parallel()
	h := telemetry.New(telemetry.Config{})
	ctx, _ := h.Trace(t.Context(), telemetry.TraceInfo{})
	for i := range 2000 {
		_, tool := telemetry.Start(ctx, telemetry.KindTool, "t")
		tool.Set(telemetry.AttrServer, fmt.Sprint("s", i))
		tool.Set(telemetry.AttrTool, "t")
		tool.End(nil)
	}
	text := metricsOf(t, h)
	if n := strings.Count(text, "formation_tool_calls_total{"); n > 502 {
		t.Errorf("%d series", n)
	}
	if !strings.Contains(text, `formation_tool_calls_total{server="other",tool="other",outcome="ok"} 1500`) {
		t.Error("what came too late is not counted")
	}
}

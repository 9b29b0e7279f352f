package formation

import (
	"context"
	"io"
	"strings"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/budget"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/formation/telemetry/otlp"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// LogTap lets those who read /v1/logs hear the log of the process.
type LogTap = telemetry.Tap

// NewLogTap returns a tap in front of the log's file. The redactor writes to it.
func NewLogTap(w io.Writer) *LogTap { return telemetry.NewTap(w) }

// observe makes what tells of the formation's work. Nothing runs for it until
// somebody observes, and no exporter is made unless the environment names one.
func (f *Formation) observe(ctx context.Context, p *parts) (err error) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		if headers, ok := f.lookup(name); ok { // they hold the collector's key
			for pair := range strings.SplitSeq(headers, ",") {
				_, value, _ := strings.Cut(pair, "=")
				f.cfg.Redact.Add(value)
			}
		}
	}
	if p.exporter, err = otlp.Open(ctx, otlp.Config{
		Env: f.cfg.Env, FormationID: p.manifest.ID, LaunchID: f.cfg.LaunchID, Log: f.cfg.Log,
	}); err != nil {
		return fault.Wrap(fault.Invalid, "ParseError", err.Error(), err)
	}
	cfg := telemetry.Config{Redact: f.cfg.Redact, NewID: httpx.NewID}
	if p.exporter != nil {
		cfg.Ended = p.exporter.Export
	}
	p.hub = telemetry.New(cfg)
	if f.cfg.Tap != nil {
		f.cfg.Tap.Tell(p.hub)
	}
	return nil
}

func (f *Formation) lookup(name string) (string, bool) {
	if f.cfg.Env == nil {
		return "", false
	}
	return f.cfg.Env(name)
}

// setLevel makes the log as talkative as the manifest asks, unless who started
// the process has chosen.
func (f *Formation) setLevel(p *parts, m *manifest.Formation) {
	if f.cfg.KeepLevel {
		return
	}
	level := map[string]zerolog.Level{
		"debug": zerolog.DebugLevel, "info": zerolog.InfoLevel, "warning": zerolog.WarnLevel, "error": zerolog.ErrorLevel,
	}[m.Logging.SystemLevel]
	f.cfg.Log = f.cfg.Log.Level(level)
	p.log = f.cfg.Log
}

// tellRefusal tells those who observe that a budget refused a call.
func tellRefusal(ctx context.Context, c llm.Call, err error) {
	if fault.NameOf(err) != "BUDGET_EXCEEDED" {
		return
	}
	telemetry.Emit(ctx, telemetry.Event{
		Level: telemetry.Error, Name: budgetExceeded, AgentID: c.Account.Agent, UserID: c.Account.User, RequestID: c.Account.Request,
		Message: fault.From(err).Message, Data: map[string]any{"model": c.ModelID},
	})
}

// tellWarning tells those who observe that a budget is nearly used up.
func (p *parts) tellWarning(w budget.Warning) {
	e := telemetry.Event{
		Level: telemetry.Warning, Name: budgetWarning, Message: warningText(w),
		Data: map[string]any{"scope": w.Scope, "id": w.ID, "day": w.Day, "kind": w.What, "used": w.Used, "limit": w.Limit},
	}
	switch w.Scope {
	case "user":
		e.UserID = w.ID
	case "agent":
		e.AgentID = w.ID
	}
	p.hub.Emit(e)
}

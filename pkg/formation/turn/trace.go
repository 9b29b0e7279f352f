package turn

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// interrupted is the status of a turn in the trace of a life that was cut: the
// turn goes on in another one.
const interrupted = "interrupted"

// trace opens the trace of a turn and its outermost span. It is a no-op without
// a hub.
func (s *Service) trace(ctx context.Context, t *live) context.Context {
	ctx, t.trace = s.cfg.Telemetry.Trace(ctx, telemetry.TraceInfo{
		RequestID: t.rec.ID, UserID: t.rec.UserID, SessionID: t.rec.SessionID, Parent: t.parent,
	})
	ctx, t.span = telemetry.Start(ctx, telemetry.KindTurn, "turn")
	t.span.Set("mode", t.rec.Mode)
	return ctx
}

// close ends the turn's span and returns the trace as it is stored; only the
// first call counts.
func (t *live) close(status, agent string, err error) []byte {
	t.span.Set(telemetry.AttrStatus, status)
	if agent != "" {
		t.span.Set(telemetry.AttrAgent, agent)
	}
	t.span.End(err)
	return t.trace.JSON()
}

// tell emits an event of the turn, when anybody listens.
func (t *live) tell(name, message string, data map[string]any) {
	telemetry.Emit(t.ctx, telemetry.Event{Name: name, Message: message, AgentID: t.rec.AgentID, Data: data})
}

// tellProgress tells what the turn does just now; the answer itself is not told.
func (t *live) tellProgress(e chat.Event) {
	if t.quiet || e.Type != chat.Progress || !telemetry.Listening(t.ctx) {
		return
	}
	data, message := map[string]any{"stage": e.Stage}, e.Content
	if e.ToolName != "" {
		data["tool_name"] = e.ToolName
		if !strings.Contains(message, e.ToolName) { // not every observer sees the data
			message = strings.TrimSuffix(e.ToolName+": "+message, ": ")
		}
	}
	t.tell("chat.progress", message, data)
}

// tellEnd tells how a turn ended. What was asked and answered is not told.
func (s *Service) tellEnd(t *live) {
	if !telemetry.Listening(t.ctx) {
		return
	}
	took := s.cfg.DB.Now().Sub(t.rec.CreatedAt)
	e := telemetry.Event{AgentID: t.rec.AgentID, Data: map[string]any{"duration_ms": took.Milliseconds()}}
	switch {
	case t.err != nil && isStopping(t.err):
		e.Name, e.Level, e.Message = "chat.interrupted", telemetry.Warning, "The process stops; the turn goes on in another one"
	case t.err != nil:
		f := fault.From(t.err)
		e.Name, e.Level, e.Message, e.Data["code"] = "chat.failed", telemetry.Error, "The turn failed: "+f.Message, f.Name
	default:
		e.Name, e.Message = "chat."+t.reply.Status, "The turn ended after "+took.Round(time.Millisecond).String()
		if t.reply.Agent != "" {
			e.AgentID = t.reply.Agent
		}
		e.Data["tokens"] = t.reply.Usage.TotalTokens
	}
	telemetry.Emit(t.ctx, e)
}

// recall is Memory.Recall with its span.
func (s *Service) recall(t *live) (memory.Context, error) {
	ctx, span := telemetry.Start(t.ctx, telemetry.KindMemory, "recall")
	past, err := s.cfg.Memory.Recall(ctx, t.rec.UserID, t.rec.SessionID)
	span.Set("query_chars", utf8.RuneCountInString(t.rec.Message))
	span.Set("candidates", len(past.History))
	span.Set("used", len(past.History))
	span.Set(telemetry.AttrTokens, estimate(past.History))
	span.End(err)
	return past, err
}

// bytesPerToken is a rough measure for texts whose tokens nobody counts.
const bytesPerToken = 4

func estimate(messages []chat.Message) int {
	n := 0
	for i := range messages {
		n += len(messages[i].Content)
	}
	return (n + bytesPerToken - 1) / bytesPerToken
}

// noTrace is the trace of a turn that left none.
const noTrace = `{"spans":[],"totals":{"duration_ms":`

// Trace returns the spans of a request as the object {"spans":[…],"totals":{…}}:
// stored ones, or those so far while the turn is in this process. A request
// whose spans are in another process, or that was made before there were traces,
// has none. Faults: REQUEST_NOT_FOUND; FORBIDDEN when it is another user's and
// the caller is not an admin.
func (s *Service) Trace(ctx context.Context, userID, requestID string, admin bool) ([]byte, error) {
	rec, err := s.record(ctx, userID, requestID, admin)
	if err != nil {
		return nil, err
	}
	trace, err := request.Trace(ctx, s.cfg.DB, requestID)
	if err != nil || trace != nil {
		return trace, err
	}
	if t := s.find(requestID); t != nil && t.trace != nil {
		return t.trace.JSON(), nil
	}
	// Its end may have been committed since the first look.
	if trace, err = request.Trace(ctx, s.cfg.DB, requestID); err != nil || trace != nil {
		return trace, err
	}
	end := s.cfg.DB.Now()
	if rec.Ended() {
		end = *rec.CompletedAt
	}
	b := strconv.AppendInt([]byte(noTrace), max(0, end.Sub(rec.CreatedAt).Milliseconds()), 10)
	return append(b, `,"model_calls":0,"tool_calls":0,"tokens":{"input":0,"output":0,"cached":0},"cost":null}}`...), nil
}

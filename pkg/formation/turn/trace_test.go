package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/formation/turn"
)

// traceOf returns the spans of a request as lines.
func traceOf(t *testing.T, p *process, id string) (lines []string) {
	t.Helper()
	data, err := p.Trace(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		Spans []struct {
			Kind, Name, Status string
			Attributes         map[string]any
		}
		Totals struct {
			ModelCalls int `json:"model_calls"`
			Tokens     telemetry.Tokens
		}
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	for _, s := range trace.Spans {
		line := s.Kind + " " + s.Name + " " + s.Status
		for _, key := range []string{"status", "attempt", "replayed"} {
			if v := s.Attributes[key]; v != nil {
				line += fmt.Sprintf(" %s=%v", key, v)
			}
		}
		lines = append(lines, line)
	}
	return append(lines, fmt.Sprintf("%d calls, %d tokens", trace.Totals.ModelCalls, trace.Totals.Tokens.Input))
}

// asking is a handler whose work is a call of a model; steps of an earlier life
// are told as such.
func asking(h handler) handler {
	return func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		var span *telemetry.Span
		if _, ok := in.Journal.Done("model/0"); ok {
			span = telemetry.Replayed(ctx, telemetry.KindModel, "m")
		} else {
			ctx, span = telemetry.Start(ctx, telemetry.KindModel, "m")
		}
		span.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 3})
		answer, err := h(ctx, in, sink)
		span.End(err)
		return answer, err
	}
}

func TestEvents_TheProgressOfAToolNamesIt(t *testing.T) {
	t.Parallel()
	hub := telemetry.New(telemetry.Config{})
	sub := hub.Subscribe(0, func(e *telemetry.Event) bool { return e.Name == "chat.progress" })
	defer sub.Close()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		for _, e := range []chat.Event{
			{Stage: chat.StageThinking, Content: "Thinking"}, {ToolName: "look", Content: "Calling look"}, {ToolName: "look", Content: "25%"}, {ToolName: "look"},
		} {
			e.Type = chat.Progress
			if err := sink(e); err != nil {
				return chat.Answer{}, err
			}
		}
		return say("done")(ctx, in, sink)
	}), options{hub: hub})
	wait(t, begin(t, p, turn.Request{}))
	for _, want := range []string{"Thinking", "Calling look", "look: 25%", "look"} {
		if e := <-sub.Events(); e.Message != want {
			t.Errorf("message %q, want %q", e.Message, want)
		}
	}
}

func TestTrace_IsStoredWithTheEndOfItsTurn(t *testing.T) {
	t.Parallel()
	hub := telemetry.New(telemetry.Config{})
	sub := hub.Subscribe(0, nil)
	defer sub.Close()
	path := filepath.Join(t.TempDir(), "s.db")
	waits := make(chan struct{})
	p := start(t, path, "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		switch in.Message {
		case "fail":
			return chat.Answer{}, fault.New(fault.Failed, "BAD_DAY", "it did not work")
		case "wait":
			close(waits)
			<-ctx.Done()
			return chat.Answer{}, context.Cause(ctx)
		}
		_, span := telemetry.Start(ctx, telemetry.KindModel, "m")
		span.Set(telemetry.AttrTokens, telemetry.Tokens{Input: 3})
		span.End(nil)
		return say("done")(ctx, in, sink)
	}), options{hub: hub})
	names := func() (out []string) {
		for len(sub.Events()) > 0 {
			e := <-sub.Events()
			out = append(out, fmt.Sprintf("%s %s %s", e.Level, e.Name, e.UserID))
		}
		return out
	}
	for _, c := range []struct {
		message string
		want    []string
		events  []string
	}{
		{
			"hello",
			[]string{"turn turn ok status=completed", "memory recall ok", "model m ok", "1 calls, 3 tokens"},
			[]string{"INFO chat.started u1", "INFO chat.completed u1"},
		},
		{
			"fail",
			[]string{"turn turn error status=failed", "memory recall ok", "0 calls, 0 tokens"},
			[]string{"INFO chat.started u1", "ERROR chat.failed u1"},
		},
		{
			"wait",
			[]string{"turn turn ok status=cancelled", "memory recall ok", "0 calls, 0 tokens"},
			[]string{"INFO chat.started u1", "INFO chat.cancelled u1"},
		},
	} {
		h := begin(t, p, turn.Request{Message: c.message, SessionID: "s"})
		if c.message == "wait" {
			started := <-sub.Events()
			<-waits
			if _, err := p.Cancel(t.Context(), "u1", h.ID, false); err != nil || started.Name != "chat.started" {
				t.Fatal(err, started)
			}
			c.events = c.events[1:]
		}
		_, _ = h.Wait(t.Context())
		if diff := cmp.Diff(c.want, traceOf(t, p, h.ID)); diff != "" {
			t.Errorf("%s:\n%s", c.message, diff)
		}
		if stored, err := request.Trace(t.Context(), p.db, h.ID); err != nil || stored == nil {
			t.Errorf("%s: its trace is not stored: %v", c.message, err)
		}
		if diff := cmp.Diff(c.events, names()); diff != "" {
			t.Errorf("%s: events:\n%s", c.message, diff)
		}
		if _, err := p.Trace(t.Context(), "u2", h.ID, false); fault.NameOf(err) != "FORBIDDEN" {
			t.Errorf("another user: %v", err)
		}
	}
	if _, err := p.Trace(t.Context(), "u1", "nothing", true); fault.NameOf(err) != "REQUEST_NOT_FOUND" {
		t.Errorf("unknown: %v", err)
	}
}

func TestTrace_OfAResumedTurnHoldsWhatAnEarlierLifeDid(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	id := killed(t, path, map[string]string{"model/0": `{}`})
	p := start(t, path, "fresh", asking(say("done")), options{fence: []string{"dead"}, hub: telemetry.New(telemetry.Config{})})
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, h)
	want := []string{"turn turn ok status=completed attempt=2", "memory recall ok", "model m ok replayed=true", "1 calls, 3 tokens"}
	if diff := cmp.Diff(want, traceOf(t, p, id)); diff != "" {
		t.Error(diff)
	}
}

func TestTrace_GoesWithItsRequest(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("done"), options{hub: telemetry.New(telemetry.Config{})})
	h := begin(t, p, turn.Request{})
	wait(t, h)
	if _, err := request.Purge(t.Context(), p.db, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if stored, err := request.Trace(t.Context(), p.db, h.ID); err != nil || stored != nil {
		t.Errorf("%s is left, %v", stored, err)
	}
	if _, err := p.Trace(t.Context(), "u1", h.ID, false); fault.NameOf(err) != "REQUEST_NOT_FOUND" {
		t.Errorf("err = %v", err)
	}
}

func TestTrace_WithoutTelemetryIsEmpty(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("done"), options{})
	h := begin(t, p, turn.Request{})
	wait(t, h)
	if diff := cmp.Diff([]string{"0 calls, 0 tokens"}, traceOf(t, p, h.ID)); diff != "" {
		t.Error(diff)
	}
}

func TestTrace_OfATurnThatTheEndOfItsProcessCutIsTold(t *testing.T) {
	t.Parallel()
	var ended []string
	got := make(chan struct{})
	hub := telemetry.New(telemetry.Config{Ended: func(tr *telemetry.Trace) {
		for _, s := range tr.Spans() {
			ended = append(ended, s.Name+" "+s.Text(telemetry.AttrStatus))
		}
		close(got)
	}})
	entered := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
		close(entered)
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{hub: hub})
	h := begin(t, p, turn.Request{})
	<-entered
	p.Stop()
	<-got
	if _, err := h.Wait(t.Context()); !errors.Is(err, turn.ErrStopping) {
		t.Errorf("err = %v", err)
	}
	if strings.Join(ended, ",") != "turn interrupted" {
		t.Errorf("%q", ended)
	}
	if stored, err := request.Trace(t.Context(), p.db, h.ID); err != nil || stored != nil {
		t.Errorf("a turn that goes on has the trace %s, %v", stored, err)
	}
}

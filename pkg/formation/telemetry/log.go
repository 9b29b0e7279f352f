package telemetry

import (
	"context"
	"encoding/json"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// LogEvent is the name of the events that are records of the log.
const LogEvent = "log"

// Tap passes the records of a log on, and lets a hub's observers hear them. It
// takes records without secrets: it stands behind the redactor.
type Tap struct {
	w   io.Writer
	hub atomic.Pointer[Hub]
}

// NewTap returns a Tap in front of w. Nobody hears it before Tell.
func NewTap(w io.Writer) *Tap { return &Tap{w: w} }

// Tell names the hub whose observers hear the log.
func (t *Tap) Tell(h *Hub) { t.hub.Store(h) }

// Write passes one record on. It is read only while somebody observes.
func (t *Tap) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if h := t.hub.Load(); h.Listening() {
		h.hear(p)
	}
	return n, err
}

// hear makes an event of a record of the log.
func (h *Hub) hear(record []byte) {
	var fields map[string]any
	if json.Unmarshal(record, &fields) != nil {
		return
	}
	take := func(names ...string) string {
		for _, name := range names {
			if text, ok := fields[name].(string); ok {
				delete(fields, name)
				return text
			}
		}
		return ""
	}
	e := Event{
		Name: LogEvent, Level: logLevel(take("level")), Message: take("message"),
		RequestID: take("request_id", "request"), UserID: take("user_id", "user"),
		SessionID: take("session_id", "session"), AgentID: take("agent_id", "agent"),
	}
	if at, err := time.Parse(time.RFC3339, take("time")); err == nil {
		// The record knows the second only.
		if now := h.cfg.Now(); now.Sub(at) > time.Second || at.After(now) {
			e.Time = at
		}
	}
	if len(fields) > 0 && len(record) <= maxData {
		e.Data = fields
	}
	h.tell(&e, true)
}

func logLevel(name string) Level {
	switch name {
	case "trace", "debug":
		return Debug
	case "warn":
		return Warning
	case "error":
		return Error
	case "fatal", "panic":
		return Critical
	default:
		return Info
	}
}

// Log returns log with the ids of the turn that ctx belongs to, so that its
// records can be found by them; without a trace it is log itself. It is for
// records that are rarely written: each call copies what log says of itself.
func Log(ctx context.Context, log zerolog.Logger) *zerolog.Logger {
	t := TraceOf(ctx)
	if t == nil {
		return &log
	}
	with := log.With()
	for _, id := range [...]struct{ name, value string }{
		{"request", t.info.RequestID}, {"user", t.info.UserID}, {"session", t.info.SessionID},
	} {
		if id.value != "" {
			with = with.Str(id.name, id.value)
		}
	}
	own := with.Logger()
	return &own
}

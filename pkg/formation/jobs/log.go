package jobs

import (
	"context"
	"log/slog"

	"github.com/rs/zerolog"
)

// logHandler passes the engine's slog records on to the formation's log. Its
// routine reports are debug detail here.
type logHandler struct {
	log zerolog.Logger
}

// Enabled implements slog.Handler.
func (h logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.log.GetLevel() <= zerolog.DebugLevel
}

// Handle implements slog.Handler.
func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	level := zerolog.DebugLevel
	switch {
	case r.Level >= slog.LevelError:
		level = zerolog.ErrorLevel
	case r.Level >= slog.LevelWarn:
		level = zerolog.WarnLevel
	}
	e := h.log.WithLevel(level)
	r.Attrs(func(a slog.Attr) bool {
		e = e.Str(a.Key, a.Value.String())
		return true
	})
	e.Msg(r.Message)
	return nil
}

// WithAttrs implements slog.Handler.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	ctx := h.log.With()
	for _, a := range attrs {
		ctx = ctx.Str(a.Key, a.Value.String())
	}
	return logHandler{log: ctx.Logger()}
}

// WithGroup implements slog.Handler; the engine does not use groups.
func (h logHandler) WithGroup(string) slog.Handler { return h }

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// operation is a deploy, start or restart, answered as JSON or, when the
// client asks for it, as an event stream (server.md 4.2).
type operation struct {
	status  int          // of the JSON answer
	counted bool         // the complete event carries the restart count
	check   func() error // refusals that are JSON in both forms
	run     func(context.Context, deploy.Sink) (deploy.View, error)
	result  func(deploy.View) any // the data of the JSON answer
}

func wantsEvents(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Accept"), "text/event-stream")
}

func (a *API) operate(c echo.Context, op operation) error {
	if err := op.check(); err != nil {
		return err
	}
	if wantsEvents(c) {
		return a.operateStreaming(c, op)
	}
	v, err := op.run(c.Request().Context(), nil)
	if err != nil {
		return err
	}
	return reply(c, op.status, op.result(v))
}

// progressBacklog is how many progress events may wait for a slow client;
// further ones are dropped, never the terminal one.
const progressBacklog = 64

func (a *API) operateStreaming(c echo.Context, op operation) error {
	stream, err := httpx.StartSSE(c)
	if err != nil {
		return nil //nolint:nilerr // the client left before the first byte; the operation has not begun
	}
	type outcome struct {
		view deploy.View
		err  error
	}
	progress := make(chan deploy.Progress, progressBacklog)
	done := make(chan outcome, 1)
	go func() {
		v, err := op.run(c.Request().Context(), func(p deploy.Progress) {
			select {
			case progress <- p:
			default:
			}
		})
		done <- outcome{v, err}
	}()
	// A client that leaves makes frames fail, which stops nothing: the
	// operation is waited for in any case.
	for {
		select {
		case p := <-progress:
			_ = frame(stream, "progress", toProgress(p))
		case o := <-done:
			for len(progress) > 0 {
				_ = frame(stream, "progress", toProgress(<-progress))
			}
			callOf(c).outcome = o.err
			if o.err == nil {
				_ = frame(stream, "complete", a.toComplete(c, op, o.view))
			} else {
				_ = frame(stream, "error", a.toErrorEvent(o.err))
			}
			return nil
		}
	}
}

func frame(stream *httpx.SSE, event string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return stream.Frame(event, "", data)
}

type progressEvent struct {
	Stage       deploy.Stage `json:"stage"`
	Message     string       `json:"message"`
	Version     string       `json:"version,omitempty"`
	Attempt     *int         `json:"attempt,omitempty"`
	MaxAttempts *int         `json:"max_attempts,omitempty"`
}

func toProgress(p deploy.Progress) progressEvent {
	e := progressEvent{Stage: p.Stage, Message: p.Message, Version: p.Version}
	if p.MaxAttempts > 0 {
		e.Attempt, e.MaxAttempts = &p.Attempt, &p.MaxAttempts
	}
	return e
}

type completeEvent struct {
	FormationID  string `json:"formation_id"`
	Port         int    `json:"port"`
	Status       string `json:"status"`
	URL          string `json:"url"`
	HealthURL    string `json:"health_url"`
	PID          int    `json:"pid"`
	NewVersion   string `json:"new_version,omitempty"`
	RestartCount *int   `json:"restart_count,omitempty"`
}

func (a *API) toComplete(c echo.Context, op operation, v deploy.View) completeEvent {
	e := completeEvent{
		FormationID: v.ID, Port: v.Port, Status: string(v.Process.Status), URL: a.formationURL(c, v.ID),
		HealthURL: healthURL(v.Port), PID: v.Process.PID, NewVersion: semantic(v),
	}
	if op.counted {
		e.RestartCount = &v.RestartCount
	}
	return e
}

type errorEvent struct {
	Error          string          `json:"error"`
	Message        string          `json:"message"`
	Stage          deploy.Stage    `json:"stage"`
	Details        map[string]any  `json:"details,omitempty"`
	RollbackStatus deploy.Rollback `json:"rollback_status,omitempty"`
}

func (a *API) toErrorEvent(err error) errorEvent {
	f := toFailure(err)
	e := errorEvent{Error: f.Error, Message: f.Message, Details: fault.From(err).Data}
	if failed, ok := errors.AsType[*deploy.StageError](err); ok {
		e.Stage, e.RollbackStatus = failed.Stage, failed.Rollback
	}
	if fault.KindOf(err) == fault.Internal {
		a.cfg.Log.Error().Err(err).Msg("an operation failed")
	}
	return e
}

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

// operation is a deploy, update, start, restart or rollback, answered as JSON
// or, when the client asks for it, as an event stream (server.md 4.2).
type operation struct {
	status  int          // of the JSON answer
	counted bool         // the complete event carries the restart count
	change  string       // the formation whose version changes; "" when none does
	check   func() error // refusals that are JSON in both forms; nil when all may be events
	run     func(context.Context, deploy.Sink) (outcome, error)
	result  func(outcome) any // the data of the JSON answer
}

// outcome is the formation after an operation.
type outcome struct {
	deploy.View
	previous string // the semantic version that was left; "" when none was
}

func wantsEvents(c echo.Context) bool {
	return callOf(c).events || strings.Contains(c.Request().Header.Get("Accept"), eventType)
}

func (a *API) operate(c echo.Context, op operation) error {
	if op.check != nil {
		if err := op.check(); err != nil {
			return err
		}
	}
	if wantsEvents(c) {
		return a.operateStreaming(c, op)
	}
	o, err := op.run(c.Request().Context(), nil)
	if err != nil {
		return err
	}
	return reply(c, op.status, op.result(o))
}

// progressBacklog is how many progress events may wait for a slow client;
// further ones are dropped, never the terminal one.
const progressBacklog = 64

func (a *API) operateStreaming(c echo.Context, op operation) error {
	port := a.stagingPort(c, op)
	stream, err := httpx.StartSSE(c)
	if err != nil {
		return nil //nolint:nilerr // the client left before the first byte; the operation has not begun
	}
	type result struct {
		outcome
		err error
	}
	progress := make(chan deploy.Progress, progressBacklog)
	done := make(chan result, 1)
	go func() {
		o, err := op.run(c.Request().Context(), func(p deploy.Progress) {
			select {
			case progress <- p:
			default:
			}
		})
		done <- result{o, err}
	}()
	// A client that leaves makes frames fail, which stops nothing: the
	// operation is waited for in any case.
	for {
		select {
		case p := <-progress:
			_ = frame(stream, "progress", toProgress(p, port))
		case r := <-done:
			for len(progress) > 0 {
				_ = frame(stream, "progress", toProgress(<-progress, port))
			}
			callOf(c).outcome = r.err
			if r.err == nil {
				_ = frame(stream, "complete", a.toComplete(c, op, r.outcome))
			} else {
				_ = frame(stream, "error", a.toErrorEvent(r.err))
			}
			return nil
		}
	}
}

// stagingPort is what the progress of an update shows: the formation's own port,
// which both versions share. 0 is left out.
func (a *API) stagingPort(c echo.Context, op operation) int {
	if op.change == "" {
		return 0
	}
	v, err := a.cfg.Deploy.Get(c.Request().Context(), op.change)
	if err != nil {
		return 0 // the operation will say why
	}
	return v.Port
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
	StagingPort int          `json:"staging_port,omitempty"`
}

func toProgress(p deploy.Progress, stagingPort int) progressEvent {
	e := progressEvent{Stage: p.Stage, Message: p.Message, Version: p.Version, StagingPort: stagingPort}
	if p.MaxAttempts > 0 {
		e.Attempt, e.MaxAttempts = &p.Attempt, &p.MaxAttempts
	}
	return e
}

type completeEvent struct {
	FormationID     string `json:"formation_id"`
	Port            int    `json:"port"`
	Status          string `json:"status"`
	URL             string `json:"url"`
	HealthURL       string `json:"health_url"`
	PID             int    `json:"pid"`
	PreviousVersion string `json:"previous_version,omitempty"`
	NewVersion      string `json:"new_version,omitempty"`
	RestartCount    *int   `json:"restart_count,omitempty"`
}

func (a *API) toComplete(c echo.Context, op operation, o outcome) completeEvent {
	e := completeEvent{
		FormationID: o.ID, Port: o.Port, Status: string(o.Process.Status), URL: a.formationURL(c, o.ID),
		HealthURL: healthURL(o.Port), PID: o.Process.PID, PreviousVersion: o.previous, NewVersion: semantic(o.View),
	}
	if op.counted {
		e.RestartCount = &o.RestartCount
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

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

type started struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Port    int    `json:"port"`
}

type restarted struct {
	started
	RestartCount int `json:"restart_count"`
}

type stopped struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

func toStarted(v deploy.View, done string) started {
	return started{ID: v.ID, Status: string(v.Process.Status), Message: "Formation '" + v.ID + "' " + done, Port: v.Port}
}

func (a *API) start(c echo.Context) error {
	id := httpx.Param(c, "id")
	if err := checkEmpty(callOf(c).body); err != nil {
		return err
	}
	return a.operate(c, operation{
		status: http.StatusOK,
		run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
			v, err := a.cfg.Deploy.Start(ctx, id, sink)
			return outcome{View: v}, err
		},
		result: func(o outcome) any { return toStarted(o.View, "started") },
	})
}

func (a *API) restart(c echo.Context) error {
	id := httpx.Param(c, "id")
	if err := checkEmpty(callOf(c).body); err != nil {
		return err
	}
	return a.operate(c, operation{
		status:  http.StatusOK,
		counted: true,
		run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
			v, err := a.cfg.Deploy.Restart(ctx, id, sink)
			return outcome{View: v}, err
		},
		result: func(o outcome) any {
			return restarted{started: toStarted(o.View, "restarted"), RestartCount: o.RestartCount}
		},
	})
}

func (a *API) stop(c echo.Context) error {
	if err := checkEmpty(callOf(c).body); err != nil {
		return err
	}
	v, err := a.cfg.Deploy.Stop(c.Request().Context(), httpx.Param(c, "id"))
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, stopped{
		ID: v.ID, Status: string(v.Process.Status), Message: "Formation '" + v.ID + "' stopped",
	})
}

// checkEmpty accepts no body or a JSON object.
func checkEmpty(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		return invalid("the body must be empty or a JSON object such as {}")
	}
	return nil
}
